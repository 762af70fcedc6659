"""What SGLang's HiCache has on its side of the contract, restated: the abstract class, its configuration, and a host pool."""
import abc
import enum
import sys
import types
from dataclasses import dataclass

import numpy

MODULE = 'sglang.srt.mem_cache.hicache_storage'


class PoolName(str, enum.Enum):
    KV = 'kv'
    MAMBA = 'mamba'
    SWA = 'swa'
    INDEXER = 'indexer'
    DRAFT = 'draft'
    DEEPSEEK_V4_C4 = 'deepseek_v4_c4'


class PoolHitPolicy(str, enum.Enum):
    ALL_PAGES = 'all_pages'
    TRAILING_PAGES = 'trailing_pages'


@dataclass
class PoolTransfer:
    name: PoolName
    host_indices: object = None
    keys: list = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES


@dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict


class HiCacheStorage(abc.ABC):
    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        raise NotImplementedError

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        raise NotImplementedError

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        ...

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        raise NotImplementedError

    def batch_get_v2(self, transfers, extra_info=None):
        raise NotImplementedError

    def batch_set_v2(self, transfers, extra_info=None):
        raise NotImplementedError

    @abc.abstractmethod
    def get(self, key, target_location=None, target_sizes=None):
        ...

    @abc.abstractmethod
    def batch_get(self, keys, target_locations=None, target_sizes=None):
        ...

    @abc.abstractmethod
    def set(self, key, value=None, target_location=None, target_sizes=None):
        ...

    @abc.abstractmethod
    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        ...

    @abc.abstractmethod
    def exists(self, key):
        ...

    def batch_exists(self, keys, extra_info=None):
        for at, key in enumerate(keys):
            if not self.exists(key):
                return at
        return len(keys)

    def clear(self):
        ...

    def get_stats(self):
        return None


@dataclass
class HiCacheStorageConfig:
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0  # each has a slice of each page
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    is_page_first_layout: bool = True
    model_name: str = 'llama'
    dp_rank: int = 0
    dp_size: int = 1
    tp_lcm_size: int = None
    should_split_heads: bool = False
    extra_config: dict = None


@dataclass
class StorageMetrics:
    prefetch_pgs: list
    backup_pgs: list


def check_hicache_events(storage):
    """What the scheduler does with the figures in each round, with --enable-metrics."""
    metrics = storage.get_stats()
    if metrics is not None:
        assert isinstance(metrics, StorageMetrics)


@dataclass
class DevicePool:
    dtype: str = 'torch.bfloat16'  # of the numbers


class HostPool:
    """Pages of K and V, page first: [pages, 2, page bytes]. An index is a token's; a page has `page_size` of them.

    Its dtype is that of storing, as SGLang's: uint8 for both kinds of fp8, which the device's pool tells apart.
    """

    def __init__(self, pages, page_size=16, page_bytes=8192, is_mla=False, dtype='bfloat16', layout='page_first'):
        self.page_size, self.is_mla, self.layout = page_size, is_mla, layout
        self.dtype = 'torch.uint8' if dtype.startswith('float8') else f'torch.{dtype}'
        self.device_pool = DevicePool(f'torch.{dtype}')
        self.layer_num, self.start_layer, self.end_layer, self.head_num, self.head_dim = 4, 0, 4, 2, 32
        self.memory = numpy.zeros((pages, 1 if is_mla else 2, page_bytes), numpy.uint8)

    def indices(self, pages):
        return numpy.concatenate([numpy.arange(page * self.page_size, (page + 1) * self.page_size) for page in pages])

    def get_page_buffer_meta(self, indices):
        addresses, sizes = [], []
        for page in numpy.asarray(indices)[::self.page_size] // self.page_size:
            for part in self.memory[page]:
                addresses.append(part.ctypes.data)
                sizes.append(part.nbytes)
        return addresses, sizes


def install():
    """As if SGLang were there."""
    module = types.ModuleType(MODULE)
    module.HiCacheStorage, module.HiCacheStorageConfig = HiCacheStorage, HiCacheStorageConfig
    module.PoolTransferResult = PoolTransferResult
    for name in ('sglang', 'sglang.srt', 'sglang.srt.mem_cache'):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[MODULE] = module


class LogicalPool:
    """DeepSeek V4's KV pool: pages are counted, and have no memory."""

    dtype, layout, kv_buffer, size_per_token = 'torch.uint8', 'page_first', None, 0

    def __init__(self, page_size=16):
        self.page_size = page_size

    def get_page_buffer_meta(self, indices):
        return None


class StatePool(HostPool):
    """Mamba's: one state has the memory of a page, and pieces of two kinds."""

    def __init__(self, states, temporal=4096, conv=1024):
        super().__init__(states, page_size=1)
        del self.head_num, self.head_dim
        self.temporal_state_shape, self.conv_state_shapes = (temporal,), [(conv,)]
        self.memory = numpy.zeros((states, temporal + conv), numpy.uint8)

    def get_page_buffer_meta(self, indices):
        temporal, addresses, sizes = self.temporal_state_shape[0], [], []
        for state in numpy.asarray(indices):
            for part in (self.memory[state, :temporal], self.memory[state, temporal:]):
                addresses.append(part.ctypes.data)
                sizes.append(part.nbytes)
        return addresses, sizes


class PoolGroup:
    """A pool and others beside it, as hybrid models have; it tells less itself."""

    def __init__(self, anchor, **beside):
        self.layout, self.page_size = anchor.layout, anchor.page_size
        self.kv_buffer = getattr(anchor, 'kv_buffer', anchor)
        self.anchor_entry = types.SimpleNamespace(name=PoolName.KV, host_pool=anchor)
        self.entries = [self.anchor_entry] + [types.SimpleNamespace(name=PoolName(name), host_pool=pool)
                                              for name, pool in beside.items()]
        self.get_page_buffer_meta = anchor.get_page_buffer_meta


def backend(cluster_address, pool, config_class=HiCacheStorageConfig, **config):
    """Made as SGLang's factory makes a dynamic backend."""
    import importlib  # pylint: disable=import-outside-toplevel
    extra = {'backend_name': 'ems', 'module_path': 'ems.sglang', 'class_name': 'EmsHiCache', 'interface_v1': 1,
             'controller': cluster_address, **config.pop('extra', {})}
    cls = getattr(importlib.import_module(extra['module_path']), extra['class_name'])
    if not issubclass(cls, HiCacheStorage):
        raise TypeError('a dynamic backend must be a HiCacheStorage')
    storage = cls(config_class(extra_config=extra, **config), {})
    storage.register_mem_pool_host(pool)
    for entry in getattr(pool, 'entries', ()):
        storage.register_mem_host_pool_v2(entry.host_pool, entry.name)
    return storage
