"""EMS as a KV connector of vLLM, without what it is a subclass of: ems.vllm.EmsConnector is that.

The scheduler's half asks the pool which blocks of a prompt are there (exists) before it promises vLLM any; the workers' half
loads and saves them through host memory of its own. What was promised and did not arrive is told as a load error, and vLLM
computes it.

Wrong KV must not reach the pool: what a step computes may stand on a block that did not arrive, on this worker or, the hidden
states being mixed, on another; and vLLM may have planned the next steps already. So steps have numbers. A worker saves nothing
from its own load error on until the scheduler says that it has heard of it, and of several workers each keeps what it copied
until the scheduler has heard that no worker failed in that step.
"""
import collections
import hashlib
import json
import logging
import sys
import time
from dataclasses import dataclass, field

import numpy

from ems import _ems, paged_rows
from ems.engine_queue import DOMAIN_FIELDS, EngineQueue

log = logging.getLogger('ems')
HASHERS_MAX = 256
NULL_BLOCK = 0  # of vLLM: stands for a block that is not there
LOOK_EVERY = 50e-6  # seconds
LOAD_BYTES = 32 << 20  # at a time: what has arrived when the time is over counts
_QUEUE_OPTIONS = ('controller', 'namespace', 'timeout', 'start_timeout', 'durability', 'shm_token', 'transport')
_OWN_OPTIONS = ('domain', 'layout', 'lookup_wait', 'staging_bytes', 'block_dim')
_MODEL_FIELDS = ('revision', 'quantization', 'hf_config_path', 'hf_overrides', 'rope_scaling', 'rope_theta',
                 'disable_sliding_window', 'override_attention_dtype')  # of vLLM's ModelConfig, where it has them: KV is another with another value


@dataclass
class Transfer:
    """Blocks of a request: names[i] belongs to vLLM's block block_ids[i]."""
    names: list = field(default_factory=list)
    block_ids: list = field(default_factory=list)

    def extend(self, names, block_ids):
        self.names += names
        self.block_ids += block_ids


@dataclass
class Step:
    """What the scheduler tells the workers with each step."""
    number: int = 0   # from 1
    heard: int = 0    # of all steps up to this one the scheduler knows which loads failed
    void: int = 0     # what was saved in steps up to this one, and is still held, is not to be stored
    loads: Transfer = field(default_factory=Transfer)
    saves: Transfer = field(default_factory=Transfer)


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
    custom: list = field(default_factory=list)

    @staticmethod
    def of(vllm_config):
        extra = dict(getattr(vllm_config.kv_transfer_config, 'kv_connector_extra_config', None) or {})
        unknown = sorted(set(extra) - set(_QUEUE_OPTIONS) - set(_OWN_OPTIONS))
        if unknown:
            raise ValueError(f'kv_connector_extra_config has {", ".join(unknown)}; known are '
                             f'{", ".join(_QUEUE_OPTIONS + _OWN_OPTIONS)}')
        parallel, model, cache = vllm_config.parallel_config, vllm_config.model_config, vllm_config.cache_config
        cache_dtype = str(getattr(cache, 'cache_dtype', ''))
        role = str(getattr(vllm_config.kv_transfer_config, 'kv_role', None) or 'kv_both')
        if role != 'kv_both':
            raise ValueError(f'kv_role is {role}: EMS loads and saves in every engine; say kv_both')
        for name in ('decode_context_parallel_size', 'prefill_context_parallel_size'):
            if int(getattr(parallel, name, 1) or 1) > 1:
                raise ValueError(f'{name} is {getattr(parallel, name)}: EMS takes blocks that one rank has whole; use LMCache with '
                                 'EMS behind it')
        if getattr(cache, 'calculate_kv_scales', False) and cache_dtype.startswith('fp8'):
            raise ValueError('calculate_kv_scales: each process finds scales of its own, which its blocks do not carry; use '
                             "the checkpoint's")
        tp_size = int(getattr(parallel, 'tensor_parallel_size', 1))
        rank = int(getattr(parallel, 'rank', 0))
        return Settings(
            model=str(model.model), dtype=f'{getattr(model, "dtype", "")}/{cache_dtype}', block_tokens=int(cache.block_size),
            tp_rank=rank % tp_size, tp_size=tp_size, pp_rank=rank // tp_size,
            pp_size=int(getattr(parallel, 'pipeline_parallel_size', 1)), extra=extra,
            custom=[*((name, _text(getattr(model, name, None))) for name in _MODEL_FIELDS),
                    ('context', _context(model)), ('draft', _draft(vllm_config))])

    def domain(self, layout, tp_rank, pp_rank):
        """Of the blocks of a worker."""
        return {'model': self.model, 'dtype': self.dtype, 'kv_layout': layout, 'tp_rank': tp_rank, 'tp_size': self.tp_size,
                'pp_rank': pp_rank, 'pp_size': self.pp_size, 'block_tokens': self.block_tokens,
                'custom': [('seat', 'vllm'), ('domain', str(self.extra.get('domain', ''))), *self.custom]}

    def keys(self, layout, tp_rank, pp_rank):
        """A function: names of blocks → their keys in the pool."""
        hasher = _ems.BlockHasher(**{**DOMAIN_FIELDS, **self.domain(layout, tp_rank, pp_rank)})
        return lambda names: [hasher.own_key(name) for name in names]

    def queue(self):
        """Takes keys; the layout is known later than it is made."""
        options = {name: self.extra[name] for name in _QUEUE_OPTIONS if name in self.extra}
        return EngineQueue({'model': self.model}, block_tokens=self.block_tokens, **{'timeout': 1.0, **options})


