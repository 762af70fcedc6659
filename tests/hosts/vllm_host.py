"""vLLM's own modules from a folder of its sources, without a GPU: what does not match REAL is a stand-in that does nothing.

torch is the installed one, if there is one. Modules of packages whose __init__ is a stand-in are found all the same.
"""
import contextlib
import dataclasses
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import itertools
import logging
import os
import re
import sys
import types

import typing_extensions

REAL = re.compile(r'vllm\.(config\.(kv_transfer|kv_events)|utils\.(math_utils|func_utils|hashing)|distributed\.kv_events'
                  r'|distributed\.kv_transfer\.(kv_transfer_state|kv_connector\.(base|factory|v1|v1\.(base|multi_connector|metrics'
                  r'|offloading\.(metrics|canonical_mapping)|nixl_connector|nixl\.(metadata|base_scheduler))))'
                  r'|v1\.(outputs|request|engine|kv_cache_interface|kv_cache_spec_registry|metrics|metrics\.stats'
                  r'|structured_output\.request|core|core\.\w+|core\.sched|core\.sched\.\w+'
                  r'|kv_offload|kv_offload\.(base|config|factory|tiering|tiering\.\w+'
                  r'|cpu|cpu\.(manager|common|shared_offload_region|policies|policies\.\w+))))')
STAND_INS = ['vllm', *(name for name in ('torch', 'pydantic', 'msgspec', 'prometheus_client', 'zmq', 'cbor2', 'xxhash')
                       if importlib.util.find_spec(name) is None)]


class _Kind(type):
    """Of stand-in classes: subscripts, unions and attributes are there, as annotations and constants want them."""

    def __getitem__(cls, _):
        return cls

    def __getattr__(cls, name):
        if name.startswith('__'):
            raise AttributeError(name)
        return _made(name)


def _made(name):
    if name[0].isupper():
        return _Kind(name, (), {'__init__': lambda self, *_, **__: None, '__init_subclass__': lambda *_, **__: None})
    return lambda *given, **_: given[0] if given and isinstance(given[0], type) else None


class _StandIn(types.ModuleType):
    """Classes that take anything, functions that return None, and decorators that change nothing."""

    def __getattr__(self, name):
        if name.startswith('__'):
            raise AttributeError(name)
        below = f'{self.__name__}.{name}'
        setattr(self, name, importlib.import_module(below) if REAL.fullmatch(below) or below in _GIVEN else _made(name))
        return getattr(self, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, folder):
        self._folder = folder

    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] not in STAND_INS:
            return None
        base = os.path.join(self._folder, *name.split('.'))
        if REAL.fullmatch(name):
            for file, inside in ((f'{base}/__init__.py', [base]), (f'{base}.py', None)):
                if os.path.exists(file):
                    return importlib.util.spec_from_file_location(name, file, submodule_search_locations=inside)
            raise ModuleNotFoundError(f'this vLLM has no {name}', name=name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module):
        module.__path__ = []
        for name, value in _GIVEN.get(module.__name__, {}).items():
            setattr(module, name, value)


class _Logger(logging.Logger):
    """As vLLM's, which has two methods more."""

    def warning_once(self, *given):
        self.warning(*given)

    def info_once(self, *given):
        self.info(*given)


def _init_logger(name):
    logging.setLoggerClass(_Logger)
    try:
        return logging.getLogger(name)
    finally:
        logging.setLoggerClass(logging.Logger)


class _Platform:
    device_type = 'cpu'

    @staticmethod
    def is_cuda_alike():
        return False

    @staticmethod
    def register_custom_kv_cache_specs(_):
        pass


class _Struct:
    """msgspec's, without its checks."""

    def __init_subclass__(cls, **_):
        pass

    def __init__(self, **values):
        self.__dict__.update(values)


_GIVEN = {
    'msgspec': {'Struct': _Struct},
    'vllm.logger': {'init_logger': _init_logger},
    'vllm.platforms': {'current_platform': _Platform},
    'vllm.envs': {'VLLM_USE_V2_MODEL_RUNNER': False},
    'vllm.config.utils': {'config': dataclasses.dataclass},
    'vllm.utils': {'length_from_prompt_token_ids_or_embeds': lambda tokens, _: len(tokens)},
    'vllm.utils.torch_utils': {'get_dtype_size': lambda _: 2},
    'vllm.v1.utils': {'ConstantList': lambda what: what, 'record_function_or_nullcontext': contextlib.nullcontext},
}


