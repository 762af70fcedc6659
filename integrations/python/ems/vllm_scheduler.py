"""The scheduler's half of vLLM's connector: which blocks of a prompt are there, and what is to be loaded and saved."""
import collections
import logging
import math
import secrets
import time
from dataclasses import dataclass, field

from ems.engine_queue import hasher_of
from ems.vllm_staging import Staging
from ems.vllm_step import Step, Transfer

log = logging.getLogger('ems')
HASHERS_MAX = 256
NULL_BLOCK = 0  # of vLLM: stands for a block that is not there
LOOK_EVERY = 50e-6  # seconds


class BlockNames:
    """Names of the blocks of prompts; equal only for equal tokens from the start, and the same LoRA and salt."""

    def __init__(self, block_tokens):
        self._block_tokens = block_tokens
        self._hashers = collections.OrderedDict()
        self._since = []  # of the last reset(), a field that no other engine has

    def of(self, request):
        """One for each full block but what holds the last token, which has to be computed. Empty: not to be cached."""
        tokens = request.prompt_token_ids
        # What else its KV depends on is not in the tokens.
        if tokens is None or any(getattr(request, what, None) for what in ('mm_features', 'mm_inputs', 'mm_hashes')) or \
                getattr(request, 'prompt_embeds', None) is not None:
            return []
        lora = getattr(request, 'lora_request', None)
        hasher = self._hasher('' if lora is None else str(lora.lora_name), str(getattr(lora, 'lora_path', None) or ''),
                              str(getattr(request, 'cache_salt', None) or ''))
        whole = (len(tokens) - 1) // self._block_tokens * self._block_tokens
        return hasher.hash_tokens(list(tokens[:whole]))

    def _hasher(self, lora, path, salt):
        if (lora, path, salt) not in self._hashers:
            if len(self._hashers) >= HASHERS_MAX:
                self._hashers.popitem(last=False)
            custom = [('lora_path', path)] * bool(path) + self._since
            self._hashers[lora, path, salt] = hasher_of(
                {'model': 'vllm', 'lora': lora, 'cache_salt': salt, 'custom': custom}, self._block_tokens)
        return self._hashers[lora, path, salt]

    def reset(self):
        """From now on no name is one that was given before, by this engine or another."""
        self._since = [('reset', secrets.token_hex(16))]
        self._hashers.clear()


@dataclass
class _Request:
    names: list
    batch: int = 0             # under way; 0: none
    asked_from: int = -1       # first block that was asked for
    found: int = -1            # blocks there from asked_from on; -1: not known
    block_ids: list = field(default_factory=list)
    cached: int = -1           # leading blocks that vLLM has itself, until it has given the request the others; -1: not known
    held: int = 0              # leading blocks that need no saving: loaded, or saved
    unsure: list = field(default_factory=list)  # (step, held before it) of saves that may yet be void

    def void(self, invalid):
        """A load failed, on some worker: from the first bad block on, and of the last steps, all is to be saved again."""
        bad = _first(self.block_ids, invalid)
        self.held = min([self.held, bad, *(held for _, held in self.unsure)])
        self.unsure = []


def _first(block_ids, blocks):
    """Where the first of `blocks` is; behind the end: nowhere."""
    return next((at for at, block in enumerate(block_ids) if block in blocks), len(block_ids))


