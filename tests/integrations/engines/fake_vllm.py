"""What vLLM has on its side of the contracts, restated: the tier's and the connector's abstract classes, and little engines."""
import abc
import collections
import contextlib
import enum
import importlib
import math
import pickle
import sys
import types
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy

TIER = 'vllm.v1.kv_offload.tiering.base'
FACTORY = 'vllm.v1.kv_offload.tiering.factory'
CONNECTOR = 'vllm.distributed.kv_transfer.kv_connector.v1.base'
STATE = 'vllm.distributed.kv_transfer.kv_transfer_state'
BLOCK = 16  # tokens


class LookupResult(enum.Enum):
    MISS, HIT, HIT_PENDING, RETRY = range(4)


class OffloadPolicy(enum.Enum):
    CHUNK_LEVEL, REQUEST_LEVEL = range(2)


@dataclass
class RequestOffloadingContext:
    policy: OffloadPolicy = OffloadPolicy.CHUNK_LEVEL


@dataclass
class TransferJob:
    job_id: int
    keys: list
    chunk_ids: numpy.ndarray
    is_promotion: bool = False
    req_context: object = None


@dataclass
class JobMetadata:
    """Of releases before TransferJob."""
    job_id: int
    keys: list
    block_ids: numpy.ndarray
    is_promotion: bool = False
    req_context: object = None


@dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: tuple = None
    transfer_time: float = field(default=None, compare=False)


@dataclass
class FirstJobResult:
    """Of releases before successful_keys."""
    job_id: int
    success: bool


class Medium(enum.Enum):
    CPU, STORAGE = 'CPU', 'STORAGE'


class Locality(enum.Enum):
    LOCAL, REMOTE = 'LOCAL', 'REMOTE'


@dataclass
class OffloadingEvent:
    keys: list
    medium: Medium
    removed: bool
    locality: Locality = None


@dataclass(frozen=True)
class OffloadingModel:
    name: str = 'llama'
    dtype: str = 'bfloat16'


@dataclass(frozen=True)
class OffloadingGroup:
    tokens_per_block: int = BLOCK
    layer_names: tuple = ('model.layers.0', 'model.layers.1')


@dataclass(frozen=True)
class OffloadingParallel:
    rank: int = 0
    tp_size: int = 1
    pp_size: int = 1
    data_parallel_index: int = 0


@dataclass(frozen=True)
class OffloadingConfig:
    """What vLLM tells its tiers of itself, since the middle of 2026."""
    groups: tuple = (OffloadingGroup(),)
    worker_kv_bytes_per_block: int = 16 << 10
    extra_config: dict = field(default_factory=dict)
    engine_id: str = 'engine'
    model: OffloadingModel = OffloadingModel()
    parallel: OffloadingParallel = OffloadingParallel()
    replicated_layout: bool = False
    canonical_layout: bool = False


def offloading_spec(publishes=False, **config):
    return SimpleNamespace(config=OffloadingConfig(**config), kv_events_config=SimpleNamespace(enable_kv_cache_events=publishes))


class SecondaryTierManager(abc.ABC):
    medium = None

    def __init__(self, offloading_spec, primary_kv_view, tier_type):
        self._offloading_spec = offloading_spec
        self._primary_kv_view = primary_kv_view
        self.tier_type = tier_type
        self.locality = None

    def take_events(self):
        return ()

    @abc.abstractmethod
    def lookup(self, key, req_context):
        ...

    @abc.abstractmethod
    def submit_store(self, job_metadata):
        ...

    @abc.abstractmethod
    def submit_load(self, job_metadata):
        ...

    @abc.abstractmethod
    def get_finished_jobs(self):
        ...

    @abc.abstractmethod
    def on_new_request(self, req_context):
        ...

    @abc.abstractmethod
    def drain_jobs(self):
        ...

    def touch(self, keys, req_context):
        return None

    def on_request_finished(self, req_context):
        return None

    def on_schedule_end(self, context):
        return None

    def shutdown(self):
        return None


