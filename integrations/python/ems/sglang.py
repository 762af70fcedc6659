"""EMS as HiCache storage of SGLang ("dynamic" backend, interfaces v1 and v2). docs/engines/SGLANG.md has the lines.

EmsHiCache is made when it is first asked for, for it is a subclass of SGLang's HiCacheStorage; HiCacheConnector is the rest.
"""
import importlib
import json
import logging
import time

from ems.engine_queue import EngineQueue
from ems.errors import InvalidArgument
from ems.sglang_pages import KV, MAMBA, RANKS, Pages, is_replicated, slices  # pylint: disable=unused-import  # RANKS: for tests
from ems.tensors import contiguous_span

BASE = 'sglang.srt.mem_cache.hicache_storage'
log = logging.getLogger('ems')
_QUEUE_OPTIONS = ('controller', 'namespace', 'timeout', 'start_timeout', 'durability', 'shm_token', 'transport')
_THEIRS = ('backend_name', 'module_path', 'class_name', 'interface_v1')
_OURS = ('domain', 'dtype', 'extra_key', 'shared_draft')


def _fields(config):
    """{name: value} of a HiCacheStorageConfig, whatever SGLang's version has; None is left out."""
    names = getattr(config, '__dataclass_fields__', None) or vars(config)
    return {name: getattr(config, name) for name in names if getattr(config, name) is not None}


def _text(name):
    """Of a PoolName or a PoolHitPolicy, which are enums of str, or of a str."""
    return str(getattr(name, 'value', name))


def _leading(flags):
    return flags.index(False) if False in flags else len(flags)


