"""EMS as HiCache storage of SGLang ("dynamic" backend, interface v1). docs/engines/SGLANG.md has the lines.

EmsHiCache is made when it is first asked for, for it is a subclass of SGLang's HiCacheStorage; HiCacheConnector is the rest.
"""
import importlib
import json
import logging

from ems.engine_queue import EngineQueue, hasher_of
from ems.errors import InvalidArgument
from ems.tensors import contiguous_span

BASE = 'sglang.srt.mem_cache.hicache_storage'
log = logging.getLogger('ems')
_QUEUE_OPTIONS = ('controller', 'namespace', 'timeout', 'start_timeout', 'durability', 'shm_token', 'transport')
_THEIRS = ('backend_name', 'module_path', 'class_name', 'interface_v1')
_ELSEWHERE = ('tp_rank', 'tp_size', 'tp_lcm_size', 'pp_rank', 'pp_size')
_REPLICAS = ('dp_rank', 'dp_size')  # they compute the same
RANKS = (*_ELSEWHERE, *_REPLICAS, 'attn_cp_rank', 'attn_cp_size')  # that are known
_POOL_SHAPE = ('layout', 'page_size', 'layer_num', 'start_layer', 'end_layer', 'head_num', 'head_dim', 'v_head_dim',
               'kv_lora_rank', 'qk_rope_head_dim')


def _fields(config):
    """{name: value} of a HiCacheStorageConfig, whatever SGLang's version has; None is left out."""
    names = getattr(config, '__dataclass_fields__', None) or vars(config)
    return {name: getattr(config, name) for name in names if getattr(config, name) is not None}


def _slices(fields):
    """[(name, value)] of ranks and sizes beside tp's and pp's, but 0 of 1: such a rank may have a slice of each page.

    One that is not known here is taken for such a one: ranks share less than they might, and never wrong bytes.
    """
    result = []
    for name, value in sorted(fields.items()):
        if not name.endswith(('_rank', '_size')) or name in _ELSEWHERE + _REPLICAS:
            continue
        if str(value) == ('0' if name.endswith('_rank') else '1'):
            continue
        if name not in RANKS:
            log.warning("EMS does not know SGLang's %s: only those with the same %s share pages", name, value)
        result.append((name, str(value)))
    return result


def _dtype_name(dtype):
    """torch.bfloat16: 'bfloat16'. None: ''."""
    return '' if dtype is None else str(dtype).rsplit('.', maxsplit=1)[-1]


def _facts_of(pool):
    """{name: text} of what makes the bytes of a page, as the host pool tells it; what it does not tell is left out.

    Its own dtype is the one of storing, uint8 for each kind of fp8; that of the numbers is in the device's pool.
    """
    pool = getattr(getattr(pool, 'anchor_entry', None), 'host_pool', None) or pool  # a group of pools
    facts = {'pool': type(pool).__name__, 'pool_stored_dtype': _dtype_name(getattr(pool, 'dtype', None)),
             'pool_dtype': _dtype_name(getattr(getattr(pool, 'device_pool', None), 'dtype', None))}
    for name in _POOL_SHAPE:
        facts[f'pool_{name}'] = str(getattr(pool, name, ''))
    return {name: text for name, text in facts.items() if text}