class FirstTierManager(abc.ABC):
    """As the first releases had it, without LookupResult and RequestOffloadingContext."""

    def __init__(self, offloading_spec, primary_kv_view, tier_type):
        self.tier_type = tier_type

    @abc.abstractmethod
    def lookup(self, key, req_context):
        ...

    @abc.abstractmethod
    def submit_store(self, job_metadata):
        ...

    @abc.abstractmethod
    def submit_load(self, job_metadata):
        ...

    @abc.abstractmethod
    def get_finished(self):
        ...


class SecondaryTierFactory:
    _registry = {}

    @classmethod
    def register_tier(cls, tier_type, module_path, class_name):
        if tier_type in cls._registry:
            raise ValueError(f'{tier_type} is registered')
        cls._registry[tier_type] = (module_path, class_name)

    @classmethod
    def create_secondary_tier(cls, tier_config, primary_kv_view, offloading_spec=None):
        config = dict(tier_config)
        tier_type = config.pop('type')
        module_path, class_name = cls._registry.get(tier_type, (config.pop('module_path', None), tier_type))
        return getattr(importlib.import_module(module_path), class_name)(
            offloading_spec=offloading_spec, primary_kv_view=primary_kv_view, tier_type=tier_type, **config)


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata(abc.ABC):
    pass


class KVConnectorHandshakeMetadata(abc.ABC):
    pass


class KVConnectorBase_V1(abc.ABC):
    def __init__(self, vllm_config, role, kv_cache_config=None):
        self._connector_metadata = None
        self._role = role
        self._kv_transfer_config = vllm_config.kv_transfer_config

    @property
    def requires_kv_delivery(self):
        return self._kv_transfer_config.is_kv_producer

    def bind_connector_metadata(self, metadata):
        self._connector_metadata = metadata

    def clear_connector_metadata(self):
        self._connector_metadata = None

    def _get_connector_metadata(self):
        assert self._connector_metadata is not None
        return self._connector_metadata

    @abc.abstractmethod
    def start_load_kv(self, forward_context, **kwargs):
        ...

    @abc.abstractmethod
    def wait_for_layer_load(self, layer_name):
        ...

    @abc.abstractmethod
    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        ...

    @abc.abstractmethod
    def wait_for_save(self):
        ...

    @abc.abstractmethod
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        ...

    @abc.abstractmethod
    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        ...

    @abc.abstractmethod
    def build_connector_meta(self, scheduler_output):
        ...

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config):
        return False

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config):
        return None

    def reset_cache(self):
        return None

    def get_kv_connector_stats(self):
        return None


transfer_group = None  # a worker's connector that vLLM calls itself


def has_kv_transfer_group():
    return transfer_group is not None


def get_kv_transfer_group():
    return transfer_group


def install():
    """As if vLLM were there."""
    for name, members in ((TIER, (SecondaryTierManager, TransferJob, JobResult, LookupResult, RequestOffloadingContext, Medium,
                                  Locality, OffloadingEvent)),
                          (FACTORY, (SecondaryTierFactory,)), (STATE, (has_kv_transfer_group, get_kv_transfer_group)),
                          (CONNECTOR, (KVConnectorBase_V1, KVConnectorMetadata, KVConnectorHandshakeMetadata,
                                       KVConnectorRole))):
        parts = name.split('.')
        for end in range(1, len(parts) + 1):
            sys.modules.setdefault('.'.join(parts[:end]), types.ModuleType('.'.join(parts[:end])))
        for member in members:
            setattr(sys.modules[name], member.__name__, member)