def install(folder):
    """`folder`: where vLLM's sources have their folder `vllm`. Once in a process."""
    sys.meta_path.insert(0, _Finder(folder))
    if not hasattr(typing_extensions, 'deprecated'):  # of before 4.5
        typing_extensions.deprecated = lambda *_, **__: lambda what: what
    import vllm.config  # pylint: disable=import-outside-toplevel
    from vllm.config.kv_transfer import KVTransferConfig  # pylint: disable=import-outside-toplevel
    vllm.config.KVTransferConfig = KVTransferConfig


def has(module):
    """Whether this vLLM has a module, one of REAL."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def tier_engine(address, *, blocks=32, size=4096, model='llama', dtype='bfloat16', tp_size=1, layers=('a', 'b'), **config):
    """vLLM's tiering manager over its CPU tier in shared memory, with EMS behind it, as its spec makes them."""
    # pylint: disable=import-outside-toplevel
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
    from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

    import ems.vllm
    known = inspect.signature(SharedOffloadRegion.__init__).parameters
    name = f'ems-{os.getpid()}-{next(_numbers)}'
    region = SharedOffloadRegion(**{key: value for key, value in {
        'engine_id': name, 'instance_id': name, 'total_size_bytes': blocks * size, 'num_blocks': blocks, 'rank': None,
        'num_workers': 1, 'kv_bytes_per_block': size, 'cpu_page_size': size}.items() if key in known})
    primary = CPUPrimaryTierOffloadingManager(num_blocks=blocks, mmap_region=region)
    tier = {'type': 'EmsTierManager', 'module_path': 'ems.vllm', 'controller': address, **config}
    if not hasattr(SecondaryTierFactory, 'get_tier_class'):  # releases before module_path
        ems.vllm.register_tier()
        tier.update(type='ems')
        del tier['module_path']
    secondary = SecondaryTierFactory.create_secondary_tier(tier, primary.get_kv_memoryview(), _spec(model, dtype, tp_size, layers))
    manager = TieringOffloadingManager(primary, [secondary])
    return types.SimpleNamespace(manager=manager, tier=secondary, region=region, memory=primary.get_kv_memoryview())


def _spec(model, dtype, tp_size, layers):
    try:
        from vllm.v1.kv_offload import config as given  # pylint: disable=import-outside-toplevel
    except ImportError:  # before vLLM had a configuration for tiers
        groups = [types.SimpleNamespace(kv_cache_spec=types.SimpleNamespace(block_size=16), layer_names=list(layers))]
        return types.SimpleNamespace(vllm_config=vllm_config(model=model, dtype=dtype, tp_size=tp_size), extra_config={},
                                     kv_cache_config=types.SimpleNamespace(kv_cache_groups=groups))
    config = given.OffloadingConfig(
        groups=(given.OffloadingGroupConfig(tokens_per_block=16, layer_names=tuple(layers)),), worker_kv_bytes_per_block=4096,
        enable_kv_cache_events=True, extra_config={}, engine_id='engine',
        model=given.OffloadingModelConfig(name=model, dtype=dtype),
        cache=given.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=given.OffloadingParallelConfig(
            rank=0, world_size=tp_size, tp_size=tp_size, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0,
            data_parallel_size=1, data_parallel_rank_local=None, is_parallelism_agnostic=False))
    return types.SimpleNamespace(config=config, kv_events_config=types.SimpleNamespace(enable_kv_cache_events=True))


