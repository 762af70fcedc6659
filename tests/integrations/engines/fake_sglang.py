"""What SGLang's HiCache has on its side of the contract, restated: the abstract class, its configuration, and a host pool."""
import abc
import sys
import types
from dataclasses import dataclass

import numpy

MODULE = 'sglang.srt.mem_cache.hicache_storage'


class HiCacheStorage(abc.ABC):
    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        raise NotImplementedError

    def batch_set_v1(self, keys, host_indices, extra_info=None):
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
    is_mla_model: bool = False
    is_page_first_layout: bool = True
    model_name: str = 'llama'
    extra_config: dict = None


class HostPool:
    """Pages of K and V, page first: [pages, 2, page bytes]. An index is a token's; a page has `page_size` of them."""

    def __init__(self, pages, page_size=16, page_bytes=8192, is_mla=False):
        self.page_size, self.is_mla = page_size, is_mla
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
    for name in ('sglang', 'sglang.srt', 'sglang.srt.mem_cache'):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[MODULE] = module


def backend(cluster_address, pool, **config):
    """Made as SGLang's factory makes a dynamic backend."""
    import importlib  # pylint: disable=import-outside-toplevel
    extra = {'backend_name': 'ems', 'module_path': 'ems.sglang', 'class_name': 'EmsHiCache', 'interface_v1': 1,
             'controller': cluster_address, **config.pop('extra', {})}
    cls = getattr(importlib.import_module(extra['module_path']), extra['class_name'])
    if not issubclass(cls, HiCacheStorage):
        raise TypeError('a dynamic backend must be a HiCacheStorage')
    storage = cls(HiCacheStorageConfig(extra_config=extra, **config), {})
    storage.register_mem_pool_host(pool)
    return storage
