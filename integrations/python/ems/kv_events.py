"""For routers: which blocks a server has, by the events that it publishes. See docs/engines/KV_EVENTS.md.

Needs pyzmq and msgpack (Debian: python3-zmq, python3-msgpack); BlockNames also xxhash (python3-xxhash). None is imported
before it is used.
"""
import collections
import importlib
import math
import time
from types import SimpleNamespace

from ems import _ems
from ems.engine_queue import DOMAIN_FIELDS

STATE_NOW = END_OF_ANSWER = 2**64 - 1
MEDIA = ('EMS_DRAM', 'EMS_SSD')
AHEAD_MAX = 1000  # batches that a Follower keeps while it waits for what comes before them
PAUSE = 0.1       # seconds after an answer that was none, or a message that cannot be read
WORK = 0.005      # seconds
PING_MS, GONE_MS = 1000, 5000  # a connection on which nothing comes, not even an answer to a ping, is replaced
CLEARED = ('AllBlocksCleared', [], None)
EVENTS = {'BlockStored': 6, 'BlockRemoved': 2, CLEARED[0]: None}  # and where the medium is in arrays
PACKAGES = {'zmq': 'python3-zmq (Debian) or pyzmq', 'msgpack': 'python3-msgpack (Debian) or msgpack',
            'xxhash': 'python3-xxhash (Debian) or xxhash'}


def _needed(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f'ems.kv_events needs the module {name}: install {PACKAGES[name]}', name=name) from error


class BlockNames:
    """From what an engine calls a block to what events call it. Thread-safe; talks to nobody.

    domain: that of the connector that stores, as docs/engines/KV_EVENTS.md says; model and so on, as ems.ContextCache's.
    """

    def __init__(self, **domain):
        domain = {**DOMAIN_FIELDS, **domain}
        self._hasher = _ems.BlockHasher(**domain)
        self._block_tokens = domain['block_tokens']
        self._prompts = None

    def of_name(self, name):
        """name: the engine's hash or key of a block, bytes or str. 16 bytes."""
        return self.of_key(self._hasher.own_key(name))

    def of_tokens(self, tokens, parent=b''):
        """Those of the full blocks of `tokens`, where EMS hashes tokens itself."""
        return [self.of_key(key) for key in self._hasher.hash_tokens(tokens, parent)]

    def of_prompt(self, tokens, lora_request=None, cache_salt=None):
        """Those of the full blocks of `tokens`, as vLLM's connector stores them.

        lora_request, cache_salt: as vLLM's Request has them; the connector hashes prompts with them before its domain.
        """
        if self._prompts is None:
            from ems import vllm_scheduler  # pylint: disable=import-outside-toplevel
            self._prompts = vllm_scheduler.BlockNames(self._block_tokens)
        # One token more: of a prompt the connector leaves out the block that has the last, which vLLM computes anyway.
        prompt = SimpleNamespace(prompt_token_ids=[*tokens, 0], lora_request=lora_request, cache_salt=cache_salt)
        return [self.of_name(name) for name in self._prompts.of(prompt)]

    @staticmethod
    def of_key(key):
        """key: of an object in the pool, bytes or str."""
        return _needed('xxhash').xxh3_128(key if isinstance(key, bytes) else key.encode()).digest()


def decode(payload):
    """[(name of the event, its hashes, its medium)] of one batch, in either encoding; what else is in it is passed over.

    Also of a batch that is a map, as servers published it once.
    Raises ValueError for what is no batch.
    """
    msgpack = _needed('msgpack')
    try:
        batch = msgpack.unpackb(payload, strict_map_key=False)
        events = batch['events'] if isinstance(batch, dict) else batch[1]
        return [_fields(event) for event in events if _name(event) in EVENTS]
    except Exception as error:  # msgpack's are of many kinds
        raise ValueError(f'no batch of events: {error!r}') from error


def _name(event):
    return event['type'] if isinstance(event, dict) else event[0]


def _fields(event):
    name = _name(event)
    if name == CLEARED[0]:
        return CLEARED
    if isinstance(event, dict):
        hashes, medium = event['block_hashes'], event.get('medium')
    else:
        where = EVENTS[name]
        hashes, medium = event[1], event[where] if len(event) > where else None
    if not isinstance(hashes, list) or not set(map(type, hashes)) <= {bytes, int} or not isinstance(medium, (str, type(None))):
        raise ValueError(name)
    return name, hashes, medium


