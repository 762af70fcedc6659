"""EMS as an L2 adapter of LMCache ("native_plugin"), which reaches vLLM, SGLang and others. See docs/engines/LMCACHE.md.

LMCache takes the class by its methods; nothing of it is imported.
"""
from ems.engine_queue import EngineQueue

_QUEUE_OPTIONS = ('controller', 'namespace', 'timeout', 'start_timeout', 'threads', 'lanes', 'waiting_max', 'durability', 'shm_token',
                  'transport')


class EmsConnector:
    """Seven methods over one eventfd. Thread-safe.

    Parameters (adapter_params): controller, namespace, timeout, start_timeout, threads, lanes, waiting_max, durability, shm_token,
    transport as ems.engine_queue.EngineQueue takes them, and `domain`: a text. LMCache's keys name model, rank and salt, but
    not what else makes bytes differ (KV dtype, version of the engine): deployments with different domains share nothing.

    Submitting never blocks and never raises. Lists of bools have an entry for each key, always: a block that is not there, is
    of another length than its buffer, or could not be asked for in time is False.
    """

    def __init__(self, adapter_params=None, *, domain='', **params):
        params = {**(adapter_params or {}), **params}
        domain = params.pop('domain', domain)
        unknown = sorted(set(params) - set(_QUEUE_OPTIONS))
        if unknown:
            raise TypeError(f'EmsConnector does not take {", ".join(map(str, unknown))}; adapter_params may have '
                            f'{", ".join(_QUEUE_OPTIONS)} and domain')
        self._queue = EngineQueue({'model': 'lmcache', 'custom': [('domain', str(domain))]}, **params)

    def event_fd(self):
        """Readable while there are completions. It lives as long as this."""
        return self._queue.event_fd

    def submit_batch_set(self, keys, bufs):
        return self._queue.submit('set', keys, bufs)

    def submit_batch_get(self, keys, bufs):
        return self._queue.submit('get', keys, bufs)

    def submit_batch_exists(self, keys):
        return self._queue.submit('exists', keys)

    def submit_batch_delete(self, keys):
        return self._queue.submit('remove', keys)

    def drain_completions(self):
        """[(future id, ok, error or None, [bool for each key])]; empties the eventfd, too. Buffers are released here."""
        return self._queue.drain()

    def close(self):
        """Waits for what runs, its timeout at most; buffers are nobody's afterwards."""
        self._queue.close()