class HiCacheConnector:
    """One a TP rank. Pages go straight between the pool and SGLang's host memory, on the calling thread.

    `storage_config.extra_config` may have: controller, namespace, timeout (1.0 s, of each call), start_timeout, durability,
    shm_token, transport; `domain`: a text that keeps deployments apart; `extra_key`, which SGLang's page hashes do not cover;
    `dtype` of the KV cache, needed only where the host pool does not tell it. All of HiCacheStorageConfig and of the host
    pool that makes bytes differ is in the domain, too: model, ranks, dtype, layout, shape. Nothing here raises once the host
    pool is registered, and lists are always full: a page that is not there, is of another length, or could not be asked for
    in time is False, and SGLang computes it.
    """

    def __init__(self, storage_config, kwargs=None):
        fields = _fields(storage_config)
        extra = {**fields.get('extra_config', {}), **(kwargs or {})}
        unknown = sorted(set(extra) - set(_QUEUE_OPTIONS) - set(_THEIRS) - {'domain', 'dtype', 'extra_key'})
        if unknown:
            log.warning('options that EMS does not know are left out: %s', ', '.join(unknown))
        # MLA: all tp ranks hold the same bytes, and SGLang lets rank 0 write.
        tp_rank, tp_size = (0, 1) if fields.get('is_mla_model') else (fields.get('tp_rank', 0), fields.get('tp_size', 1))
        custom = [(name, str(extra.get(name, ''))) for name in ('domain', 'extra_key')]
        custom += [(name, str(fields[name])) for name in ('is_page_first_layout', 'should_split_heads', 'tp_lcm_size')
                   if fields.get(name)]
        self._fixed = {
            'model': str(fields.get('model_name') or 'sglang'), 'dtype': str(extra.get('dtype', '')),
            'tp_rank': int(tp_rank), 'tp_size': int(tp_size), 'pp_rank': int(fields.get('pp_rank', 0)),
            'pp_size': int(fields.get('pp_size', 1)), 'custom': custom + _slices(fields)}
        self._queue = EngineQueue(
            self._fixed, **{'timeout': 1.0, **{name: extra[name] for name in _QUEUE_OPTIONS if name in extra}})
        self._pool = None
        self._use_domain(self._fixed)
        self._counts = {'requested_pages': 0, 'hit_pages': 0, 'loaded_pages': 0, 'stored_pages': 0}

    def _use_domain(self, domain):
        self._domain, self._hasher = domain, hasher_of(domain)

    @property
    def domain(self):
        """What has to be equal where pages may meet, as ems.kv_events.BlockNames takes it: final with the host pool."""
        return {**self._domain, 'custom': list(self._domain['custom'])}

    # --- Interface v1

    def register_mem_pool_host(self, mem_pool_host):
        """`mem_pool_host.get_page_buffer_meta(indices)` says where pages are: (addresses, sizes), one or more a page.

        Before any other call. Raises InvalidArgument for a pool that does not tell its dtype, where `dtype` was not given.
        """
        facts = _facts_of(mem_pool_host)
        if not self._fixed['dtype'] and 'pool_stored_dtype' not in facts:
            raise InvalidArgument('the host pool does not tell its dtype: "dtype" has to be in the extra config')
        self._use_domain({**self._fixed, 'custom': self._fixed['custom'] + sorted(facts.items())})
        self._pool = mem_pool_host
        log.info('pages are of the domain %s', json.dumps(self._domain))

    def batch_exists(self, keys, extra_info=None):
        """How many of the first pages are there, one after the other."""
        flags = self._run('exists', keys)
        found = flags.index(False) if False in flags else len(flags)
        self._counts['requested_pages'] += len(flags)
        self._counts['hit_pages'] += found
        return found

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        """Fills the pages of the host pool; a bool for each key. What was False is undefined."""
        done = self._run('get', keys, lambda count: self._where(count, host_indices))
        self._counts['loaded_pages'] += sum(done)
        return done

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        """Stores pages of the host pool; a bool for each key. A page that is there is stored, and moves nothing."""
        done = self._run('set', keys, lambda count: self._where(count, host_indices))
        self._counts['stored_pages'] += sum(done)
        return done

    def _where(self, count, host_indices):
        """(addresses, sizes) of `count` pages."""
        page_size = getattr(self._pool, 'page_size', None)
        if page_size is not None and len(host_indices) != count * page_size:
            raise ValueError(f'{count} keys of pages of {page_size}, but {len(host_indices)} indices')
        addresses, sizes = self._pool.get_page_buffer_meta(host_indices)[:2]
        if len(addresses) % count:
            raise ValueError(f'{count} keys, but pieces of memory for {len(addresses)}')
        return addresses, sizes

    def _run(self, kind, keys, where=None):
        """A bool for each key. `where(how many)`: (addresses, sizes) of their memory, as many pieces for each."""
        try:
            keys = list(keys)
            if not keys:
                return []
            names = [self._hasher.own_key(key) for key in keys]
            addresses, sizes = where(len(keys)) if where is not None else (None, None)
            parts = len(addresses) // len(keys) if where is not None else 1
            return self._queue.run_at(kind, names, addresses, sizes, parts, hashed=True)[0]
        except Exception as error:  # it would end SGLang's thread for good
            log.error('no pages: %s', error)
            return [False] * (len(keys) if isinstance(keys, list) else 0)

    # --- The generic interface: tensors one by one

    def exists(self, key):
        return self._run('exists', [key])[0]

    def get(self, key, target_location=None, target_sizes=None):
        """`target_location` filled, or None."""
        return self.batch_get([key], [target_location], target_sizes)[0]

    def batch_get(self, keys, target_locations=None, target_sizes=None):
        """For each key its tensor of `target_locations`, filled, or None."""
        done = self._tensors('get', keys, target_locations)
        return [target if flag else None for flag, target in zip(done, target_locations or [None] * len(done))]

    def set(self, key, value=None, target_location=None, target_sizes=None):
        return self.batch_set([key], [value if value is not None else target_location])

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        """True: all of them are stored."""
        return all(self._tensors('set', keys, values if values is not None else target_locations))

    def _tensors(self, kind, keys, values):
        def where(count):
            spans = [contiguous_span(tensor) for tensor in values]
            if len(spans) != count:
                raise ValueError(f'{count} keys, but {len(spans)} tensors')
            return [span[0] for span in spans], [span[1] for span in spans]
        return self._run(kind, keys, where)

    # --- The rest

    def clear(self):
        """Does nothing: the pool is shared, and evicts by itself. `emsctl` removes what a namespace holds."""

    def get_stats(self):
        """None: SGLang's scheduler takes nothing but a StorageMetrics of its own here, and none at all is one, too."""

    def counts(self):
        """Pages since the start: requested, hit (by batch_exists), loaded, stored."""
        return dict(self._counts)

    def close(self):
        """Waits for calls of other threads, their timeout at most: then nothing touches host memory any more."""
        self._queue.close()


def __getattr__(name):
    if name != 'EmsHiCache':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    try:
        base = importlib.import_module(BASE).HiCacheStorage
    except (ImportError, AttributeError) as error:
        raise ImportError(f'ems.sglang.EmsHiCache needs SGLang with HiCache storage ({BASE}.HiCacheStorage; try '
                          f'"pip install sglang"), in this Python: {error}') from error
    cls = type('EmsHiCache', (HiCacheConnector, base), {'__module__': __name__, '__doc__': HiCacheConnector.__doc__})
    globals()[name] = cls
    return cls
