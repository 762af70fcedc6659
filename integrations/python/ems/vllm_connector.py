"""EMS as a KV connector of vLLM, without what it is a subclass of: ems.vllm.EmsConnector is that.

The scheduler's half asks the pool which blocks of a prompt are there (exists) before it promises vLLM any; the workers' half
loads and saves them through host memory of its own, so that neither waits on vLLM's buffers. What was promised and did not
arrive is told as a load error, and vLLM computes it.
"""
import collections
import logging
import time
from dataclasses import dataclass, field

import numpy

from ems import _ems, paged_rows
from ems.engine_queue import EngineQueue

log = logging.getLogger('ems')
HASHERS_MAX = 256
LOOK_EVERY = 50e-6  # seconds
_QUEUE_OPTIONS = ('controller', 'namespace', 'timeout', 'start_timeout', 'durability', 'shm_token', 'transport')
_OWN_OPTIONS = ('domain', 'lookup_wait', 'staging_bytes', 'block_dim')


@dataclass
class Transfer:
    """Blocks of a request: names[i] belongs to vLLM's block block_ids[i]."""
    names: list = field(default_factory=list)
    block_ids: list = field(default_factory=list)

    def extend(self, names, block_ids):
        self.names += names
        self.block_ids += block_ids


@dataclass
class Settings:
    """What of vLLM's configuration makes bytes differ, the same in scheduler and workers, and this connector's options."""
    model: str
    dtype: str
    block_tokens: int
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    extra: dict

    @staticmethod
    def of(vllm_config):
        extra = dict(getattr(vllm_config.kv_transfer_config, 'kv_connector_extra_config', None) or {})
        unknown = sorted(set(extra) - set(_QUEUE_OPTIONS) - set(_OWN_OPTIONS))
        if unknown:
            raise ValueError(f'kv_connector_extra_config has {", ".join(unknown)}; known are '
                             f'{", ".join(_QUEUE_OPTIONS + _OWN_OPTIONS)}')
        parallel = vllm_config.parallel_config
        tp_size = int(getattr(parallel, 'tensor_parallel_size', 1))
        rank = int(getattr(parallel, 'rank', 0))
        return Settings(
            model=str(vllm_config.model_config.model),
            dtype=f'{getattr(vllm_config.model_config, "dtype", "")}/{getattr(vllm_config.cache_config, "cache_dtype", "")}',
            block_tokens=int(vllm_config.cache_config.block_size), tp_rank=rank % tp_size, tp_size=tp_size,
            pp_rank=rank // tp_size, pp_size=int(getattr(parallel, 'pipeline_parallel_size', 1)), extra=extra)

    def queue(self, is_worker):
        options = {name: self.extra[name] for name in _QUEUE_OPTIONS if name in self.extra}
        return EngineQueue(
            {'model': self.model, 'dtype': self.dtype, 'tp_rank': self.tp_rank if is_worker else 0, 'tp_size': self.tp_size,
             'pp_rank': self.pp_rank if is_worker else 0, 'pp_size': self.pp_size,
             'custom': [('seat', 'vllm'), ('domain', str(self.extra.get('domain', '')))]},
            block_tokens=self.block_tokens, **{'timeout': 1.0, **options})


class BlockNames:
    """Names of the blocks of prompts; equal only for equal tokens from the start, and the same LoRA and salt."""

    def __init__(self, block_tokens):
        self._block_tokens = block_tokens
        self._hashers = collections.OrderedDict()

    def of(self, request):
        """One for each full block but what holds the last token, which has to be computed. Empty: not to be cached."""
        tokens = request.prompt_token_ids
        # What else its KV depends on is not in the tokens.
        if tokens is None or any(getattr(request, what, None) for what in ('mm_features', 'mm_inputs', 'mm_hashes')) or \
                getattr(request, 'prompt_embeds', None) is not None:
            return []
        lora = getattr(request, 'lora_request', None)
        hasher = self._hasher('' if lora is None else str(lora.lora_name), str(getattr(request, 'cache_salt', None) or ''))
        whole = (len(tokens) - 1) // self._block_tokens * self._block_tokens
        return hasher.hash_tokens(list(tokens[:whole]))

    def _hasher(self, lora, salt):
        if (lora, salt) not in self._hashers:
            if len(self._hashers) >= HASHERS_MAX:
                self._hashers.popitem(last=False)
            self._hashers[lora, salt] = _ems.BlockHasher(
                model='vllm', dtype='', kv_layout='', tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, lora=lora, cache_salt=salt,
                multimodal_hashes=[], custom=[], hash='sha256', block_tokens=self._block_tokens)
        return self._hashers[lora, salt]


@dataclass
class _Request:
    names: list
    batch: int = 0             # under way; 0: none
    asked_from: int = -1       # first block that was asked for
    found: int = -1            # blocks there from asked_from on; -1: not known
    block_ids: list = field(default_factory=list)
    held: int = 0              # leading blocks that need no saving: loaded, or saved


class SchedulerSeat:
    """Threading: vLLM's scheduler thread. Calls take microseconds and lookup_wait at most, whatever the pool does."""

    def __init__(self, settings):
        self._names = BlockNames(settings.block_tokens)
        self._block_tokens = settings.block_tokens
        self._lookup_wait = float(settings.extra.get('lookup_wait', 0.0005))
        self._queue = settings.queue(is_worker=False)
        self._requests = {}
        self._asked = {}  # batch → request id
        self._loads = Transfer()

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        """(tokens that can be loaded behind the computed ones, False), or (None, False): ask again."""
        state = self._state(request)
        first = num_computed_tokens // self._block_tokens
        if num_computed_tokens % self._block_tokens or first >= len(state.names):
            return 0, False
        if state.asked_from != first:
            state.asked_from, state.found = first, -1
            state.batch = self._queue.submit('exists', state.names[first:])
            self._asked[state.batch] = request.request_id
            until = time.monotonic() + self._lookup_wait
            self._drain()
            while state.batch and time.monotonic() < until:
                time.sleep(LOOK_EVERY)  # poll(2) counts in milliseconds
                self._drain()
        else:
            self._drain()
        return (None if state.batch else state.found * self._block_tokens), False

    def _drain(self):
        for batch, _, _, done in self._queue.drain():
            state = self._requests.get(self._asked.pop(batch, None))
            if state is not None and state.batch == batch:
                state.batch, state.found = 0, done.index(False) if False in done else len(done)

    def _state(self, request):
        if request.request_id not in self._requests:
            self._requests[request.request_id] = _Request(self._names.of(request))
        return self._requests[request.request_id]

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens <= 0:
            return
        state = self._state(request)
        first, count = state.asked_from, num_external_tokens // self._block_tokens
        ids = list(blocks.get_block_ids()[0])
        self._loads.extend(state.names[first:first + count], ids[first:first + count])
        state.held = max(state.held, first + count)
        state.asked_from = -1  # what was found is used: whoever asks again, after a preemption, asks the pool

    def build_metadata(self, output):
        """(loads, saves) of this step; what was to be loaded is handed over once."""
        loads, self._loads = self._loads, Transfer()
        saves = Transfer()
        for new in output.scheduled_new_reqs:
            state = self._requests.get(new.req_id)
            if state is None:
                continue
            state.block_ids = list(new.block_ids[0])
            self._save(state, new.num_computed_tokens + output.num_scheduled_tokens[new.req_id], saves)
        cached = output.scheduled_cached_reqs
        resumed = getattr(cached, 'resumed_req_ids', ())
        for at, req_id in enumerate(cached.req_ids):
            state = self._requests.get(req_id)
            if state is None:
                continue
            more = cached.new_block_ids[at]
            again = req_id in resumed or (getattr(cached, 'resumed_from_preemption', None) or [False] * (at + 1))[at]
            state.block_ids = ([] if again else state.block_ids) + (list(more[0]) if more else [])
            self._save(state, cached.num_computed_tokens[at] + output.num_scheduled_tokens[req_id], saves)
        return loads, saves

    def _save(self, state, computed_tokens, saves):
        end = min(computed_tokens // self._block_tokens, len(state.names), len(state.block_ids))
        if end > state.held:
            saves.extend(state.names[state.held:end], state.block_ids[state.held:end])
            state.held = end

    def request_finished(self, request, block_ids):
        """vLLM may have its blocks back: saves read copies."""
        self._requests.pop(request.request_id, None)
        return False, None

    def close(self):
        self._queue.close()


class WorkerSeat:
    """Threading: vLLM's worker thread. Waits for loads that were begun, the queue's timeout at most; never for saves."""

    def __init__(self, settings):
        self._queue = settings.queue(is_worker=True)
        self._timeout = float(settings.extra.get('timeout', 1.0))
        self._staging_bytes = int(settings.extra.get('staging_bytes', 256 << 20))
        self._block_dim = settings.extra.get('block_dim')
        self._layers = {}      # name → (tensor, block dimension, offset in a row, bytes)
        self._row = 0
        self._loading = None   # (batch, block ids, rows), then (0, …) when it is over
        self._arrived = []     # indices of rows
        self._errors = set()
        self._saving = None    # (transfer, rows) of this step
        self._under_way = {}   # batch → bytes of a save
        self.skipped_blocks = 0

    def register_kv_caches(self, kv_caches, num_blocks=None):
        """kv_caches: layer name → tensor. A block's bytes are those of all layers, in this order."""
        self._layers, self._row = {}, 0
        for name, tensor in kv_caches.items():
            dim = self._dim_of(tensor, num_blocks) if self._block_dim is None else int(self._block_dim)
            size = paged_rows.row_bytes(tensor, dim)
            self._layers[name] = (tensor, dim, self._row, size)
            self._row += size

    @staticmethod
    def _dim_of(tensor, num_blocks):
        """[blocks, …], or [K and V, blocks, …]."""
        if num_blocks is not None and (tensor.shape[0] == num_blocks) != (tensor.shape[1] == num_blocks):
            return 0 if tensor.shape[0] == num_blocks else 1
        return 1 if len(tensor.shape) == 5 and tensor.shape[0] == 2 else 0

    def start_load(self, loads):
        self._drain()
        self._loading, self._arrived = None, []
        if loads.names:
            rows = numpy.empty((len(loads.names), self._row), numpy.uint8)
            batch = self._queue.submit('get', loads.names, list(rows))
            self._loading = (batch, loads.block_ids, rows)

    def wait_for_layer(self, layer_name):
        """Puts a layer of the blocks that arrived in place; the first one waits for them."""
        if self._loading is None or layer_name not in self._layers:
            return
        self._wait_for_load()
        batch, block_ids, rows = self._loading
        if self._arrived:
            tensor, dim, offset, size = self._layers[layer_name]
            paged_rows.scatter(rows[self._arrived, offset:offset + size], tensor, dim, [block_ids[i] for i in self._arrived])

    def _wait_for_load(self):
        while self._loading is not None and self._loading[0]:
            if not self._queue.wait(self._timeout + 1):  # it is over by then, as each batch; unless the queue is closed
                self._finish_load([False] * len(self._loading[1]))
            self._drain()

    def _finish_load(self, done):
        _, block_ids, rows = self._loading
        self._arrived = [i for i, arrived in enumerate(done) if arrived]
        self._errors.update(block for block, arrived in zip(block_ids, done) if not arrived)
        self._loading = (0, block_ids, rows)

    def _drain(self):
        for batch, _, _, done in self._queue.drain():
            if self._under_way.pop(batch, None) is None and self._loading is not None and self._loading[0] == batch:
                self._finish_load(done)

    def load_errors(self):
        """Blocks of vLLM whose bytes did not arrive since the last call."""
        self._wait_for_load()
        errors, self._errors = self._errors, set()
        return errors

    def begin_saves(self, saves):
        """Room for what this step saves; where too much is under way, it is not saved."""
        self._drain()
        self._saving = None
        if not saves.names:
            return
        if sum(self._under_way.values()) + len(saves.names) * self._row > self._staging_bytes:
            self.skipped_blocks += len(saves.names)
            return
        self._saving = (saves, numpy.empty((len(saves.names), self._row), numpy.uint8))

    def save_layer(self, layer_name):
        if self._saving is None or layer_name not in self._layers:
            return
        saves, rows = self._saving
        tensor, dim, offset, size = self._layers[layer_name]
        paged_rows.gather(tensor, dim, saves.block_ids, rows[:, offset:offset + size])

    def finish_saves(self):
        """Copies are made: the pool gets them behind this."""
        if self._saving is None:
            return
        saves, rows = self._saving
        self._saving = None
        self._under_way[self._queue.submit('set', saves.names, list(rows))] = rows.nbytes

    def close(self):
        self._queue.close()


class ConnectorSeat:
    """KVConnectorBase_V1's methods; `role` says which half it is."""

    def _open(self, vllm_config, role, kv_cache_config=None):
        groups = getattr(kv_cache_config, 'kv_cache_groups', None)
        if groups is not None and len(groups) > 1:
            raise ValueError(f'a model with {len(groups)} KV cache groups: EMS takes one; use LMCache with EMS behind it')
        settings = Settings.of(vllm_config)
        self._num_blocks = getattr(kv_cache_config, 'num_blocks', None)
        is_scheduler = str(getattr(role, 'name', role)).upper() == 'SCHEDULER'
        self._scheduler = SchedulerSeat(settings) if is_scheduler else None
        self._worker = None if is_scheduler else WorkerSeat(settings)

    def _metadata_of(self, loads, saves):
        raise NotImplementedError

    def _metadata(self):
        raise NotImplementedError

    # --- Scheduler

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self._scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self._scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        return self._metadata_of(*self._scheduler.build_metadata(scheduler_output))

    def request_finished(self, request, block_ids):
        return self._scheduler.request_finished(request, block_ids)

    # --- Worker

    def register_kv_caches(self, kv_caches):
        self._worker.register_kv_caches(kv_caches, self._num_blocks)

    def start_load_kv(self, forward_context, **kwargs):
        metadata = self._metadata()
        self._worker.start_load(metadata.loads)
        self._worker.begin_saves(metadata.saves)

    def wait_for_layer_load(self, layer_name):
        self._worker.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        self._worker.save_layer(layer_name)

    def wait_for_save(self):
        self._worker.finish_saves()

    def get_block_ids_with_load_errors(self):
        return self._worker.load_errors()

    def get_finished(self, finished_req_ids):
        """Nothing is loaded or saved behind vLLM's back."""
        return None, None

    def shutdown(self):
        (self._scheduler or self._worker).close()