class SchedulerHalf:
    """Threading: vLLM's scheduler thread. Calls take microseconds and lookup_wait at most, whatever the pool does."""

    def __init__(self, settings, block_bytes):
        """block_bytes: of a block in a worker; only used where there are several. 0: vLLM does not say."""
        self._settings = settings
        self._names = BlockNames(settings.block_tokens)
        self._keys = None  # for each worker, how it names its parts of blocks, when their layouts are known
        if 'layout' in settings.extra:
            self.set_layout([(pp_rank, tp_rank, str(settings.extra['layout']))
                             for pp_rank in range(settings.pp_size) for tp_rank in range(settings.tp_size)])
        self._block_tokens = settings.block_tokens
        self._lookup_wait = float(settings.extra.get('lookup_wait', 0.0005))
        self._queue = settings.queue()
        self._requests = {}
        self._asked = {}  # batch → (request id, how the workers name their parts that it asks for)
        self._loads = Transfer()
        self._step = self._heard = self._void = 0
        self._lost = set()  # blocks that did not arrive, and those that were computed on one: until they are computed or loaded
        self._ended = collections.deque()  # (step, block ids) of requests that ended, while a step up to it is not heard of
        # Steps that vLLM plans before it looks at the output of the first: one for each stage, and with asynchronous
        # scheduling one more.
        self._ahead = settings.pp_size + 2
        blocks_max = math.inf  # one worker knows best what it has under way
        if settings.workers > 1:
            blocks_max = settings.staging_bytes // block_bytes if block_bytes else 0
            if not blocks_max:
                log.warning('nothing is saved: blocks have %d bytes (0: this vLLM does not say), staging_bytes are %d', block_bytes,
                            settings.staging_bytes)
        self._staging = Staging(blocks_max, self._ahead, settings.timeout)
        self._room = 0  # blocks that this step may save
        self._has_told = False  # that staging_bytes are too few

    def set_layout(self, workers):
        """workers: [(pp rank, tp rank, layout)] of those that there are. A block is there if the parts of all of them are."""
        if not self._keys and workers:
            self._keys = [self._settings.keys(layout, tp_rank, pp_rank) for pp_rank, tp_rank, layout in workers]

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        """(tokens that can be loaded behind the computed ones, False), or (None, False): ask again."""
        state = self._state(request)
        state.cached = num_computed_tokens // self._block_tokens
        if getattr(request, 'skip_reading_prefix_cache', False):
            return 0, False  # it wants something of each position of the prompt, as log probabilities
        if self._keys is None:
            log.warning('nothing is loaded: nobody says how the workers lay out their blocks, as beside other connectors '
                        '(MultiConnector) and in a vLLM without get_handshake_metadata; give a `layout` (docs/engines/VLLM.md)')
            self._keys = False
        first = num_computed_tokens // self._block_tokens
        if num_computed_tokens % self._block_tokens or first >= len(state.names) or not self._keys:
            return 0, False
        self._drain()
        if state.asked_from != first:
            state.asked_from, state.found = first, -1
            self._ask(request.request_id, state, state.names[first:], self._keys[:1])
            # Where the pool does not answer at once, one request has waited, and the others need not.
            until = time.monotonic() + (self._lookup_wait if len(self._asked) == 1 else 0)
            self._drain()
            while state.batch and time.monotonic() < until:
                time.sleep(LOOK_EVERY)  # poll(2) counts in milliseconds
                self._drain()
        return (None if state.batch else state.found * self._block_tokens), False

    def _ask(self, request_id, state, names, workers):
        parts = zip(*(keys(names) for keys in workers))
        state.batch = self._queue.submit('exists', [key for block in parts for key in block], hashed=True)
        self._asked[state.batch] = request_id, workers

    def _drain(self):
        """Of what the first worker has the others are asked."""
        for batch, _, _, done in self._queue.drain():
            request_id, workers = self._asked.pop(batch, (None, []))
            state = self._requests.get(request_id)
            if state is None or state.batch != batch:
                continue
            parts = done.index(False) if False in done else len(done)
            state.batch, state.found = 0, parts // len(workers)
            others = self._keys[1:]
            if state.found and others and workers != others:
                self._ask(request_id, state, state.names[state.asked_from:][:state.found], others)

    def _state(self, request):
        if request.request_id not in self._requests:
            self._requests[request.request_id] = _Request(self._names.of(request))
        return self._requests[request.request_id]

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        state = self._state(request)
        first, count = state.asked_from, -(-num_external_tokens // self._block_tokens)
        state.asked_from = -1  # what was found is used: the next question, after a preemption, goes to the pool
        if count > 0 and first >= 0:
            ids = list(blocks.get_block_ids()[0])
            self._loads.extend(state.names[first:first + count], ids[first:first + count])
            state.held = max(state.held, first + count)
        if self._lost and state.cached >= 0:  # whatever is in the others is loaded, by this connector or another, or computed
            self._lost.difference_update(list(blocks.get_block_ids()[0])[state.cached:])
        state.cached = -1

    def build_metadata(self, output):
        """The Step; what was to be loaded is handed over once."""
        self._step += 1
        self._heard = max(self._heard, self._step - self._ahead)
        while self._ended and self._ended[0][0] <= self._heard:
            self._ended.popleft()
        loads, self._loads = self._loads, Transfer()
        saves, self._room, parts = Transfer(), self._staging.room(self._heard), []
        for state in self._requests.values():
            state.unsure = [one for one in state.unsure if one[0] > self._heard]
        for new in output.scheduled_new_reqs:
            state = self._requests.get(new.req_id)
            if state is None:
                continue
            state.block_ids = list(new.block_ids[0])
            computed = new.num_computed_tokens + output.num_scheduled_tokens[new.req_id]
            parts.append((state.block_ids, new.num_computed_tokens, computed))
            self._save(state, computed, saves)
        cached = output.scheduled_cached_reqs
        resumed = getattr(cached, 'resumed_req_ids', ())
        for at, req_id in enumerate(cached.req_ids):
            state = self._requests.get(req_id)
            if state is None:
                continue
            more = cached.new_block_ids[at]
            again = req_id in resumed or (getattr(cached, 'resumed_from_preemption', None) or [False] * (at + 1))[at]
            state.block_ids = ([] if again else state.block_ids) + (list(more[0]) if more else [])
            computed = cached.num_computed_tokens[at] + output.num_scheduled_tokens[req_id]
            parts.append((state.block_ids, cached.num_computed_tokens[at], computed))
            self._save(state, computed, saves)
        self._staging.take(self._step, len(saves.names))
        return Step(self._step, self._heard, self._void, loads, saves, self._lost_of(parts))

    def _lost_of(self, parts):
        """Blocks that a step takes for computed, and are not. parts: (block ids, first token, behind the last) of its requests.

        Those that stand on no such block compute theirs, on which others of the same step may stand.
        """
        while self._lost:
            wrong = [part for part in parts if not self._lost.isdisjoint(self._blocks(part[0], 0, part[1]))]
            for block_ids, begin, end in parts:
                if (block_ids, begin, end) not in wrong:
                    self._lost.difference_update(self._blocks(block_ids, begin, end))
            if len(wrong) == len(parts):
                return [block for block_ids, begin, _ in wrong for block in self._blocks(block_ids, 0, begin) if block in self._lost]
            parts = wrong
        return []

    def _blocks(self, block_ids, begin, end):
        """Those that begin among these tokens."""
        return block_ids[-(-begin // self._block_tokens):-(-end // self._block_tokens)]

    def update_output(self, invalid):
        """A step's output is there, in their order. invalid: blocks of which some worker said that they did not arrive."""
        self._heard = min(self._heard + 1, self._step)
        if invalid:
            invalid, self._void = set(invalid), self._step
            self._lost |= invalid
            for state in self._requests.values():
                state.void(invalid)
            for block_ids in [state.block_ids for state in self._requests.values()] + [ids for _, ids in self._ended]:
                self._lost.update(block_ids[_first(block_ids, invalid):])
            self._lost.discard(NULL_BLOCK)

    def _save(self, state, computed_tokens, saves):
        whole = min(computed_tokens // self._block_tokens, len(state.names), len(state.block_ids))
        end = min(whole, state.held + self._room - len(saves.names))
        if end < whole and not self._has_told:
            self._has_told = True
            log.warning('blocks wait to be saved until others are, and are not when their request ends before: staging_bytes '
                        '(%d) are full; give more of it', self._settings.staging_bytes)
        if end > state.held:
            real = [at for at in range(state.held, end) if state.block_ids[at] != NULL_BLOCK]
            saves.extend([state.names[at] for at in real], [state.block_ids[at] for at in real])
            state.unsure.append((self._step, state.held))
            state.held = end

    def request_finished(self, request, block_ids):
        """vLLM may have its blocks back: saves read copies."""
        state = self._requests.pop(request.request_id, None)
        if state is not None and state.block_ids:
            self._ended.append((self._step, state.block_ids))
        return False, None

    def reset_cache(self):
        """Blocks from before are neither loaded nor taken for new ones; what the requests that there are hold is not saved."""
        self._names.reset()
        for state in self._requests.values():
            state.names, state.asked_from, state.found = [], -1, -1

    def close(self):
        self._queue.close()
