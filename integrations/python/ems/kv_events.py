"""For routers: which blocks a server has, by the events that it publishes. See docs/engines/KV_EVENTS.md.

Needs pyzmq and msgpack (Debian: python3-zmq, python3-msgpack); BlockNames also xxhash (python3-xxhash). None is imported
before it is used.
"""
import collections
import importlib
import math
import time

from ems import _ems
from ems.engine_queue import DOMAIN_FIELDS

STATE_NOW = END_OF_ANSWER = 2**64 - 1
MEDIA = ('EMS_DRAM', 'EMS_SSD')
AHEAD_MAX = 1000  # batches that a Follower keeps while it waits for what comes before them
PAUSE = 0.1       # seconds after an answer that was none
PACKAGES = {'zmq': 'python3-zmq (Debian) or pyzmq', 'msgpack': 'python3-msgpack (Debian) or msgpack',
            'xxhash': 'python3-xxhash (Debian) or xxhash'}


def _needed(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f'ems.kv_events needs the module {name}: install {PACKAGES[name]}', name=name) from error


class BlockNames:
    """From what an engine calls a block to what events call it. Thread-safe; talks to nobody.

    domain: that of the seat that stores, as its page in docs/engines says; model and so on, as ems.ContextCache's.
    """

    def __init__(self, **domain):
        self._hasher = _ems.BlockHasher(**{**DOMAIN_FIELDS, **domain})

    def of_name(self, name):
        """name: the engine's hash or key of a block, bytes or str. 16 bytes."""
        return self.of_key(self._hasher.own_key(name))

    def of_tokens(self, tokens, parent=b''):
        """Those of the full blocks of `tokens`, where EMS hashes tokens itself."""
        return [self.of_key(key) for key in self._hasher.hash_tokens(tokens, parent)]

    @staticmethod
    def of_key(key):
        """key: of an object in the pool, bytes or str."""
        return _needed('xxhash').xxh3_128(key if isinstance(key, bytes) else key.encode()).digest()


def decode(payload):
    """[(name of the event, its hashes, its medium)] of one batch, in either encoding; what else is in it is passed over."""
    batch = _needed('msgpack').unpackb(payload, strict_map_key=False)
    events = batch['events'] if isinstance(batch, dict) else batch[1]
    result = []
    for event in events:
        if isinstance(event, dict):
            result.append((event['type'], event.get('block_hashes', []), event.get('medium')))
        else:
            where = {'BlockStored': 6, 'BlockRemoved': 2}.get(event[0], len(event))
            result.append((event[0], event[1] if len(event) > 1 else [], event[where] if len(event) > where else None))
    return result