def vllm_config(transfer=None, *, model='llama', dtype='bfloat16', tp_size=1, block_size=16, is_async=False, chunk=0):
    """What the modules of REAL read of vLLM's configuration."""
    from vllm.config.kv_transfer import KVTransferConfig  # pylint: disable=import-outside-toplevel
    return types.SimpleNamespace(
        kv_transfer_config=KVTransferConfig(**transfer) if transfer else None,
        parallel_config=types.SimpleNamespace(
            tensor_parallel_size=tp_size, rank=0, world_size=tp_size, pipeline_parallel_size=1, data_parallel_index=0,
            decode_context_parallel_size=1, prefill_context_parallel_size=1, data_parallel_rank=0),
        model_config=types.SimpleNamespace(
            model=model, dtype=dtype, max_model_len=4096, is_encoder_decoder=False, is_diffusion=False,
            enable_return_routed_experts=False, return_sampling_mask=False, is_multimodal_model=False, uses_mrope=False),
        cache_config=types.SimpleNamespace(
            block_size=block_size, cache_dtype='auto', num_gpu_blocks=64, enable_prefix_caching=True, mamba_cache_mode='none'),
        scheduler_config=types.SimpleNamespace(
            disable_hybrid_kv_cache_manager=True, max_num_seqs=4, max_num_scheduled_tokens=None, max_num_batched_tokens=256,
            policy='fcfs', watermark=0.0, scheduler_reserve_full_isl=False, long_prefill_token_threshold=chunk,
            enable_chunked_prefill=True, async_scheduling=is_async, max_num_partial_prefills=1, max_num_encoder_input_tokens=0,
            encoder_cache_size=0, prefill_max_num_scheduled_tokens=None),
        lora_config=None, kv_events_config=None, ec_transfer_config=None, speculative_config=None, structured_outputs_config=None,
        observability_config=types.SimpleNamespace(kv_cache_metrics=False, enable_mfu_metrics=False, per_request_spec_decode_metrics=False),
        ec_manager_config=types.SimpleNamespace(get_encoder_cache_manager_obj=lambda: None), is_encoder_only=False,
        max_concurrent_batches=1 + is_async, num_speculative_tokens=0, num_lookahead_tokens=0, max_in_flight_tokens=256,
        use_v2_model_runner=False)


def scheduler(transfer, layers, blocks, block_size, tp_size=1, is_mla=False, is_async=False, chunk=0):
    """vLLM's scheduler of one attention group; returns it, its configuration and its KV cache's.

    is_async: the one that plans a step before it has the output of the last. chunk: tokens of a request in a step; 0: no bound.
    """
    # pylint: disable=import-outside-toplevel
    import torch
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, MLAAttentionSpec
    heads = {'num_kv_heads': 1, 'head_size': 16} if is_mla else {'num_kv_heads': 2, 'head_size': 8}
    spec = (MLAAttentionSpec if is_mla else FullAttentionSpec)(block_size=block_size, dtype=torch.float16, **heads)
    tensors = [KVCacheTensor(size=blocks * spec.page_size_bytes, shared_by=[layer]) for layer in layers]
    kv_cache_config = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=tensors,
                                    kv_cache_groups=[KVCacheGroupSpec(layer_names=list(layers), kv_cache_spec=spec)])
    config = vllm_config(transfer, block_size=block_size, tp_size=tp_size, is_async=is_async, chunk=chunk)
    manager = types.SimpleNamespace(grammar_bitmask=lambda *_, **__: None, should_advance=lambda *_, **__: False)
    registry = types.SimpleNamespace(supports_multimodal_inputs=lambda _: False)
    made = (AsyncScheduler if is_async else Scheduler)(config, kv_cache_config, manager, block_size, mm_registry=registry)
    return made, config, kv_cache_config


def request(name, prompt, block_size, tokens=1):
    """vLLM's request for so many tokens."""
    # pylint: disable=import-outside-toplevel
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request
    init_none_hash(sha256)
    sampling = types.SimpleNamespace(
        max_tokens=tokens, min_tokens=0, eos_token_id=None, stop_token_ids=[], all_stop_token_ids=set(), extra_args=None, logprobs=None,
        num_logprobs=None, prompt_logprobs=None, skip_reading_prefix_cache=False, repetition_detection=None,
        structured_outputs=None)
    given = {'request_id': name, 'prompt_token_ids': list(prompt), 'sampling_params': sampling, 'pooling_params': None,
             'eos_token_id': None, 'block_hasher': get_request_block_hasher(block_size, sha256)}
    known = inspect.signature(Request.__init__).parameters
    return Request(**{key: value for key, value in given.items() if key in known})


_numbers = itertools.count()
