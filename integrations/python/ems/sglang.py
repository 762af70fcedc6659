"""EMS as HiCache storage of SGLang ("dynamic" backend, interface v1). docs/engines/SGLANG.md has the lines.

EmsHiCache is made when it is first asked for, for it is a subclass of SGLang's HiCacheStorage; HiCacheSeat is the rest.
"""
import importlib
import logging

from ems.engine_queue import EngineQueue
from ems.tensors import contiguous_span

BASE = 'sglang.srt.mem_cache.hicache_storage'
log = logging.getLogger('ems')
_QUEUE_OPTIONS = ('controller', 'namespace', 'timeout', 'start_timeout', 'durability', 'shm_token', 'transport')
_THEIRS = ('backend_name', 'module_path', 'class_name', 'interface_v1')


class HiCacheSeat:
    """One a TP rank. Pages go straight between the pool and SGLang's host memory, on the calling thread.

    `storage_config.extra_config` may have: controller, namespace, timeout (1.0 s, of each call), start_timeout, durability,
    shm_token, transport; `domain`: a text that keeps deployments apart; `dtype` of the KV cache and `extra_key`, which SGLang's
    page hashes do not cover. Everything of HiCacheStorageConfig that makes bytes differ is in the domain, too: model, ranks,
    layout. Nothing here raises once it is made, and lists are always full: a page that is not there, is of another length, or
    could not be asked for in time is False, and SGLang computes it.
    """

    def __init__(self, storage_config, kwargs=None):
        extra = {**(getattr(storage_config, 'extra_config', None) or {}), **(kwargs or {})}
        unknown = sorted(set(extra) - set(_QUEUE_OPTIONS) - set(_THEIRS) - {'domain', 'dtype', 'extra_key'})
        if unknown:
            log.warning('options that EMS does not know are left out: %s', ', '.join(unknown))
        is_mla = bool(getattr(storage_config, 'is_mla_model', False))

        def number(name, otherwise):
            value = getattr(storage_config, name, None)
            return otherwise if value is None else int(value)
        # MLA: all tp ranks hold the same bytes, and SGLang lets rank 0 write.
        tp_rank, tp_size = (0, 1) if is_mla else (number('tp_rank', 0), number('tp_size', 1))
        custom = [(name, str(getattr(storage_config, name))) for name in
                  ('cp_rank', 'cp_size', 'dp_rank', 'dp_size', 'is_page_first_layout', 'tp_lcm_size')
                  if getattr(storage_config, name, None) is not None and not name.startswith('dp_')]
        custom += [(name, str(extra.get(name, ''))) for name in ('domain', 'extra_key')]
        self._queue = EngineQueue(
            {'model': str(getattr(storage_config, 'model_name', None) or 'sglang'), 'dtype': str(extra.get('dtype', '')),
             'tp_rank': tp_rank, 'tp_size': tp_size, 'pp_rank': number('pp_rank', 0), 'pp_size': number('pp_size', 1),
             'custom': custom},
            **{'timeout': 1.0, **{name: extra[name] for name in _QUEUE_OPTIONS if name in extra}})
        self._pool = None
        self._counts = {'requested_pages': 0, 'hit_pages': 0, 'loaded_pages': 0, 'stored_pages': 0}

    # --- Interface v1

    def register_mem_pool_host(self, mem_pool_host):
        """`mem_pool_host.get_page_buffer_meta(indices)` says where pages are: (addresses, sizes), one or more a page."""
        self._pool = mem_pool_host

    def batch_exists(self, keys, extra_info=None):
        """How many of the first pages are there, one after the other."""
        found = self._leading(self._queue.run_at('exists', list(keys))[0])
        self._counts['requested_pages'] += len(keys)
        self._counts['hit_pages'] += found
        return found

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        """Fills the pages of the host pool; a bool for each key. What was False is undefined."""
        done = self._pages('get', keys, host_indices)
        self._counts['loaded_pages'] += sum(done)
        return done

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        """Stores pages of the host pool; a bool for each key. A page that is there is stored, and moves nothing."""
        done = self._pages('set', keys, host_indices)
        self._counts['stored_pages'] += sum(done)
        return done

    def _pages(self, kind, keys, host_indices):
        keys = list(keys)
        if not keys:
            return []
        try:
            page_size = getattr(self._pool, 'page_size', None)
            if page_size is not None and len(host_indices) != len(keys) * page_size:
                raise ValueError(f'{len(keys)} keys of pages of {page_size}, but {len(host_indices)} indices')
            addresses, sizes = self._pool.get_page_buffer_meta(host_indices)[:2]
            if len(addresses) % len(keys):
                raise ValueError(f'{len(keys)} keys, but pieces of memory for {len(addresses)}')
        except Exception as error:  # it would end SGLang's thread for good
            log.error('no pages: %s', error)
            return [False] * len(keys)
        return self._queue.run_at(kind, keys, addresses, sizes, len(addresses) // len(keys))[0]

    @staticmethod
    def _leading(flags):
        return flags.index(False) if False in flags else len(flags)

    # --- The generic interface: tensors one by one

    def exists(self, key):
        return self._queue.run_at('exists', [key])[0][0]

    def get(self, key, target_location=None, target_sizes=None):
        """`target_location` filled, or None."""
        return self.batch_get([key], [target_location], target_sizes)[0]

    def batch_get(self, keys, target_locations=None, target_sizes=None):
        """For each key its tensor of `target_locations`, filled, or None."""
        done = self._tensors('get', keys, target_locations)
        return [target if flag else None for flag, target in zip(done, target_locations or [None] * len(keys))]

    def set(self, key, value=None, target_location=None, target_sizes=None):
        return self.batch_set([key], [value if value is not None else target_location])

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        """True: all of them are stored."""
        return all(self._tensors('set', keys, values if values is not None else target_locations))

    def _tensors(self, kind, keys, values):
        try:
            spans = [contiguous_span(tensor) for tensor in values]
            return self._queue.run_at(kind, list(keys), [span[0] for span in spans], [span[1] for span in spans])[0]
        except Exception as error:
            log.error('no tensors: %s', error)
            return [False] * len(keys)

    # --- The rest

    def clear(self):
        """Does nothing: the pool is shared, and evicts by itself. `emsctl` removes what a namespace holds."""

    def get_stats(self):
        """Pages since the start: requested, hit (by batch_exists), loaded, stored."""
        return dict(self._counts)

    def close(self):
        self._queue.close()


def __getattr__(name):
    if name != 'EmsHiCache':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    try:
        base = importlib.import_module(BASE).HiCacheStorage
    except (ImportError, AttributeError) as error:
        raise ImportError(f'ems.sglang.EmsHiCache needs SGLang with HiCache storage ({BASE}.HiCacheStorage; try '
                          f'"pip install sglang"), in this Python: {error}') from error
    cls = type('EmsHiCache', (HiCacheSeat, base), {'__module__': __name__, '__doc__': HiCacheSeat.__doc__})
    globals()[name] = cls
    return cls
