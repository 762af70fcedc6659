"""What vLLM has on its side of the contracts, restated: the tier's and the connector's abstract classes, and little engines."""
import abc
import enum
import importlib
import pickle
import sys
import types
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy

TIER = 'vllm.v1.kv_offload.tiering.base'
FACTORY = 'vllm.v1.kv_offload.tiering.factory'
CONNECTOR = 'vllm.distributed.kv_transfer.kv_connector.v1.base'
BLOCK = 16  # tokens


@dataclass
class JobMetadata:
    job_id: int
    keys: list
    block_ids: numpy.ndarray
    is_promotion: bool = False
    req_context: object = None


@dataclass
class JobResult:
    job_id: int
    success: bool


class SecondaryTierManager(abc.ABC):
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
    registry = {}

    @classmethod
    def register_tier(cls, tier_type, module_path, class_name):
        cls.registry[tier_type] = (module_path, class_name)

    @classmethod
    def create(cls, tier_type, *args, **kwargs):
        module_path, class_name = cls.registry[tier_type]
        return getattr(importlib.import_module(module_path), class_name)(*args, **kwargs)


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata(abc.ABC):
    pass


class KVConnectorBase_V1(abc.ABC):
    def __init__(self, vllm_config, role, kv_cache_config=None):
        self._connector_metadata = None
        self._role = role

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


def install():
    """As if vLLM were there."""
    for name, members in ((TIER, (SecondaryTierManager, JobMetadata, JobResult)), (FACTORY, (SecondaryTierFactory,)),
                          (CONNECTOR, (KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole))):
        parts = name.split('.')
        for end in range(1, len(parts) + 1):
            sys.modules.setdefault('.'.join(parts[:end]), types.ModuleType('.'.join(parts[:end])))
        for member in members:
            setattr(sys.modules[name], member.__name__, member)


def config(address, rank=0, tp_size=1, model='llama', dtype='bfloat16', cache_dtype='auto', **extra):
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config={'controller': address, **extra}),
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


class Engine:
    """One scheduler and one worker around a connector. A 'forward pass' writes what a token's KV is a function of.

    kv: layer name → [K and V, blocks, block tokens, heads, head size] in float16.
    """

    LAYERS = ('model.layers.0', 'model.layers.1', 'model.layers.2')

    def __init__(self, address, blocks=64, make=None, **options):
        import ems.vllm  # pylint: disable=import-outside-toplevel
        make = make or (lambda shape: numpy.zeros(shape, numpy.float16))
        kv_cache_config = SimpleNamespace(num_blocks=blocks, kv_cache_groups=[None])
        settings = config(address, **options)
        self.scheduler = ems.vllm.EmsConnector(settings, KVConnectorRole.SCHEDULER, kv_cache_config)
        self.worker = ems.vllm.EmsConnector(settings, KVConnectorRole.WORKER, kv_cache_config)
        self.kv = {layer: make((2, blocks, BLOCK, 2, 8)) for layer in self.LAYERS}
        self.worker.register_kv_caches(self.kv)
        self.free = list(range(blocks))
        self.retries = 0
        self.computed = 0  # tokens that were not loaded

    @staticmethod
    def value(tokens, layer, position):
        """KV of a position: all tokens up to it matter."""
        return float((sum(tokens[:position + 1]) * 7 + layer * 13 + position) % 997)

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

    def run(self, request, chunk=None, between=lambda: None):
        """A prefill, in steps of `chunk` tokens. Returns (tokens that were loaded, the request's blocks)."""
        tokens = request.prompt_token_ids
        external = self.matched(request)
        count = -(-len(tokens) // BLOCK)
        ids = [self.free.pop() for _ in range(count)]
        blocks = SimpleNamespace(get_block_ids=lambda: (ids,))
        self.scheduler.update_state_after_alloc(request, blocks, external)
        self.scheduler.update_state_after_alloc(request, blocks, 0)  # it may be called twice
        between()
        done, is_new, loaded = external, True, external
        while done < len(tokens):
            step = min(chunk or len(tokens), len(tokens) - done)
            errors = self._step(request, ids, done, step, is_new)
            if errors:  # vLLM recomputes from the first block that failed
                first = min(ids.index(block) for block in errors) * BLOCK
                loaded = min(loaded, first)
                self._forward(tokens, ids, first, done)
            done += step
            is_new = False
        self.scheduler.request_finished(request, ids)
        return loaded, ids

    def _step(self, request, ids, done, step, is_new):
        new = [SimpleNamespace(req_id=request.request_id, block_ids=(ids,), num_computed_tokens=done)] if is_new else []
        cached = SimpleNamespace(req_ids=[] if is_new else [request.request_id], new_block_ids=[] if is_new else [None],
                                 num_computed_tokens=[] if is_new else [done])
        output = SimpleNamespace(scheduled_new_reqs=new, scheduled_cached_reqs=cached,
                                 num_scheduled_tokens={request.request_id: step})
        metadata = pickle.loads(pickle.dumps(self.scheduler.build_connector_meta(output)))  # it goes to another process
        self.worker.bind_connector_metadata(metadata)
        self.worker.start_load_kv(None)
        for layer, name in enumerate(self.LAYERS):
            self.worker.wait_for_layer_load(name)
            self._forward_layer(request.prompt_token_ids, ids, done, done + step, layer)
            self.worker.save_kv_layer(name, self.kv[name], None)
        self.worker.wait_for_save()
        self.worker.clear_connector_metadata()
        return self.worker.get_block_ids_with_load_errors()

    def _forward(self, tokens, ids, begin, end):
        for layer in range(len(self.LAYERS)):
            self._forward_layer(tokens, ids, begin, end, layer)

    def _forward_layer(self, tokens, ids, begin, end, layer):
        for position in range(begin, end):
            self.kv[self.LAYERS[layer]][:, ids[position // BLOCK], position % BLOCK] = self.value(tokens, layer, position)
        if layer == 0:
            self.computed += end - begin

    def is_right(self, request, ids):
        """Whether all KV of the prompt is what computing it gives."""
        tokens = request.prompt_token_ids
        return all((self.kv[name][:, ids[position // BLOCK], position % BLOCK] == self.value(tokens, layer, position)).all()
                   for layer, name in enumerate(self.LAYERS) for position in range(len(tokens)))

    def settle(self):
        """Until the pool has what was saved."""
        worker = self.worker._worker
        while worker._under_way:
            worker._queue.wait(1)
            worker._drain()

    def close(self):
        self.scheduler.shutdown()
        self.worker.shutdown()