class Follower:
    """What one server has. One thread.

    events, replay: host:port of kv_events.listen and kv_events.replay_listen; '' for the latter if nobody can ask there.
    `blocks` maps EMS_DRAM and EMS_SSD to sets of hashes; it is right as of the last batch unless `stale`: then some was missed
    and nobody has told yet. Without `replay` it stays stale, and knows what came since the last gap.
    """

    def __init__(self, events, replay, topic='', patience=2.0):
        """patience: of seconds without a message, after which an answer is given up and asked for again."""
        self._zmq = zmq = _needed('zmq')
        self._context = zmq.Context()
        self._replay, self._patience = replay, patience
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self._socket.connect(f'tcp://{events}')
        self.blocks = {medium: set() for medium in MEDIA}
        self.last = None    # the newest batch that is in `blocks`
        self._heard = None  # the newest that came on the stream
        self._ahead = collections.deque()  # batches from the stream that are not in `blocks` yet
        self._asking = None
        self._ask_at = 0.0  # of time.monotonic(), not before
        self.stale = True
        self.states = 0     # times that the present state was asked for and told
        self.heard_at = None  # of time.monotonic(): a server that has been quiet for several heartbeats is gone

    def poll(self, seconds):
        """Takes in what has come. How many batches came on the stream.

        Waits `seconds` at most, in all: for a batch, and while something was missed for the answer. One that has not come by
        then is taken in by a later call; so poll(0) never waits.
        """
        until, count = time.monotonic() + seconds, 0
        while True:
            count += self._listen()
            if self._asking is not None:
                self._hear()
            self._take_in()
            left = until - time.monotonic()
            if left <= 0 or (count and self._asking is None):
                return count
            self._wait(left)

    def has(self, block):
        """EMS_DRAM, EMS_SSD or None."""
        return next((medium for medium in MEDIA if block in self.blocks[medium]), None)

    def _wait(self, seconds):
        poller = self._zmq.Poller()
        if len(self._ahead) < AHEAD_MAX:
            poller.register(self._socket, self._zmq.POLLIN)
        if self._asking is not None:
            poller.register(self._asking.dealer, self._zmq.POLLIN)
            seconds = min(seconds, max(self._asking.until - time.monotonic(), 0))
        elif self.stale and self._replay:
            seconds = min(seconds, max(self._ask_at - time.monotonic(), 0))
        poller.poll(math.ceil(seconds * 1000))

    def _listen(self):
        """What has come on the stream goes to _ahead. What is too much stays with ZeroMQ, and beyond that is missed: that shows."""
        count = 0
        while len(self._ahead) < AHEAD_MAX and self._socket.poll(0):
            _, number, payload = self._socket.recv_multipart()
            number = int.from_bytes(number, 'big')
            self.heard_at = time.monotonic()
            count += 1
            if self._heard is not None and number <= self._heard:  # another process, whose clock is behind
                self._ahead.clear()
                self._end_asking()
                self.stale, self.last, self._ask_at = True, None, 0.0
            self._heard = number
            self._ahead.append((number, payload))
        return count

    def _take_in(self):
        """Batches go from _ahead to `blocks`, as far as none is missing before them."""
        while self._ahead and self._asking is None:
            number, payload = self._ahead[0]
            missed = self.last is None or number > self.last + 1
            if self._replay and (missed or self.stale):
                self.stale = True
                break
            self._ahead.popleft()
            if missed:  # and nobody can tell
                self._clear()
            if missed or number > self.last:  # or else an answer had it
                self._apply(payload)
                self.last = number
        if self.stale and self._replay and self._asking is None and time.monotonic() >= self._ask_at:
            self._asking = _Asking(self._zmq, self._context, self._replay, STATE_NOW if self.last is None else self.last + 1,
                                   self._patience)

    def _hear(self):
        """What has come of the answer. It counts when it is whole; else it is asked for again, a little later."""
        asking = self._asking
        if not asking.hear():
            if time.monotonic() < asking.until:
                return
            asking.answer.clear()  # in part
        self._end_asking()
        answer = asking.answer
        if not answer or (answer[0][0] != asking.start and decode(answer[0][1])[:1] != [('AllBlocksCleared', [], None)]):
            self._ahead.clear()  # the next answer has them
            self._ask_at = time.monotonic() + PAUSE
            return
        self.states += answer[0][0] != asking.start
        for number, payload in answer:
            self._apply(payload)
            self.last = number
        self.stale = False

    def _end_asking(self):
        if self._asking is not None:
            self._asking.dealer.close()
            self._asking = None

    def _apply(self, payload):
        for name, hashes, medium in decode(payload):
            if name == 'AllBlocksCleared':
                self._clear()
            elif medium in self.blocks:
                (self.blocks[medium].update if name == 'BlockStored' else self.blocks[medium].difference_update)(hashes)

    def _clear(self):
        for blocks in self.blocks.values():
            blocks.clear()

    def close(self):
        self._context.destroy(linger=0)


class _Asking:
    """One request for what was missed, and what has come of its answer."""

    def __init__(self, zmq, context, replay, start, patience):
        self.start, self._patience = start, patience
        self.until = time.monotonic() + patience
        self.answer = []  # (number, payload)
        self.dealer = context.socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.LINGER, 0)
        self.dealer.setsockopt(zmq.RCVHWM, 0)  # `answer` keeps all of it anyway; the server does not wait for who polls seldom
        self.dealer.connect(f'tcp://{replay}')
        self.dealer.send(start.to_bytes(8, 'big'))

    def hear(self):
        """Does not wait. True: that was all."""
        for _ in range(AHEAD_MAX):
            if not self.dealer.poll(0):
                break
            number, payload = self.dealer.recv_multipart()
            self.until = time.monotonic() + self._patience
            if int.from_bytes(number, 'big') == END_OF_ANSWER:
                return True
            self.answer.append((int.from_bytes(number, 'big'), payload))
        return False