def _context(model):
    """The context's length where KV depends on it: models with two sets of RoPE factors choose one by it."""
    config = getattr(model, 'hf_text_config', None) or getattr(model, 'hf_config', None)
    if config is not None:
        ropes = ' '.join(str(getattr(config, name, '')) for name in ('rope_scaling', 'rope_parameters'))
        if not any(word in ropes for word in ('short_factor', 'long_factor', 'longrope', "'su'")):
            return ''
    return _text(getattr(model, 'max_model_len', None))


def _draft(vllm_config):
    """The model that drafts: its layers are among those whose KV is kept."""
    model = getattr(getattr(vllm_config, 'speculative_config', None), 'draft_model_config', None)
    fields = ('model', 'dtype', *_MODEL_FIELDS) if model is not None else ()
    return '/'.join(_text(getattr(model, name, None)) for name in fields)


def _text(value):
    """Of an option: '' where it is not set, and the same in each process."""
    if not value:
        return ''
    if callable(value):
        return f'{getattr(value, "__module__", "")}.{getattr(value, "__qualname__", type(value).__qualname__)}'
    return json.dumps(value, sort_keys=True, default=_text) if isinstance(value, dict) else str(value)


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
        hasher = self._hasher('' if lora is None else str(lora.lora_name), str(getattr(lora, 'lora_path', None) or ''),
                              str(getattr(request, 'cache_salt', None) or ''))
        whole = (len(tokens) - 1) // self._block_tokens * self._block_tokens
        return hasher.hash_tokens(list(tokens[:whole]))

    def _hasher(self, lora, path, salt):
        if (lora, path, salt) not in self._hashers:
            if len(self._hashers) >= HASHERS_MAX:
                self._hashers.popitem(last=False)
            self._hashers[lora, path, salt] = _ems.BlockHasher(
                model='vllm', dtype='', kv_layout='', tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, lora=lora, cache_salt=salt,
                multimodal_hashes=[], custom=[('lora_path', path)] if path else [], hash='sha256',
                block_tokens=self._block_tokens)
        return self._hashers[lora, path, salt]


@dataclass
class _Request:
    names: list
    batch: int = 0             # under way; 0: none
    asked_from: int = -1       # first block that was asked for
    found: int = -1            # blocks there from asked_from on; -1: not known
    block_ids: list = field(default_factory=list)
    held: int = 0              # leading blocks that need no saving: loaded, or saved
    unsure: list = field(default_factory=list)  # (step, held before it) of saves that may yet be void

    def void(self, invalid):
        """A load failed, on some worker: from the first bad block on, and of the last steps, all is to be saved again."""
        bad = [at for at, block in enumerate(self.block_ids) if block in invalid]
        self.held = min([self.held, *bad[:1], *(held for _, held in self.unsure)])
        self.unsure = []