class HiCacheConnector:
    """One a TP rank. Pages go straight between the pool and SGLang's host memory, on the calling thread.

    Raises InvalidArgument where neither SGLang nor `domain` says which model it is.

    `storage_config.extra_config` may have: controller, namespace, timeout (1.0 s, of each call), start_timeout, durability,
    shm_token, transport; `domain`: a text that keeps deployments apart; `extra_key`, which SGLang's page hashes do not cover;
    `dtype` of the KV cache, needed only where the host pool does not tell it; `shared_draft`: of an MLA model, draft pages are
    the same on all tp ranks. All of HiCacheStorageConfig and of the host pools that makes bytes differ is in the domain, too:
    model, ranks, dtype, layout, shape, and which pool it is. Nothing but clear() raises once the host pools are registered, and lists
    are always full: a page that is not there, is of another length, or could not be asked for in time is False, and SGLang
    computes it.
    """

    def __init__(self, storage_config, kwargs=None):
        fields = _fields(storage_config)
        extra = {**fields.get('extra_config', {}), **(kwargs or {})}
        unknown = sorted(set(extra) - set(_QUEUE_OPTIONS) - set(_THEIRS) - set(_OURS))
        if unknown:
            log.warning('options that EMS does not know are left out: %s', ', '.join(unknown))
        custom = [(name, str(extra.get(name, ''))) for name in ('domain', 'extra_key')]
        custom += [(name, str(fields[name])) for name in ('is_page_first_layout', 'should_split_heads', 'tp_lcm_size')
                   if fields.get(name)]
        if not extra.get('interface_v1'):  # SGLang then hands over pages of its own making, in another order of layers
            custom.append(('interface', 'generic'))
        if not (fields.get('model_name') or extra.get('domain')):
            raise InvalidArgument('SGLang does not say which model it serves: "domain" has to be in the extra config')
        # What is split between the tp ranks, and what all of them have: of MLA the KV pool, which SGLang lets rank 0 write.
        self._split = {
            'model': str(fields.get('model_name') or 'sglang'), 'dtype': str(extra.get('dtype', '')),
            'tp_rank': int(fields.get('tp_rank', 0)), 'tp_size': int(fields.get('tp_size', 1)),
            'pp_rank': int(fields.get('pp_rank', 0)), 'pp_size': int(fields.get('pp_size', 1)),
            'custom': custom + slices(fields)}
        self._shared = {**self._split, 'tp_rank': 0, 'tp_size': 1} if fields.get('is_mla_model') else self._split
        self._draft = self._shared if extra.get('shared_draft') else self._split
        options = {'timeout': 1.0, **{name: extra[name] for name in _QUEUE_OPTIONS if name in extra}}
        self._timeout = float(options['timeout'] or 1.0)
        self._queue = EngineQueue(self._shared, **options)
        self._beside = {}  # Pages of the pools beside the KV pool, by name
        self._use(None)
        self._counts = {'requested_pages': 0, 'hit_pages': 0, 'loaded_pages': 0, 'stored_pages': 0}

    def _use(self, pool):
        self._pages, self._draft_pages = Pages(self._shared, pool), Pages(self._draft, pool)

    @property
    def domain(self):
        """What has to be equal where pages may meet, as ems.kv_events.BlockNames takes it: final with the host pool."""
        return {**self._pages.domain, 'custom': list(self._pages.domain['custom'])}

    # --- Interface v1: the KV pool

    def register_mem_pool_host(self, mem_pool_host):
        """`mem_pool_host.get_page_buffer_meta(indices)` says where pages are: (addresses, sizes), one or more a page.

        Before any other call. Raises InvalidArgument for a pool that does not tell its dtype, where `dtype` was not given.
        """
        self._use(mem_pool_host)
        log.info('pages are of the domain %s', json.dumps(self._pages.domain))

    def batch_exists(self, keys, extra_info=None):
        """How many of the first pages are there, one after the other. Of a KV pool without memory of its own: none."""
        flags = self._run('exists', self._pages.names, keys)
        return self._asked(len(flags), 0 if self._pages.is_logical else _leading(flags))

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        """Fills the pages of the host pool; a bool for each key. What was False is undefined."""
        return self._moved('loaded_pages', self._move('get', self._pages, keys, host_indices))

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        """Stores pages of the host pool; a bool for each key. A page that is there is stored, and moves nothing."""
        return self._moved('stored_pages', self._move('set', self._pages, keys, host_indices))

    def _move(self, kind, pages, keys, host_indices):
        if pages.is_logical:
            return [True] * len(keys)  # there is nothing to move: it counts once the pools beside it have all
        return self._run(kind, pages.names, keys, lambda count: pages.memory(count, host_indices))

    def _run(self, kind, names_of, keys, where=None):
        """A bool for each key. `where(how many)`: (addresses, sizes) of their memory, as many pieces for each."""
        try:
            keys = list(keys)
            if not keys:
                return []
            names = names_of(keys)
            addresses, sizes = where(len(keys)) if where is not None else (None, None)
            parts = len(addresses) // len(keys) if where is not None else 1
            return self._queue.run_at(kind, names, addresses, sizes, parts, hashed=True)[0]
        except Exception as error:  # it would end SGLang's thread for good
            log.error('no pages: %s', error)
            return [False] * (len(keys) if isinstance(keys, list) else 0)

    def _asked(self, requested, found):
        self._counts['requested_pages'] += requested
        self._counts['hit_pages'] += found
        return found

    def _moved(self, what, done):
        self._counts[what] += sum(done)
        return done

    # --- Interface v2: pools beside the KV pool, which hybrid models have (Mamba, SWA, DSA). Names of one pool are no other's.

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        """As register_mem_pool_host, for each pool of a group; the KV pool is registered by that already."""
        name = _text(host_pool_name)
        if name == KV:
            return
        is_shared = name != MAMBA and is_replicated(host_pool)
        if self._shared is not self._split and self._split['tp_size'] > 1 and name != MAMBA and not is_shared:
            log.warning('of an MLA model SGLang lets tp rank 0 alone store pages of %s, and these are each rank\'s own: the other ranks '
                        'find none, and what one has not is loaded on none. Serve it without this pool, as without such a draft model',
                        name)
        self._beside[name] = pages = Pages(self._shared if is_shared else self._split, host_pool, name)
        log.info('pages of %s are of the domain %s', name, json.dumps(pages.domain))

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        """A PoolTransferResult: how many of the first pages are there with all that `pool_transfers` need at that length.

        That is each page of a pool (all_pages), or the last ones, as many as the transfer has keys (trailing_pages).
        """
        try:
            keys, transfers = list(keys), list(pool_transfers or [])
            found = self._asked(len(keys), self._usable(keys, transfers) if keys else 0)
            names = [KV] + [transfer.name for transfer in transfers]
        except Exception as error:  # it would end SGLang's thread for good
            log.error('no pages: %s', error)
            found, names = 0, []
        return importlib.import_module(BASE).PoolTransferResult(found, dict.fromkeys(names, found) if found else {})

    def _usable(self, keys, transfers):
        asked = [] if self._pages.is_logical else [(self._pages, None)]
        for transfer in transfers:
            is_trailing = _text(transfer.hit_policy) == 'trailing_pages'
            asked.append((self._beside[_text(transfer.name)], max(1, len(transfer.keys or ())) if is_trailing else None))
        flags = self._queue.run_at('exists', [name for pages, _ in asked for name in pages.names(keys)], hashed=True)[0]
        rows = [(flags[at * len(keys):(at + 1) * len(keys)], trailing) for at, (_, trailing) in enumerate(asked)]
        usable = min((_leading(row) for row, trailing in rows if trailing is None), default=0)
        while usable and not all(all(row[max(0, usable - trailing):usable]) for row, trailing in rows if trailing):
            usable -= 1
        return usable

    def batch_get_v2(self, transfers, extra_info=None):
        """Fills pages of the pools; {name: a bool for each key}. Takes `timeout` twice at most, whatever the pools' number."""
        return self._move_beside('get', 'loaded_pages', transfers)

    def batch_set_v2(self, transfers, extra_info=None):
        """Stores pages of the pools; {name: a bool for each key}. As long as batch_get_v2."""
        return self._move_beside('set', 'stored_pages', transfers)

    def _move_beside(self, kind, what, transfers):
        until, results = time.monotonic() + self._timeout, {}
        for transfer in transfers or ():
            keys, name = list(transfer.keys or ()), _text(transfer.name)
            pages = self._pages if name == KV else self._beside.get(name)
            if pages is None:
                log.error('no pages: the pool %s is not registered', name)
            if pages is None or time.monotonic() >= until:
                results[transfer.name] = [False] * len(keys)
                continue
            results[transfer.name] = self._moved(what, self._move(kind, pages, keys, transfer.host_indices))
        return results

    # --- The generic interface: tensors one by one. SGLang names those of a draft model HASH.draft

    def exists(self, key):
        return self._run('exists', self._single_names, [key])[0]

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

    def _single_names(self, keys):
        return [(self._draft_pages if '.' in str(key) else self._pages).names([key])[0] for key in keys]

    def _tensors(self, kind, keys, values):
        def where(count):
            spans = [contiguous_span(tensor) for tensor in values]
            if len(spans) != count:
                raise ValueError(f'{count} keys, but {len(spans)} tensors')
            return [span[0] for span in spans], [span[1] for span in spans]
        return self._run(kind, self._single_names, keys, where)

    # --- The rest

    def clear(self):
        """Raises NotImplementedError, of which SGLang tells its caller: the pool is shared, and other servers use the pages."""
        raise NotImplementedError('pages in EMS are not cleared: others share them. Where the weights have changed, start with '
                                  'another `domain`')

    def get_stats(self):
        """None: SGLang's scheduler takes nothing but a StorageMetrics of its own here, and none at all is one, too."""

    def counts(self):
        """Pages since the start: requested, hit (by batch_exists and batch_exists_v2), loaded, stored, of all pools."""
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
