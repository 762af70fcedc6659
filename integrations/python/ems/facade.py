"""Drop-in surface: Ems, one per process, and its configuration."""
import atexit
import threading
from dataclasses import dataclass
from typing import Optional, Union

from ems import _ems, process
from ems.drop_in_types import CcConfig, CcKvOption, Degraded
from ems.cc_v1.cc_config import CcConfig_v1, KVCacheType
from ems.cc_v1.context_cache import ContextCache_v1
from ems.cc_v1.staging import bytes_for_saves
from ems.client import default_namespace
from ems.connection import default_controller
from ems.common.exception import EmsErrorCode, EmsException, invalid, of_status
from ems.context_caching import ContextCaching
from ems.errors import Error

_ID_CHARS_MAX = 512
_WORLD_SIZE_MAX = 2 ** 32 - 1
_INIT_TIMEOUT = 3.0
_STAGING_BYTES = 256 << 20  # for saves from ordinary memory


@dataclass
class EmsConfig:
    """A CcConfig_v1 may be given in either slot. An access_id sees nothing of another; '' is None."""
    cc_config: Union[CcConfig, CcConfig_v1, None] = None
    cc_config_v1: Optional[CcConfig_v1] = None
    access_id: Optional[str] = None
    access_key: Optional[str] = None


@dataclass(frozen=True)
class Health:
    """serves: as check_health(). degraded_requests: since init, those that raised, and so went on without the cache; misses
    are not counted. reason: of serves=False, or of the last such request; '' if there is none."""
    serves: bool
    degraded_requests: int
    reason: str


class _BothGenerations(ContextCache_v1):
    """For a configuration of both generations: a CcKvOption in front, or a key_list, says it is the first."""

    def __init__(self, pool, old_pool):
        super().__init__(pool)
        self._old = ContextCaching(old_pool)
        self._old._degraded = self._degraded


def _dispatching(name):
    new, old = getattr(ContextCache_v1, name), getattr(ContextCaching, name)

    def call(self, *args, **kwargs):
        if (args and isinstance(args[0], CcKvOption)) or 'key_list' in kwargs:
            return old(self._old, *args, **kwargs)
        return new(self, *args, **kwargs)

    call.__name__ = name
    return call


for _name in ('save', 'load', 'async_save', 'async_load'):
    setattr(_BothGenerations, _name, _dispatching(_name))