def config(address, rank=0, tp_size=1, model='llama', dtype='bfloat16', cache_dtype='auto', **extra):
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config={'controller': address, **extra}, is_kv_producer=True,
                                           kv_load_failure_policy='recompute'),
        parallel_config=SimpleNamespace(tensor_parallel_size=tp_size, rank=rank, pipeline_parallel_size=1),
        model_config=SimpleNamespace(model=model, dtype=dtype),
        cache_config=SimpleNamespace(block_size=BLOCK, cache_dtype=cache_dtype))


@dataclass
class Request:
    request_id: str
    prompt_token_ids: list
    lora_request: object = None
    cache_salt: str = None
    mm_features: list = field(default_factory=list)
    prompt_embeds: object = None


class ForwardFailed(RuntimeError):
    pass


class Engine:
    """One scheduler and a worker for each tensor-parallel rank, around connectors.

    A 'forward pass' computes KV from the tokens, and, as attention does, from all KV before them as it lies in the paged caches of
    all ranks: what is wrong there shows in what is computed on it. Blocks that are handed out hold another request's KV.

    kv: [rank][layer name] → [K and V, blocks, block tokens, heads, head size] in float16. `ahead`: steps that are planned before
    the output of the first is looked at (asynchronous scheduling: 2). `calls_layers`: false when full CUDA graphs are replayed,
    which call nothing for each layer. `starts_late`: a step without loads calls start_load_kv after the forward pass. `registered`:
    layer name → tensor of a rank; what the worker is told of them.
    """

    LAYERS = ('model.layers.0', 'model.layers.1', 'model.layers.2')
    STALE = 666

    def __init__(self, address, blocks=64, make=None, settings=None, tp_size=1, ahead=1, calls_layers=True, starts_late=False,
                 heads_first=False, order=1, does_handshake=True, registered=dict, **options):
        import ems.vllm  # pylint: disable=import-outside-toplevel
        make = make or (lambda shape: numpy.zeros(shape, numpy.float16))
        shape = (2, blocks, 2, BLOCK, 8) if heads_first else (2, blocks, BLOCK, 2, 8)
        size = 2 * math.prod(shape)  # float16
        kv_cache_config = SimpleNamespace(num_blocks=blocks, kv_cache_groups=[None], kv_cache_tensors=[
            SimpleNamespace(size=size, shared_by=[layer]) for layer in self.LAYERS])
        settings = settings or config(address, tp_size=tp_size, **options)
        ranks = [SimpleNamespace(**{**vars(settings), 'parallel_config': SimpleNamespace(
            **{**vars(settings.parallel_config), 'rank': rank})}) for rank in range(tp_size)]
        self.scheduler = ems.vllm.EmsConnector(settings, KVConnectorRole.SCHEDULER, kv_cache_config)
        self.workers = [ems.vllm.EmsConnector(one, KVConnectorRole.WORKER, kv_cache_config) for one in ranks]
        self.kv = [{layer: make(shape) for layer in self.LAYERS} for _ in ranks]
        for worker, kv in zip(self.workers, self.kv):
            worker.register_kv_caches(registered(dict(list(kv.items())[::order])))
        if does_handshake:  # it goes between processes
            said = {(0, rank): worker.get_handshake_metadata() for rank, worker in enumerate(self.workers)}
            self.scheduler.set_xfer_handshake_metadata_pp_aware(pickle.loads(pickle.dumps(said)))
        self._heads_first, self._calls_layers, self._starts_late, self._ahead = heads_first, calls_layers, starts_late, ahead
        self.free = list(range(1, blocks))  # 0 is vLLM's null block
        self.retries = 0
        self.computed = 0  # tokens that were not loaded
        self.fails_in_layer = None

    @property
    def worker(self):
        return self.workers[0]

    def matched(self, request, num_computed=0):
        """As the scheduler asks: again while the answer is None."""
        for _ in range(10_000):
            tokens, is_async = self.scheduler.get_num_new_matched_tokens(request, num_computed)
            if is_async:
                raise AssertionError('loads are not asynchronous here')
            if tokens is not None:
                return tokens
            self.retries += 1
            self.scheduler._scheduler._queue.wait(0.05)
        raise AssertionError('no answer')

    def run(self, request, chunk=None, between=lambda: None, preempt_at=None, before_step=lambda: None):
        """A prefill, in steps of `chunk` tokens. Returns (tokens that were loaded, the request's blocks)."""
        loaded, ids = self._admit(request)
        between()
        tokens = request.prompt_token_ids
        planned, kind, steps = loaded, 'new', collections.deque()
        while True:
            while planned < len(tokens) and len(steps) < self._ahead:
                end = min(planned + (chunk or len(tokens)), len(tokens))
                steps.append((self._plan(request, ids, planned, end, kind), planned, end))
                planned, kind = end, 'running'
            if not steps:
                break
            before_step()
            errors = self._step(request, ids, *steps.popleft())
            if errors:  # vLLM goes back to the first block that failed; what is planned on it runs all the same
                planned = min(planned, min(ids.index(block) for block in errors) * BLOCK)
                loaded = min(loaded, planned)
            self.scheduler.update_connector_output(SimpleNamespace(invalid_block_ids=errors))
            if preempt_at is not None and planned >= preempt_at:
                preempt_at = None
                before_step()
                self.free[:0] = ids
                planned, ids = self._admit(request)
                kind = 'resumed'
        self.finish(request, ids)
        return loaded, ids

    def _admit(self, request):
        external = self.matched(request)
        ids = [self.free.pop() for _ in range(-(-len(request.prompt_token_ids) // BLOCK))]
        for kv in self.kv:
            for cache in kv.values():
                cache[:, ids] = self.STALE
        blocks = SimpleNamespace(get_block_ids=lambda: (ids,))
        self.scheduler.update_state_after_alloc(request, blocks, external)
        self.scheduler.update_state_after_alloc(request, blocks, 0)  # it may be called twice
        return external, ids

    def finish(self, request, ids):
        """vLLM makes a step of its own to tell the workers."""
        self.scheduler.request_finished(request, ids)
        self.idle()

    def idle(self):
        """A step in which nothing is computed."""
        metadata = self._built([], SimpleNamespace(req_ids=[], new_block_ids=[], num_computed_tokens=[]), {})
        self._run_step(metadata, lambda: None)
        if len(self.workers) > 1:  # of one worker no output is made
            self.scheduler.update_connector_output(SimpleNamespace(invalid_block_ids=set()))

    def _plan(self, request, ids, begin, end, kind):
        new = [SimpleNamespace(req_id=request.request_id, block_ids=(ids,), num_computed_tokens=begin)] if kind == 'new' else []
        cached = SimpleNamespace(
            req_ids=[] if new else [request.request_id], new_block_ids=[] if new else [(ids,) if kind == 'resumed' else None],
            num_computed_tokens=[] if new else [begin], resumed_req_ids={request.request_id} if kind == 'resumed' else set())
        return self._built(new, cached, {request.request_id: end - begin})

    def _built(self, new, cached, tokens):
        output = SimpleNamespace(scheduled_new_reqs=new, scheduled_cached_reqs=cached, num_scheduled_tokens=tokens)
        return pickle.dumps(self.scheduler.build_connector_meta(output))  # it goes to other processes

    def _step(self, request, ids, metadata, begin, end):
        return self._run_step(metadata, lambda: self._forward(request.prompt_token_ids, ids, begin, end))

    def _run_step(self, metadata, forward):
        """Returns the blocks that some rank could not load."""
        errors = set()
        with contextlib.ExitStack() as stack:
            for worker in self.workers:
                worker.bind_connector_metadata(pickle.loads(metadata))
                stack.enter_context(self._around(worker, errors))
            forward()
        return errors

    @contextlib.contextmanager
    def _around(self, worker, errors):
        late = self._starts_late and not worker._metadata().step.loads.names
        if not late:
            worker.start_load_kv(None)
        try:
            yield
        finally:
            if late:
                worker.start_load_kv(None)
            worker.wait_for_save()
            errors |= worker.get_block_ids_with_load_errors()
            worker.clear_connector_metadata()

    def _forward(self, tokens, ids, begin, end):
        hidden = numpy.array(tokens[begin:end], numpy.int64)
        for layer, name in enumerate(self.LAYERS):
            if layer == self.fails_in_layer:
                raise ForwardFailed
            for worker in self.workers if self._calls_layers else ():
                worker.wait_for_layer_load(name)
            before = []
            for rank, kv in enumerate(self.kv):
                cache = self._tokens_first(kv[name])
                mine = self.value(hidden, layer, rank, begin)
                for at, position in enumerate(range(begin, end)):
                    cache[:, ids[position // BLOCK], position % BLOCK] = mine[at]
                before.append(self._read(cache, ids, end))
            for worker, kv in zip(self.workers, self.kv) if self._calls_layers else ():
                worker.save_kv_layer(name, kv[name], None)
            hidden = self.attend(hidden, before, begin)
        self.computed += end - begin

    def _tokens_first(self, cache):
        return cache.swapaxes(2, 3) if self._heads_first else cache

    @staticmethod
    def _read(cache, ids, end):
        """What is in the cache of each position up to `end`: of all heads, of K and V."""
        blocks = numpy.nan_to_num(numpy.array(cache[:, ids], numpy.float64))
        return blocks.sum(axis=(0, 3, 4)).astype(numpy.int64).reshape(-1)[:end]

    @staticmethod
    def value(hidden, layer, rank, begin):
        """KV of positions from `begin` on."""
        return (hidden * 7 + layer * 13 + rank * 5 + numpy.arange(begin, begin + len(hidden)) * 3) % 997

    @staticmethod
    def attend(hidden, before, begin):
        """The next layer's hidden states. before: of each rank, what is in the cache of all positions up to the last one."""
        seen = sum((one * (numpy.arange(len(one)) % 31 + 1)).cumsum() for one in before)
        return (hidden * 5 + seen[begin:]) % 9973

    def truth(self, tokens):
        """[layer][rank] → KV of all positions, computed from the first token on."""
        hidden, result = numpy.array(tokens, numpy.int64), []
        size = math.prod(self._tokens_first(self.kv[0][self.LAYERS[0]])[:, 0, 0].shape)
        for layer in range(len(self.LAYERS)):
            result.append([self.value(hidden, layer, rank, 0) for rank in range(len(self.workers))])
            hidden = self.attend(hidden, [one * size for one in result[-1]], 0)
        return result

    def is_right(self, request, ids):
        """Whether all KV of the prompt is what computing it gives."""
        truth = self.truth(request.prompt_token_ids)
        for layer, name in enumerate(self.LAYERS):
            for rank, kv in enumerate(self.kv):
                cache = self._tokens_first(kv[name])
                for position, value in enumerate(truth[layer][rank]):
                    if not (cache[:, ids[position // BLOCK], position % BLOCK] == value).all():
                        return False
        return True

    def remove(self, request, at, rank=0):
        """Takes the at-th block of a prompt out of the pool."""
        worker = self.workers[rank]._worker
        names = self.scheduler._scheduler._names.of(request)
        return worker._queue.run_at('remove', worker._keys(names[at:at + 1]), hashed=True)[0] == [True]

    def parts(self, request):
        """Of each rank, which blocks of a prompt the pool has."""
        names = self.scheduler._scheduler._names.of(request)
        return [worker._worker._queue.run_at('exists', worker._worker._keys(names), hashed=True)[0] for worker in self.workers]

    def settle(self):
        """Until the pool has what was saved."""
        for connector in self.workers:
            worker = connector._worker
            while worker._under_way:
                worker._queue.wait(1)
                worker._drain()

    def close(self):
        for connector in (self.scheduler, *self.workers):
            connector.shutdown()