class Follower:
    """What one server has. One thread. What comes from the network never raises: what is not of the format is counted.

    events, replay: host:port of kv_events.listen and kv_events.replay_listen; '' for the latter if nobody can ask there.
    `blocks` maps EMS_DRAM and EMS_SSD to sets of hashes; it is right as of the batch `last` unless `stale`. Without `replay` it
    stays stale, and knows what came since the last gap.
    """

    def __init__(self, events, replay, topic='', patience=2.0, quiet=5.0):
        """patience: of seconds without a message, after which an answer is abandoned and asked for again.

        quiet: of seconds without a batch, after which it is stale: several of the server's kv_events.heartbeat_ms. math.inf for
        one that publishes no heartbeats: that it is gone is not noticed then.
        """
        self._zmq = zmq = _needed('zmq')
        _needed('msgpack')
        self._context = zmq.Context()
        self._replay, self._patience, self._quiet = replay, patience, quiet
        self._socket = self._context.socket(zmq.SUB)
        for option, value in ((zmq.LINGER, 0), (zmq.SUBSCRIBE, topic.encode()), (zmq.CONNECT_TIMEOUT, GONE_MS),
                              (zmq.HANDSHAKE_IVL, GONE_MS), (zmq.HEARTBEAT_IVL, PING_MS), (zmq.HEARTBEAT_TIMEOUT, GONE_MS)):
            self._socket.setsockopt(option, value)
        self._socket.connect(f'tcp://{events}')
        self.blocks = _nothing()
        self.last = None      # the newest batch that is in `blocks`
        self.states = 0       # times that the present state was asked for and told
        self.foreign = 0      # messages, and answers, that were not of the format
        self.heard_at = None  # of time.monotonic(): the last batch came then, or a little later
        self._missed = True   # something, and nobody has told yet
        self._as_of = None    # heard_at of the newest batch of the stream that `blocks` goes up to
        self._looked_at = time.monotonic()  # and nothing was waiting
        self._heard = None    # the number of the newest batch on the stream
        self._ahead = collections.deque()  # (number, heard_at, payload) from the stream that are not in `blocks` yet
        self._asking = None
        self._ask_at = 0.0    # of time.monotonic(), not before
        self._asked_at = 0.0  # the last time

    @property
    def stale(self):
        """Whether `blocks` may be wrong: nothing has come on the stream, or nothing for `quiet`, or something was missed.

        Then it is what was right before, as far as that is known.
        """
        return self._missed or self._as_of is None or time.monotonic() - self._as_of > self._quiet

    def poll(self, seconds):
        """Takes in what has come. How many batches came on the stream.

        Waits `seconds` at most, in all: for a batch, and while something was missed for the answer. One that has not come by
        then is taken in by a later call; so poll(0) never waits. What there is to compute is left to later calls after
        `seconds`, or WORK if that is longer: a batch takes a third of a millisecond, and a large state has a thousand.
        """
        begun, count = time.monotonic(), 0
        until, work_until = begun + seconds, begun + max(seconds, WORK)
        while True:
            count += self._listen(work_until)
            if self._asking is not None:
                self._hear(work_until)
            self._take_in(work_until)
            left = until - time.monotonic()
            if left <= 0 or (count and self._asking is None):
                return count
            self._wait(left)

    def has(self, block):
        """EMS_DRAM, EMS_SSD or None. block: 16 bytes, or a number as a server with block_hash: int64 publishes them.

        16 bytes are found with either kind of server.
        """
        number = int.from_bytes(block[-8:], 'big') if isinstance(block, bytes) else block
        return next((medium for medium in MEDIA if block in self.blocks[medium] or number in self.blocks[medium]), None)

    def _wait(self, seconds):
        poller = self._zmq.Poller()
        if len(self._ahead) < AHEAD_MAX:
            poller.register(self._socket, self._zmq.POLLIN)
        if self._asking is not None:
            poller.register(self._asking.dealer, self._zmq.POLLIN)
            seconds = min(seconds, max(self._asking.until - time.monotonic(), 0))
        elif self._missed and self._replay:
            seconds = min(seconds, max(self._ask_at - time.monotonic(), 0))
        poller.poll(math.ceil(seconds * 1000))

    def _listen(self, until):
        """What has come on the stream goes to _ahead. What is too much stays with ZeroMQ, and beyond that is missed: that shows."""
        count = 0
        while len(self._ahead) < AHEAD_MAX:
            if not self._socket.poll(0):
                self._looked_at = time.monotonic()
                break
            frames = self._socket.recv_multipart()
            if len(frames) == 3 and len(frames[1]) == 8:
                self._came(int.from_bytes(frames[1], 'big'), frames[2])
                count += 1
            else:
                self.foreign += 1
            if time.monotonic() >= until:
                break
        return count

    def _came(self, number, payload):
        self.heard_at = self._looked_at  # since then; not now: a caller that polls seldom must not take what is old for new
        if self._heard is not None and number <= self._heard:  # another process, whose clock is behind
            self._forget()
            self._ask_at = self._asked_at + PAUSE
        self._heard = number
        self._ahead.append((number, self.heard_at, payload))

    def _take_in(self, until):
        """Batches go from _ahead to `blocks`, as far as none is missing before them."""
        while self._ahead and self._asking is None:
            number, heard_at, payload = self._ahead[0]
            missed = self.last is None or number > self.last + 1
            if self._replay and (missed or self._missed):
                self._missed = True
                break
            self._ahead.popleft()
            if missed or number > self.last:  # or else an answer had it
                try:
                    events = decode(payload)
                except ValueError:
                    self._start_over()
                    break
                if missed:  # and nobody can tell
                    self.blocks.update(_nothing())
                _apply(events, self.blocks)
                self.last = number
            if number == self.last:
                self._as_of = heard_at
            if time.monotonic() >= until:
                break
        if self._missed and self._replay and self._asking is None and time.monotonic() >= self._ask_at:
            self._asked_at = time.monotonic()
            self._asking = _Asking(self._zmq, self._context, self._replay, STATE_NOW if self.last is None else self.last + 1,
                                   self._patience)

    def _hear(self, until):
        """What has come of the answer. What was missed counts as it comes, a state when it is whole."""
        asking = self._asking
        try:
            while asking.dealer.poll(0):
                number, events = asking.next()
                if number == END_OF_ANSWER:
                    self._was_answered(asking)
                    return
                self._take_answer(asking, number, events)
                if time.monotonic() >= until:
                    return
        except ValueError:
            self._start_over()
            return
        if time.monotonic() >= asking.until:
            self._ask_again()

    def _take_answer(self, asking, number, events):
        if events[:1] == [CLEARED]:
            asking.state, asking.last = _nothing(), number
        if asking.state is not None:
            if number not in (asking.last, asking.last + 1):
                raise ValueError(number)
            _apply(events, asking.state)
            asking.last = number
        elif self.last is not None and number == self.last + 1:
            _apply(events, self.blocks)
            asking.last = self.last = number
        else:
            raise ValueError(number)

    def _was_answered(self, asking):
        if asking.last is None:  # the server was busy
            self._ask_again()
            return
        self._end_asking()
        if asking.state is not None:
            self.blocks.update(asking.state)
            self.last = asking.last
            self.states += 1
        self._missed = False

    def _ask_again(self):
        """A little later. The next answer has what waits in _ahead."""
        self._end_asking()
        self._ahead.clear()
        self._ask_at = time.monotonic() + PAUSE

    def _start_over(self):
        """Something came that cannot be read: as if it had been missed, and what not, is not known."""
        self.foreign += 1
        self._forget()
        self._ask_at = time.monotonic() + PAUSE

    def _forget(self):
        self._end_asking()
        self._ahead.clear()
        self._missed, self.last, self._as_of = True, None, None

    def _end_asking(self):
        if self._asking is not None:
            self._asking.dealer.close()
            self._asking = None

    def close(self):
        self._context.destroy(linger=0)