def _need_int(config, name, low, high=None):
    value = getattr(config, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        bound = f'{low} or more' if high is None else f'{low} to {high}'
        raise invalid(f'{name} is {value!r}; it must be an int, {bound}')
    return value


def _encodable(name, value):
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(f'{name} has surrogates, which no UTF-8 has') from None
    return value


def _need_id(name, value):
    if not isinstance(value, str) or not 0 < len(value) <= _ID_CHARS_MAX:
        raise invalid(f'{name} must be a str of 1 to {_ID_CHARS_MAX} characters: {value!r}')
    return _encodable(name, value)


def _domain(config, access_id, access_key):
    """What names of blocks are mixed with, so that those of others never meet them."""
    _need_int(config, 'rank_id', 0)
    _need_int(config, 'device_id', 0)
    tp_size = _need_int(config, 'tp_world_size', 1, _WORLD_SIZE_MAX)
    pp_size = _need_int(config, 'pp_world_size', 1, _WORLD_SIZE_MAX)
    domain = {'model': _need_id('model_id', config.model_id), 'tp_size': tp_size, 'pp_size': pp_size, 'tp_rank': 0,
              'pp_rank': 0, 'cache_salt': access_key}
    if isinstance(config, CcConfig):
        # First generation: callers put ranks into their keys, and MLA ranks load what others have saved.
        domain['custom'] = [('generation', 'v0'), ('access_id', access_id)]
        return domain
    tp_rank = _need_int(config, 'rank_in_tp_group', 0, tp_size - 1)
    domain['pp_rank'] = _need_int(config, 'rank_in_pp_group', 0, pp_size - 1)
    try:
        kind = KVCacheType(config.kvcache_type)
    except ValueError:
        raise invalid(f'kvcache_type is {config.kvcache_type!r}') from None
    # With MLA all ranks of the group hold the same bytes: they share one copy.
    domain['tp_rank'] = 0 if kind is KVCacheType.MLA else tp_rank
    domain['custom'] = [('generation', 'v1'), ('access_id', access_id), ('kvcache_type', kind.value),
                        ('llm_engine', _need_id('llm_engine', config.llm_engine))]
    return domain


def _domains(config):
    """(domain of the first generation or None, of the second or None)"""
    if not isinstance(config, EmsConfig):
        raise invalid(f'config must be an EmsConfig, not {type(config).__name__}')
    old, new = config.cc_config, config.cc_config_v1
    if isinstance(old, CcConfig_v1):
        if new is not None:
            raise invalid('two CcConfig_v1: one in cc_config, one in cc_config_v1')
        old, new = None, old
    if old is not None and not isinstance(old, CcConfig):
        raise invalid(f'cc_config must be a CcConfig or CcConfig_v1, not {type(old).__name__}')
    if new is not None and not isinstance(new, CcConfig_v1):
        raise invalid(f'cc_config_v1 must be a CcConfig_v1, not {type(new).__name__}')
    access_id = _need_id('access_id', config.access_id) if config.access_id else ''
    access_key = config.access_key or ''
    if not isinstance(access_key, str) or len(access_key) > 256:
        raise invalid('access_key must be a str of 256 characters at most')
    _encodable('access_key', access_key)
    return tuple(None if one is None else _domain(one, access_id, access_key) for one in (old, new))


class _Opened:
    """What a successful init made."""

    def __init__(self, domains, where):
        self.domains = domains
        self.pools = []
        self.context_caching = None
        old, new = (None if domain is None else self._open(domain, where, more)
                    for domain, more in zip(domains, (0, bytes_for_saves())))
        if new is not None:
            self.context_caching = ContextCache_v1(new) if old is None else _BothGenerations(new, old)
        elif old is not None:
            self.context_caching = ContextCaching(old)

    def _open(self, domain, where, more_staging=0):
        pool = _ems.DropInPool(*where, domain, _INIT_TIMEOUT, _STAGING_BYTES + more_staging)
        self.pools.append(pool)
        return pool

    def close(self):
        for pool in self.pools:
            pool.close()
        if self.context_caching is not None:
            self.context_caching._end()


class Ems:
    """The process's connection to the pool at EMS_CONTROLLER (127.0.0.1:7400), namespace EMS_NAMESPACE (default)."""
    _lock = threading.Lock()  # over init and shutdown, to their ends; nothing else waits for it
    _opened = None

    @staticmethod
    def init(config):
        """Connects, within 3 s. May be called again after it failed; again with the same configuration does nothing.

        Raises EmsException: EMS_INVALID_ARGUMENT  config, or another one after a success;
        EMS_RECOVERD_ERROR  the pool is not ready: try again once check_health() is True.
        """
        domains = _domains(config)
        with Ems._lock:
            if Ems._opened is not None:
                if Ems._opened.domains == domains:
                    return
                raise invalid('Ems is initialised already, with another configuration')
            try:
                process.connecting()
                where = (_encodable('EMS_CONTROLLER', default_controller()),
                         _encodable('EMS_NAMESPACE', default_namespace()))
                Ems._opened = _Opened(domains, where)
            except Error as error:
                if error.code in ('INVALID_ARGUMENT', 'PERMISSION_DENIED', 'INTERNAL', 'FAILED_PRECONDITION'):
                    raise of_status(error.code, str(error)) from error
                raise EmsException(EmsErrorCode.EMS_RECOVERD_ERROR, str(error)) from error

    @staticmethod
    def get_cc():
        """The Context Caching object of the configuration; None before init has succeeded."""
        opened = Ems._opened
        return None if opened is None else opened.context_caching

    @staticmethod
    def check_health():
        """Whether the pool serves this process: False also while register_kvcache has failed and not succeeded since.

        From any thread, before and after init; a second or two at most. Never raises. Why: health().
        """
        opened = Ems._opened
        try:
            if opened is not None and opened.pools:
                return not opened.context_caching._degraded.unregistered and all(pool.healthy() for pool in opened.pools)
            process.connecting()
            return _ems.DropInPool.probe(default_controller(), default_namespace())
        except Exception:  # pylint: disable=broad-except
            return False  # a circuit breaker's question must have an answer

    @staticmethod
    def health():
        """Not in the original: check_health() with its reason, and what has gone on without the cache. As cheap; never raises."""
        serves, opened = Ems.check_health(), Ems._opened
        degraded = Degraded() if opened is None or opened.context_caching is None else opened.context_caching._degraded
        reason = degraded.unregistered or (degraded.reason if serves else 'the pool does not answer')
        return Health(serves, degraded.requests, reason)

    @staticmethod
    def shutdown():
        """Not in the original: ends the connection. Requests that wait are over, those that run are waited for: after
        it nothing is written into memory, whichever thread's call it was that ended it. init may be called again. Called
        by itself at the end of the interpreter, before it frees memory."""
        with Ems._lock:
            opened, Ems._opened = Ems._opened, None
            if opened is not None:
                opened.close()


def _forget():
    """In a child of fork(): threads and sockets are the parent's."""
    opened, Ems._opened = Ems._opened, None
    Ems._lock = threading.Lock()
    if opened is not None:
        for pool in opened.pools:
            pool.abandon()


process.at_fork_in_child(_forget)
atexit.register(Ems.shutdown)
