"""SGLang's own modules from a folder of its sources, without a GPU: what is not named in REAL is a stand-in that does nothing."""
import hashlib
import importlib
import os
import threading
import time
from types import SimpleNamespace

import stand_ins
import torch

REAL = ('sglang.srt.mem_cache.hicache_storage', 'sglang.srt.mem_cache.storage', 'sglang.srt.mem_cache.storage.backend_factory',
        'sglang.srt.mem_cache.memory_pool_host', 'sglang.srt.mem_cache.pool_host', 'sglang.srt.mem_cache.pool_host.base',
        'sglang.srt.mem_cache.pool_host.common', 'sglang.srt.mem_cache.pool_host.hisparse',
        'sglang.srt.mem_cache.pool_host.mamba', 'sglang.srt.mem_cache.pool_host.mha', 'sglang.srt.mem_cache.pool_host.mla',
        'sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller', 'sglang.srt.managers.cache_controller')
STAND_INS = ('sglang', 'sgl_kernel', 'psutil')
PAGE, LAYERS, PAGES = 16, 2, 8


class Dtype:
    """torch before 2.1 has no dtype.itemsize."""

    def __init__(self, name, itemsize):
        self._name, self.itemsize = name, itemsize

    def __str__(self):
        return f'torch.{self._name}'


BF16, U8 = Dtype('bfloat16', 2), Dtype('uint8', 1)


def _memory(dims, dtype):
    """Host memory of these dimensions; the last one counts the bytes of an element."""
    return torch.zeros((*dims, getattr(dtype, 'itemsize', 1)), dtype=torch.uint8)


