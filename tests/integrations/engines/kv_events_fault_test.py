"""KV events when daemons end, subscribers stand still and others talk to their ports."""
import os
import socket
import subprocess
import tempfile
import threading
import unittest

import zmq
from event_peer import EventTest, Wire, block, free_port
from harness import filled, until

import ems
from ems.kv_events import Follower

from cluster import BIN

MIB = 1 << 20


class KvEventsFaultTest(EventTest):
    @staticmethod
    def present(client, keys):
        return {block(key) for key, there in zip(keys, client.multi_exists(keys, timeout=10)) if there is True}

    def test_a_restart_is_seen_and_what_was_in_memory_is_gone(self):
        cluster, client = self.start()
        follower = self.follow(cluster)
        client.put('a', b'1' * 1000)
        self.follow_until(follower, lambda: follower.has(block('a')), 'stored')
        before = follower.last
        cluster.kill_servers()
        cluster.start_servers()
        self.follow_until(follower, lambda: follower.last > before + 1000, 'another process publishes')
        self.assertIsNone(follower.has(block('a')))
        until(lambda: self.put(client, 'b'), 20, 'the pool answers again')
        self.follow_until(follower, lambda: follower.blocks['EMS_DRAM'] == {block('b')}, 'and is followed')

    @staticmethod
    def put(client, key):
        try:
            client.put(key, filled(key, 1000))
            return True
        except ems.errors.Error:
            return False

    def test_a_follower_of_a_dead_server_is_stale_soon(self):
        cluster, client = self.start()
        follower = self.follow(cluster, quiet=1)
        client.put('a', b'1' * 1000)
        self.follow_until(follower, lambda: follower.has(block('a')), 'stored')
        cluster.kill_servers()
        until(lambda: follower.poll(0) == 0 and follower.stale, 10, 'it is taken for gone')

    def test_a_follower_of_another_topic_or_port_is_stale(self):
        cluster, _ = self.start('kv_events.topic=kv@server-1')
        silent = Follower(f'127.0.0.1:{free_port()}', cluster.replay)
        self.addCleanup(silent.close)
        for follower in (self.follow(cluster, topic='kv@server-2'), silent):
            until(lambda: follower.poll(0.1) == 0 and follower.states == 1, 10, 'told')
            follower.poll(0.5)  # five heartbeats
            self.assertTrue(follower.stale)

    def test_a_namespace_that_is_not_there_is_said(self):
        cluster, client = self.start('kv_events.name_space=chat')
        self.log_has(cluster, 'kv_events.name_space: there is no namespace chat, so no events are published')
        follower = self.follow(cluster)
        self.follow_until(follower, lambda: True, 'follows')
        client.put('a', b'1' * 1000)
        subprocess.run([os.path.join(BIN, 'emsctl'), '--controller', cluster.address, 'namespace', 'create', 'chat'],
                       check=True, capture_output=True)
        self.log_has(cluster, 'kv events of namespace chat begin')
        chat = ems.Client(cluster.address, 'chat', timeout=10)
        self.addCleanup(chat.close)
        until(lambda: self.put(chat, 'c'), 20, 'stored')
        self.follow_until(follower, lambda: follower.blocks['EMS_DRAM'] == {block('c')}, 'and published')

    @staticmethod
    def log_has(cluster, line):
        def holds():
            with open(os.path.join(cluster.folder, 'server-0.log'), encoding='utf-8') as log:
                return line in log.read()
        until(holds, 20, line)

    def test_an_address_to_ask_at_without_one_to_publish_on_is_an_error_at_the_start(self):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(
                [os.path.join(BIN, 'mp-server'), '--set', 'name=x', '--set', f'data_dir={folder}/x', '--set', 'listen=127.0.0.1:0',
                 '--set', 'http_listen=', '--set', 'dram.bytes=16MiB', '--set', 'kv_events.replay_listen=127.0.0.1:0'],
                capture_output=True, text=True, timeout=30, check=False)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn('kv_events.listen is empty', run.stderr + run.stdout)

    def test_a_daemon_killed_in_mid_batch_leaves_what_the_pool_says(self):
        cluster, client = self.start('ssd.capacity_bytes=512MiB')
        follower = self.follow(cluster)
        follower.poll(1)
        keys = [f'k{i}' for i in range(200)]
        for key in keys[:10]:  # of the others none may be on the SSD when it is killed
            client.put(key, filled(key, MIB // 2), durability='ssd')
        half = threading.Event()

        def put_all():
            for i, key in enumerate(keys[10:]):
                if i == 50:
                    half.set()
                try:
                    client.put(key, filled(key, MIB // 2), timeout=2)
                except ems.errors.Error:
                    pass  # killed
        writer = threading.Thread(target=put_all)
        writer.start()
        half.wait()
        cluster.kill_servers()
        cluster.start_servers()  # at once: a restart within the lease keeps what the SSD has
        writer.join()
        until(lambda: self.put(client, 'after'), 20, 'the pool answers again')
        keys.append('after')
        self.follow_until(follower, lambda: follower.has(block('after')), 'followed again')
        # With 'after', once the tier is trusted, which may be after the first Put.
        self.follow_until(follower, lambda: len(follower.blocks['EMS_SSD']) > 10, 'a restart keeps what the SSD has, and tells it')
        self.follow_until(follower, lambda: follower.blocks['EMS_DRAM'] | follower.blocks['EMS_SSD'] ==
                          self.present(client, keys), 'what it says is what there is')

    def test_a_subscriber_that_stands_still_costs_nothing_and_catches_up(self):
        cluster, client = self.start('kv_events.waiting_max=2', 'kv_events.batch_ms=1', 'kv_events.replay_batches=10')
        follower = self.follow(cluster)
        wire = Wire(self, cluster)
        wire.sub.close()
        stopped = wire.socket(zmq.SUB)
        stopped.setsockopt(zmq.RCVHWM, 1)
        stopped.setsockopt(zmq.SUBSCRIBE, b'')
        stopped.connect(f'tcp://{cluster.events}')  # never reads
        self.follow_until(follower, lambda: True, 'follows')
        for i in range(50):  # meanwhile the follower does not read either
            errors = client.multi_put([(f'k{i}-{j}', filled(j, 64)) for j in range(200)])
            self.assertEqual([error for error in errors if error is not None], [])
        expected = {block(f'k{i}-{j}') for i in range(50) for j in range(200)}
        self.follow_until(follower, lambda: follower.blocks['EMS_DRAM'] == expected, 'all of it is known in the end')

    def test_lost_events_show_as_a_gap_and_the_state_tells_them(self):
        cluster, client = self.start('kv_events.queue_events=64', 'kv_events.batch_ms=1000')
        follower = self.follow(cluster)
        self.follow_until(follower, lambda: True, 'follows')
        keys = [f'k{i}' for i in range(1000)]
        client.multi_put([(key, filled(key, 100)) for key in keys])
        names = {block(key) for key in keys}
        self.follow_until(follower, lambda: follower.blocks['EMS_DRAM'] == names, 'all of it is known in the end')
        self.assertGreaterEqual(cluster.metric('gaps'), 1)
        # The ring holds 64 each time that it is emptied: for a batch, or for an answer.
        self.assertGreaterEqual(cluster.metric('lost'), 1000 - 64 * 4)
        self.assertGreaterEqual(follower.states, 2)

    def test_foreign_bytes_on_either_port_change_nothing(self):
        cluster, client = self.start()
        for address in (cluster.events, cluster.replay):
            host, port = address.split(':')
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(os.urandom(4096))
        wire = Wire(self, cluster)
        rude = wire.asker()
        for frames in ([b''], [b'1234567'], [b'x' * 200] * 5, [b'', b'', b'\0' * 8], [b'\0' * 9]):
            rude.send_multipart(frames)
        until(lambda: cluster.metric('foreign') >= 5, 10, 'all are counted')
        rude.send(b'\0' * (1 << 20))  # too large: the connection ends
        client.put('a', b'1' * 1000)
        follower = self.follow(cluster)
        self.follow_until(follower, lambda: follower.has(block('a')), 'others are served')

    def test_a_server_ends_at_once_while_answers_are_not_taken(self):
        cluster, client = self.start()
        wire = Wire(self, cluster)
        for _ in range(40):
            asker = wire.asker()
            asker.send(b'\xff' * 8)  # and never reads
        client.put('a', b'1' * 1000)
        cluster.servers[0].terminate()
        self.assertEqual(cluster.servers[0]._process.returncode, 0)  # pylint: disable=protected-access

    def test_addresses_that_cannot_be_bound_are_errors_at_the_start(self):
        taken = free_port()
        with socket.socket() as holder, tempfile.TemporaryDirectory() as folder:
            holder.bind(('127.0.0.1', taken))
            holder.listen()
            for flag, said in ((f'kv_events.listen=127.0.0.1:{taken}', f'kv_events: cannot listen on 127.0.0.1:{taken}'),
                               ('kv_events.listen=5557', '"kv_events.listen": address "5557" is not host:port'),
                               ('kv_events.listen=localhost:0', 'kv_events: cannot listen on localhost:0')):
                run = subprocess.run(
                    [os.path.join(BIN, 'mp-server'), '--set', 'name=x', '--set', f'data_dir={folder}/x', '--set',
                     'listen=127.0.0.1:0', '--set', 'http_listen=', '--set', 'dram.bytes=16MiB', '--set', flag],
                    capture_output=True, text=True, timeout=30, check=False)
                self.assertNotEqual(run.returncode, 0, flag)
                self.assertIn(said, run.stderr + run.stdout)


if __name__ == '__main__':
    unittest.main()
