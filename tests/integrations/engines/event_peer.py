"""A subscriber of KV events written from their contract alone, and a pool that publishes them."""
import json
import socket
import unittest
import urllib.request

import msgpack
import xxhash
import zmq
from harness import Cluster, until

import ems
from ems.kv_events import Follower

END = b'\xff' * 8
STATE_NOW = END
PATIENCE_MS = 10_000


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def block(key):
    """What events call the object of this key."""
    return xxhash.xxh3_128(key if isinstance(key, bytes) else key.encode()).digest()


class EventCluster(Cluster):
    """One server that publishes. `events` and `replay` are host:port."""

    def __init__(self, *flags, dram='64MiB', **more):
        self.events, self.replay = f'127.0.0.1:{free_port()}', f'127.0.0.1:{free_port()}'
        super().__init__(servers=1, dram=dram, controller_flags=['damping_ms=0'], server_flags=[
            f'kv_events.listen={self.events}', f'kv_events.replay_listen={self.replay}', 'kv_events.heartbeat_ms=100',
            *flags], **more)

    def metric(self, name):
        """Of the server, by the end of its name."""
        with open(self.servers[0]._ready_file, encoding='utf-8') as file:  # pylint: disable=protected-access
            address = json.load(file)['http']
        with urllib.request.urlopen(f'http://{address}/metrics', timeout=10) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(f'ems_server_kv_events_{name}_total '):
                    return float(line.split()[-1])
        raise AssertionError(f'no metric of {name}')


class Wire:
    """Frames as they are. Ends with the test."""

    def __init__(self, test, cluster, topic=b''):
        self._cluster = cluster
        self.context = zmq.Context()
        self._open = []
        test.addCleanup(self.close)
        self.sub = self.socket(zmq.SUB)
        self.sub.setsockopt(zmq.SUBSCRIBE, topic)
        self.sub.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        self.sub.connect(f'tcp://{cluster.events}')

    def socket(self, kind):
        self._open.append(self.context.socket(kind))
        return self._open[-1]

    def close(self):
        for one in self._open:
            one.close(linger=0)
        self.context.term()

    def next(self):
        """(topic, number, decoded batch)."""
        topic, number, payload = self.sub.recv_multipart()
        assert len(number) == 8, number
        return topic, int.from_bytes(number, 'big'), msgpack.unpackb(payload, strict_map_key=False)

    def event(self, wanted):
        """The first event for which wanted(event) is true."""
        while True:
            batch = self.next()[2]
            for event in batch[1]:
                if wanted(event):
                    return event

    def payload_with(self, text):
        """The first batch that has these bytes, as it came."""
        while True:
            payload = self.sub.recv_multipart()[2]
            if text in payload:
                return payload

    def asker(self, kind=zmq.DEALER):
        asker = self.socket(kind)
        asker.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        asker.connect(f'tcp://{self._cluster.replay}')
        return asker

    def ask(self, start, delimited=False):
        """[(number, decoded batch)] of an answer. `start`: a number, or 8 bytes."""
        asker = self.asker()
        start = start if isinstance(start, bytes) else start.to_bytes(8, 'big')
        asker.send_multipart([b'', start] if delimited else [start])
        answer = []
        while True:
            frames = asker.recv_multipart()
            if delimited:
                assert frames[0] == b'', frames
                frames = frames[1:]
            number, payload = frames
            if number == END:
                assert payload == b'', payload
                asker.close()
                return answer
            answer.append((int.from_bytes(number, 'big'), msgpack.unpackb(payload, strict_map_key=False)))


def blocks_of(answer):
    """{medium: hashes} after applying batches in arrays, as a consumer of the contract does."""
    blocks = {}
    for _, batch in answer:
        for event in batch[1]:
            if event[0] == 'AllBlocksCleared':
                blocks = {}
            elif event[0] == 'BlockStored':
                blocks.setdefault(event[6], set()).update(event[1])
            else:
                blocks.setdefault(event[2], set()).difference_update(event[1])
    return blocks


class EventTest(unittest.TestCase):
    """Starts pools that publish, and follows them."""

    def start(self, *flags, **more):
        cluster = EventCluster(*flags, **more)
        cluster.__enter__()
        self.addCleanup(cluster.stop)
        client = ems.Client(cluster.address, timeout=10)
        self.addCleanup(client.close)
        return cluster, client

    def follow(self, cluster, **options):
        follower = Follower(cluster.events, cluster.replay, **options)
        self.addCleanup(follower.close)
        return follower

    def follow_until(self, follower, condition, what):
        def holds():
            follower.poll(0.1)
            return not follower.stale and condition()
        until(holds, 20, what)