class _States:
    """A tensor on the device: it tells its shape."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype

    def __getitem__(self, at):
        return torch.zeros(1)


class Event:
    def record(self):
        pass


def install(folder):
    """Once in a process."""
    stand_ins.install(os.path.join(folder, 'python'), REAL, STAND_INS)
    if not hasattr(torch, 'uint64'):
        torch.uint64 = torch.int64  # of tables of addresses that only kernels read
    module = importlib.import_module
    module('psutil').virtual_memory = lambda: SimpleNamespace(available=1 << 40)
    module('sglang.srt.utils').get_device_module = lambda: SimpleNamespace(Event=Event, Stream=Event)
    module('sglang.srt.mem_cache.utils').get_hash_str = lambda tokens, last, page_size: hashes(tokens, page_size)
    one = SimpleNamespace(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_tp_rank=0, attn_tp_size=1)
    module('sglang.srt.runtime_context').get_parallel = lambda: one
    distributed = module('sglang.srt.distributed')
    distributed.get_tensor_model_parallel_rank, distributed.get_tensor_model_parallel_world_size = lambda: 0, lambda: 1
    torch.distributed.get_world_size = lambda group=None: 1
    module('sglang.srt.mem_cache.storage.mmap').alloc_mmap, empty = _memory, torch.empty
    torch.empty = lambda *dims, dtype=None, **more: (
        _memory(*dims, dtype) if isinstance(dtype, Dtype) else empty(*dims, dtype=dtype, **more))
    memory_pool = module('sglang.srt.mem_cache.memory_pool')
    memory_pool.DSATokenToKVPool.index_k_with_scale_buffer_dtype = U8
    for name in ('sglang.srt.mem_cache.pool_host.base', 'sglang.srt.mem_cache.memory_pool_host'):
        try:
            host = module(name)
        except ImportError:
            continue
        if hasattr(host, 'host_memory_budget_bytes'):
            host.host_memory_budget_bytes = lambda: 1 << 40


def is_hybrid():
    return hasattr(importlib.import_module('sglang.srt.mem_cache.hicache_storage'), 'PoolTransfer')


def _device_pool(cls, **more):
    pool = cls()
    values = {'store_dtype': BF16, 'dtype': BF16, 'size': PAGES * PAGE // 2, 'start_layer': 0, 'end_layer': LAYERS - 1,
              'layer_num': LAYERS, 'device': 'cpu', 'kv_lora_rank': 32, 'qk_rope_head_dim': 16, 'kv_cache_dim': 48,
              'layer_shard_enabled': False, 'index_head_dim': 32, 'quant_block_size': 32, 'head_num': 2, 'head_dim': 16,
              'register_layer_transfer_counter': lambda counter: None, **more}
    for name, value in values.items():
        setattr(pool, name, value)
    for name in ('kv_buffer', 'k_buffer', 'v_buffer', 'index_k_with_scale_buffer'):
        setattr(pool, name, [torch.zeros(4) for _ in range(LAYERS)])
    return pool


def mla_pool():
    """(device pool, host pool), both releases."""
    module = 'pool_host.mla' if is_hybrid() else 'memory_pool_host'
    cls = importlib.import_module(f'sglang.srt.mem_cache.{module}').MLATokenToKVPoolHost
    device = _device_pool(importlib.import_module('sglang.srt.mem_cache.memory_pool').MLATokenToKVPool)
    return device, cls(device, 2.0, 0, PAGE, 'page_first', pin_memory=False)


def hybrid_group():
    """(device pool, group of MLA's pool, an indexer and states of Mamba)."""
    pools = importlib.import_module('sglang.srt.mem_cache.memory_pool_host')
    name = importlib.import_module('sglang.srt.mem_cache.hicache_storage').PoolName
    device, kv = mla_pool()
    indexer = pools.DSAIndexerPoolHost(
        _device_pool(importlib.import_module('sglang.srt.mem_cache.memory_pool').DSATokenToKVPool), kv, 'page_first',
        pin_memory=False)
    state = SimpleNamespace(num_mamba_layers=LAYERS, size=4, device='cpu', mamba_cache=SimpleNamespace(
        conv=[_States((LAYERS, 4, 24), BF16)], temporal=_States((LAYERS, 4, 8, 8), Dtype('float32', 4))))
    states = importlib.import_module('sglang.srt.mem_cache.pool_host.mamba').MambaPoolHost(
        state, 2.0, 0, pin_memory=False, layout='page_first')
    return device, _group(((name.KV, kv), (name.INDEXER, indexer), (name.MAMBA, states)))


def deepseek_group():
    """(device pool, group of DeepSeek V4's KV pool, which holds no memory, a compressed pool and one of windows)."""
    pools = importlib.import_module('sglang.srt.mem_cache.memory_pool_host')
    name = importlib.import_module('sglang.srt.mem_cache.hicache_storage').PoolName
    cls = importlib.import_module('sglang.srt.mem_cache.deepseek_v4_memory_pool').DeepSeekV4TokenToKVPool
    beside = [(which, pools.DeepSeekV4PagedHostPool(which.value, [torch.zeros(4) for _ in range(LAYERS)], 256, PAGES, PAGE,
                                                    'page_first', pin_memory=False))
              for which in (name.DEEPSEEK_V4_C4, name.SWA)]
    for _, pool in beside:
        pool.dtype = U8
    return _device_pool(cls), _group([(name.KV, pools.LogicalHostPool(PAGES * PAGE, PAGE, 'page_first')), *beside])


def _group(named):
    pools = importlib.import_module('sglang.srt.mem_cache.memory_pool_host')
    return pools.HostPoolGroup([
        pools.PoolEntry(name=name, host_pool=pool, device_pool=None, layer_mapper=lambda layer: layer,
                        is_primary_index_anchor=name == 'kv') for name, pool in named])


def controller(device, host, address, **extra):
    """SGLang's own, with its threads, storage attached as its command line does."""
    config = {'backend_name': 'ems', 'module_path': 'ems.sglang', 'class_name': 'EmsHiCache', 'interface_v1': 1,
              'controller': address, 'timeout': 10, **extra}
    if is_hybrid():
        cls = importlib.import_module('sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller').HybridCacheController
    else:
        cls = importlib.import_module('sglang.srt.managers.cache_controller').HiCacheController
    allocator = SimpleNamespace(get_kvcache=lambda: device)
    return cls(allocator, host, PAGE, None, threading.Event(), storage_backend='dynamic', prefetch_threshold=PAGE,
               model_name='glm', storage_backend_extra_config=config)


def hashes(tokens, page):
    """SGLang's: a chain of SHA-256."""
    result, last = [], b''
    for at in range(0, len(tokens) - len(tokens) % page, page):
        last = hashlib.sha256(last + b''.join(token.to_bytes(4, 'little') for token in tokens[at:at + page])).digest()
        result.append(last.hex())
    return result


def memory_of(pools):
    """Each pool's tensors, by pages or states."""
    tensors = []
    for pool in [entry.host_pool for entry in getattr(pools, 'entries', ())] or [pools]:
        if hasattr(pool, 'temporal_buffer'):
            tensors += [one.view(-1).view(pool.size, -1) for one in (pool.temporal_buffer, pool.conv_buffer[0])]
        elif hasattr(pool, 'index_k_with_scale_buffer'):
            tensors.append(pool.index_k_with_scale_buffer.flatten(1))
        elif pool.kv_buffer is not None:
            tensors.append(pool.kv_buffer.view(-1).view(pool.size // PAGE, -1))
    return tensors


def transfers(group, keys):
    """As SGLang makes them: the second pool takes the KV pool's indices and all pages, the third one has what is for the last."""
    storage = importlib.import_module('sglang.srt.mem_cache.hicache_storage')
    _, whole, last = group.entries
    return [storage.PoolTransfer(whole.name, indices_from_pool=storage.PoolName.KV),
            storage.PoolTransfer(last.name, host_indices=last.host_pool.alloc(last.host_pool.page_size), keys=keys[-1:],
                                 hit_policy=storage.PoolHitPolicy.TRAILING_PAGES)]


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, 'not in time'
        time.sleep(0.01)