class SchedulerSeat:
    """Threading: vLLM's scheduler thread. Calls take microseconds and lookup_wait at most, whatever the pool does."""

    def __init__(self, settings):
        self._settings = settings
        self._names = BlockNames(settings.block_tokens)
        self._keys = None  # as the first worker names blocks, when its layout is known
        if 'layout' in settings.extra:
            self._keys = settings.keys(str(settings.extra['layout']), 0, 0)
        self._block_tokens = settings.block_tokens
        self._lookup_wait = float(settings.extra.get('lookup_wait', 0.0005))
        self._queue = settings.queue()
        self._requests = {}
        self._asked = {}  # batch → request id
        self._loads = Transfer()
        self._step = self._heard = self._void = 0
        # Steps that vLLM plans before it looks at the output of the first: one for each stage, and with asynchronous
        # scheduling one more.
        self._ahead = settings.pp_size + 2

    def set_layout(self, workers):
        """workers: [(pp rank, tp rank, layout)] of those that there are. Blocks are looked for as the first one's."""
        if not self._keys and workers:
            pp_rank, tp_rank, layout = min(workers)
            self._keys = self._settings.keys(layout, tp_rank, pp_rank)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        """(tokens that can be loaded behind the computed ones, False), or (None, False): ask again."""
        state = self._state(request)
        if getattr(request, 'skip_reading_prefix_cache', False):
            return 0, False  # it wants something of each position of the prompt, as log probabilities
        if self._keys is None:
            log.warning('nothing is loaded: this vLLM does not hand over what workers say (get_handshake_metadata); give a '
                        '`layout` (docs/engines/VLLM.md)')
            self._keys = False
        first = num_computed_tokens // self._block_tokens
        if num_computed_tokens % self._block_tokens or first >= len(state.names) or not self._keys:
            return 0, False
        self._drain()
        if state.asked_from != first:
            state.asked_from, state.found = first, -1
            state.batch = self._queue.submit('exists', self._keys(state.names[first:]), hashed=True)
            self._asked[state.batch] = request.request_id
            # Where the pool does not answer at once, one request has waited, and the others need not.
            until = time.monotonic() + (self._lookup_wait if len(self._asked) == 1 else 0)
            self._drain()
            while state.batch and time.monotonic() < until:
                time.sleep(LOOK_EVERY)  # poll(2) counts in milliseconds
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
        state = self._state(request)
        first, count = state.asked_from, -(-num_external_tokens // self._block_tokens)
        state.asked_from = -1  # what was found is used: whoever asks again, after a preemption, asks the pool
        if count > 0 and first >= 0:
            ids = list(blocks.get_block_ids()[0])
            self._loads.extend(state.names[first:first + count], ids[first:first + count])
            state.held = max(state.held, first + count)

    def build_metadata(self, output):
        """The Step; what was to be loaded is handed over once."""
        self._step += 1
        self._heard = max(self._heard, self._step - self._ahead)
        loads, self._loads = self._loads, Transfer()
        saves = Transfer()
        for state in self._requests.values():
            state.unsure = [one for one in state.unsure if one[0] > self._heard]
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
        return Step(self._step, self._heard, self._void, loads, saves)

    def update_output(self, invalid):
        """A step's output is there, in their order. invalid: blocks of which some worker said that they did not arrive."""
        self._heard = min(self._heard + 1, self._step)
        if invalid:
            self._void = self._step
            for state in self._requests.values():
                state.void(set(invalid))

    def _save(self, state, computed_tokens, saves):
        end = min(computed_tokens // self._block_tokens, len(state.names), len(state.block_ids))
        if end > state.held:
            real = [at for at in range(state.held, end) if state.block_ids[at] != NULL_BLOCK]
            saves.extend([state.names[at] for at in real], [state.block_ids[at] for at in real])
            state.unsure.append((self._step, state.held))
            state.held = end

    def request_finished(self, request, block_ids):
        """vLLM may have its blocks back: saves read copies."""
        self._requests.pop(request.request_id, None)
        return False, None

    def close(self):
        self._queue.close()


class WorkerSeat:
    """Threading: vLLM's worker thread. Waits for loads, the queue's timeout at most; never for saves."""

    def __init__(self, settings):
        self._settings = settings
        self._queue = settings.queue()
        self._timeout = float(settings.extra.get('timeout', 1.0))
        self._staging_bytes = int(settings.extra.get('staging_bytes', 256 << 20))
        self._block_dim = settings.extra.get('block_dim')
        self._is_alone = settings.tp_size * settings.pp_size == 1
        self._layers = {}      # name → (tensor, block dimension, offset in a row, bytes)
        self._row = 0
        self._keys = None
        self._loading = 0      # batch that is waited for
        self._loaded = None    # its result
        self._errors = set()
        self._unheard = 0      # the step of the last load error that the scheduler has not heard of; 0: none
        self._saving = None    # the step whose blocks wait_for_save copies
        self._held = []        # (step, keys, rows): of steps of which it is not yet known that no worker failed
        self._under_way = {}   # batch → bytes
        self.layout = ''
        self.skipped_blocks = 0

    def register_kv_caches(self, kv_caches, num_blocks=None):
        """kv_caches: layer name → tensor. A block's bytes are those of all layers, in the order of their names."""
        self._layers, self._row = {}, 0
        shapes = []
        for name, tensor in sorted(kv_caches.items()):
            dim = self._dim_of(tensor, num_blocks) if self._block_dim is None else int(self._block_dim)
            if num_blocks is not None and tensor.shape[dim] != num_blocks:
                raise ValueError(f'{name}: dimension {dim} of {tuple(tensor.shape)} does not count the {num_blocks} blocks; if '
                                 'another does, give block_dim')
            size = paged_rows.row_bytes(tensor, dim)
            self._layers[name] = (tensor, dim, self._row, size)
            self._row += size
            shapes.append([name, dim, *_shape_of(tensor, dim)])
        self.layout = str(self._settings.extra.get('layout', hashlib.sha256(json.dumps(shapes).encode()).hexdigest()))
        self._keys = self._settings.keys(self.layout, self._settings.tp_rank, self._settings.pp_rank)
        log.info('blocks of %d bytes in the domain %s', self._row,
                 self._settings.domain(self.layout, self._settings.tp_rank, self._settings.pp_rank))

    @staticmethod
    def _dim_of(tensor, num_blocks):
        """[blocks, …], or [K and V, blocks, …]."""
        if num_blocks is not None and (tensor.shape[0] == num_blocks) != (tensor.shape[1] == num_blocks):
            return 0 if tensor.shape[0] == num_blocks else 1
        return 1 if len(tensor.shape) == 5 and tensor.shape[0] == 2 else 0

    def start(self, step):
        """Puts what is loaded in place, in all layers: when a CUDA graph is replayed, nothing is called for each layer."""
        self._drain()
        self._saving = None
        self._release(step)
        self._load(step.loads)
        if self._errors:
            self._unheard = step.number
        if not step.saves.names:
            return
        # What this step computes may stand on blocks that did not arrive; and too much may be under way.
        if self._unheard or self._staged() + len(step.saves.names) * self._row > self._staging_bytes:
            self.skipped_blocks += len(step.saves.names)
        else:
            self._saving = step

    def _staged(self):
        return sum(self._under_way.values()) + sum(rows.nbytes for _, _, rows in self._held)

    def _load(self, loads):
        """In parts, of staging_bytes at most."""
        until = time.monotonic() + self._timeout
        count = max(1, min(self._staging_bytes, LOAD_BYTES) // max(1, self._row))
        for at in range(0, len(loads.names), count):
            ids = loads.block_ids[at:at + count]
            done = self._load_part(loads.names[at:at + count], ids, until)
            self._errors.update(block for block, arrived in zip(ids, done) if not arrived)

    def _load_part(self, names, ids, until):
        if not self._layers or time.monotonic() >= until:
            return [False] * len(names)
        rows = numpy.empty((len(names), self._row), numpy.uint8)
        self._loading, self._loaded = self._queue.submit('get', self._keys(names), list(rows), hashed=True), None
        self._drain()
        while self._loaded is None and time.monotonic() < until:
            self._queue.wait(until - time.monotonic())
            self._drain()
        if self._loaded is None:  # the queue keeps the rows until it is over
            self._under_way[self._loading] = rows.nbytes
        done, self._loading = self._loaded or [False] * len(names), 0
        arrived = [i for i, is_there in enumerate(done) if is_there]
        if arrived:
            for tensor, dim, offset, size in self._layers.values():
                paged_rows.scatter(rows[arrived, offset:offset + size], tensor, dim, [ids[i] for i in arrived])
        return done

    def _drain(self):
        for batch, _, _, done in self._queue.drain():
            if self._under_way.pop(batch, None) is None and batch == self._loading:
                self._loaded = done

    def load_errors(self):
        """Blocks of vLLM whose bytes did not arrive since the last call."""
        errors, self._errors = self._errors, set()
        return errors

    def finish_saves(self):
        """Copies all layers; the pool gets them behind this."""
        step, self._saving = self._saving, None
        # vLLM calls this in a `finally`, too: then the forward pass has not computed what is in the blocks.
        if step is None or sys.exc_info()[0] is not None:
            return
        rows = numpy.empty((len(step.saves.names), self._row), numpy.uint8)
        for tensor, dim, offset, size in self._layers.values():
            paged_rows.gather(tensor, dim, step.saves.block_ids, rows[:, offset:offset + size])
        keys = self._keys(step.saves.names)
        if self._is_alone:
            self._send(keys, rows)
        else:
            self._held.append((step.number, keys, rows))

    def _release(self, step):
        """Sends or drops what was held, by what the scheduler has heard."""
        if step.void >= self._unheard:
            self._unheard = 0
        held, self._held = self._held, []
        for number, keys, rows in held:
            if number <= step.void:
                self.skipped_blocks += len(keys)
            elif number <= step.heard:
                self._send(keys, rows)
            else:
                self._held.append((number, keys, rows))

    def _send(self, keys, rows):
        self._under_way[self._queue.submit('set', keys, list(rows), hashed=True)] = rows.nbytes

    def close(self):
        """What is still held is not stored."""
        self._held = []
        self._queue.close()


def _shape_of(tensor, dim):
    """(extents without the number of blocks, order of the dimensions in memory, type), as JSON has them."""
    strides = tensor.strides if isinstance(tensor, numpy.ndarray) else tensor.stride()
    order = sorted(range(len(strides)), key=lambda at: -strides[at])
    return [int(n) for at, n in enumerate(tensor.shape) if at != dim], order, str(tensor.dtype).rsplit('.', 1)[-1]


def _check_groups(groups):
    """One group, whose requests keep all of their blocks."""
    if len(groups) > 1:
        raise ValueError(f'a model with {len(groups)} KV cache groups: EMS takes one; use LMCache with EMS behind it')
    for group in groups:
        spec = getattr(group, 'kv_cache_spec', None)
        for one in (spec, *getattr(spec, 'kv_cache_specs', {}).values()):
            if type(one).__name__.startswith(('SlidingWindow', 'ChunkedLocal', 'Mamba')):
                raise ValueError(f'a model with {type(one).__name__}, whose requests do not keep all of their blocks: use LMCache '
                                 'with EMS behind it')


class ConnectorSeat:
    """KVConnectorBase_V1's methods; `role` says which half it is."""

    def _open(self, vllm_config, role, kv_cache_config=None):
        _check_groups(getattr(kv_cache_config, 'kv_cache_groups', None) or [])
        settings = Settings.of(vllm_config)
        self._settings = settings
        self._num_blocks = getattr(kv_cache_config, 'num_blocks', None)
        is_scheduler = str(getattr(role, 'name', role)).upper() == 'SCHEDULER'
        self._scheduler = SchedulerSeat(settings) if is_scheduler else None
        self._worker = None if is_scheduler else WorkerSeat(settings)

    def _metadata_of(self, step):
        raise NotImplementedError

    def _metadata(self):
        raise NotImplementedError

    def _handshake_of(self, pp_rank, tp_rank, layout):
        raise NotImplementedError

    # --- Scheduler

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self._scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self._scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        return self._metadata_of(self._scheduler.build_metadata(scheduler_output))

    def update_connector_output(self, connector_output):
        self._scheduler.update_output(getattr(connector_output, 'invalid_block_ids', None) or ())

    def set_xfer_handshake_metadata(self, metadata):
        """metadata: a worker's rank, or ranks → what its get_handshake_metadata said."""
        self._scheduler.set_layout([(one.pp_rank, one.tp_rank, one.layout) for one in metadata.values()])

    set_xfer_handshake_metadata_pp_aware = set_xfer_handshake_metadata

    def request_finished(self, request, block_ids):
        return self._scheduler.request_finished(request, block_ids)

    # --- Worker

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config):
        """No: nothing is done layer by layer."""
        return False

    def register_kv_caches(self, kv_caches):
        self._worker.register_kv_caches(kv_caches, self._num_blocks)

    def get_handshake_metadata(self):
        """How this worker names its blocks, for the scheduler."""
        if not self._worker.layout:
            return None
        return self._handshake_of(self._settings.pp_rank, self._settings.tp_rank, self._worker.layout)

    def start_load_kv(self, forward_context, **kwargs):
        self._worker.start(self._metadata().step)

    def wait_for_layer_load(self, layer_name):
        """start_load_kv has put all in place."""

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        """wait_for_save copies all layers."""

    def wait_for_save(self):
        self._worker.finish_saves()

    def get_block_ids_with_load_errors(self):
        return self._worker.load_errors()

    def get_finished(self, finished_req_ids):
        """Nothing is loaded or saved behind vLLM's back."""
        return None, None

    def shutdown(self):
        (self._scheduler or self._worker).close()