def _nothing():
    return {medium: set() for medium in MEDIA}


def _apply(events, blocks):
    for name, hashes, medium in events:
        if name == CLEARED[0]:
            for one in blocks.values():
                one.clear()
        elif medium in blocks:
            (blocks[medium].update if name == 'BlockStored' else blocks[medium].difference_update)(hashes)


class _Asking:
    """One request for what was missed, and what has come of its answer."""

    def __init__(self, zmq, context, replay, start, patience):
        self._patience = patience
        self.until = time.monotonic() + patience
        self.state = None  # the answer is one: `blocks` as of `last`
        self.last = None   # the newest batch of the answer
        self.dealer = context.socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.LINGER, 0)
        self.dealer.setsockopt(zmq.RCVHWM, 0)  # all of it is taken in anyway; the server does not wait for who polls seldom
        self.dealer.connect(f'tcp://{replay}')
        self.dealer.send(start.to_bytes(8, 'big'))

    def next(self):
        """(number, events) of what waits there. Raises ValueError for what is no part of an answer."""
        self.until = time.monotonic() + self._patience
        frames = self.dealer.recv_multipart()
        if len(frames) != 2 or len(frames[0]) != 8:
            raise ValueError('frames')
        number = int.from_bytes(frames[0], 'big')
        return number, [] if number == END_OF_ANSWER else decode(frames[1])
