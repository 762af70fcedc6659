"""LMCache's own L2 adapter over EMS, where its sources are (EMS_HOST_LMCACHE, EMS_HOST_LMCACHE_OLDER).

Without them the calls are made again that it made when they were: lmcache_calls.json. EMS_HOST_RECORD=1 writes it.
"""
import collections
import importlib
import json
import logging
import os
import re
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '..', 'integrations', 'engines')]

# pylint: disable=wrong-import-position
import stand_ins
from harness import Cluster, filled
from lmcache_loop import Loop
from recorded_calls import RecordedCallsTest

from cluster import SOURCE_DIR
from ems.lmcache import EmsConnector

RECORD = os.path.join(HERE, 'lmcache_calls.json')
RELEASES = {'2026-09': 'EMS_HOST_LMCACHE', '2026-03': 'EMS_HOST_LMCACHE_OLDER'}
ADAPTERS = 'lmcache.v1.distributed.l2_adapters'
REAL = (f'{ADAPTERS}.native_connector_l2_adapter', f'{ADAPTERS}.native_plugin_l2_adapter')
SIZE, CHUNKS = 4096, 6
Key = collections.namedtuple('Key', 'model_name kv_rank object_group_id chunk_hash cache_salt')
StoreResult = collections.namedtuple('StoreResult', 'ok bytes')


class Bitmap:
    def __init__(self, count):
        self.bits = [False] * count

    def set(self, at):
        self.bits[at] = True


class Notifier:
    def fileno(self):
        return 0

    def notify(self):
        pass

    def close(self):
        pass


class Object:
    """A chunk of LMCache's memory."""

    def __init__(self, content):
        self.byte_array = memoryview(content)

    def get_size(self):
        return self.byte_array.nbytes


class Adapter:
    """What LMCache's adapters are made of: the tests look at what it is told."""

    def __init__(self, max_capacity_bytes=0):
        self.max_capacity_bytes, self.told = max_capacity_bytes, collections.defaultdict(list)

    def _notify_keys_stored(self, keys, sizes):
        self.told['stored'] += list(zip(keys, sizes))

    def _notify_keys_accessed(self, keys):
        self.told['accessed'] += keys

    def _notify_keys_deleted(self, keys, sizes):
        self.told['deleted'] += list(zip(keys, sizes))


def adapter_of(folder, address):
    """LMCache's, made of the configuration in docs/engines/LMCACHE.md."""
    stand_ins.install(folder, REAL, ('lmcache',))
    base = importlib.import_module(f'{ADAPTERS}.base')
    base.L2AdapterInterface = Adapter
    for name in ('lmcache.native_storage_ops', 'lmcache.lmcache_native'):
        importlib.import_module(name).Bitmap = Bitmap
    importlib.import_module('lmcache.logging').init_logger = logging.getLogger
    importlib.import_module('lmcache.v1.platform').create_event_notifier = Notifier
    importlib.import_module('lmcache.v1.distributed.internal_api').L2StoreResult = StoreResult
    with open(os.path.join(SOURCE_DIR, 'docs', 'engines', 'LMCACHE.md'), encoding='utf-8') as file:
        config = json.loads(re.search(r"--l2-adapter '(\{.*?\})'", file.read(), re.S).group(1))
    config['adapter_params']['controller'] = address
    plugin = importlib.import_module(f'{ADAPTERS}.native_plugin_l2_adapter')
    if not hasattr(plugin, '__file__'):  # a release that has the adapter, and no configuration for it yet
        return importlib.import_module(REAL[0]).NativeConnectorL2Adapter(EmsConnector(**config['adapter_params']))
    return plugin._create_native_plugin_l2_adapter(plugin.NativePluginL2AdapterConfig.from_dict(config))


def tape(client, calls):
    """Writes down what is submitted, and what it comes to."""
    number_of = {}

    def taped(call, name):
        def submit(keys, memory=None):
            number = call(keys, memory) if memory is not None else call(keys)
            number_of[number] = len(calls)
            calls.append([name, list(keys), None])
            return number
        return submit
    for name in ('set', 'get', 'exists', 'delete'):
        setattr(client, f'submit_batch_{name}', taped(getattr(client, f'submit_batch_{name}'), name))
    drain = client.drain_completions

    def drained():
        completions = drain()
        for number, ok, _, flags in completions:
            calls[number_of[number]][2] = [ok, flags]
        return completions
    client.drain_completions = drained


def run_host(folder, address):
    """In a process of its own. Chunks are stored, looked up, loaded and deleted; returns the calls."""
    adapter, calls = adapter_of(folder, address), []
    tape(adapter._client, calls)

    def done(query, *arguments):
        end = time.monotonic() + 30
        while True:
            result = query(*arguments)
            if result:
                return result
            assert time.monotonic() < end, 'not in time'
            time.sleep(0.01)

    def lookup(keys):
        more = ({},) if callable(getattr(adapter, 'delete', None)) else ()
        return done(adapter.query_lookup_and_lock_result, adapter.submit_lookup_and_lock_task(keys, *more)).bits

    keys = [Key('llama', 1, 0, bytes([chunk]) * 32, 'tenant' if chunk == 5 else '') for chunk in range(CHUNKS)]
    assert lookup(keys) == [False] * CHUNKS
    task = adapter.submit_store_task(keys[:4], [Object(filled(key, SIZE)) for key in keys[:4]])
    stored = done(adapter.pop_completed_store_tasks)
    assert stored in ({task: True}, {task: StoreResult(True, 4 * SIZE)}), stored
    assert lookup(keys) == [True] * 4 + [False] * 2
    adapter.submit_unlock(keys)
    memory = [bytearray(SIZE) for _ in keys]
    loaded = done(adapter.query_load_result, adapter.submit_load_task(keys, [Object(one) for one in memory])).bits
    if getattr(adapter, 'told', None):
        assert loaded == [True] * 4 + [False] * 2, loaded
        assert adapter.told['accessed'] == keys[:4]
    else:  # such a release takes `ok` for all of them: what has not come must not count
        assert not any(loaded), loaded
    assert done(adapter.query_load_result, adapter.submit_load_task(keys[:4], [Object(one) for one in memory[:4]])).bits == [True] * 4
    assert memory[:4] == [filled(key, SIZE) for key in keys[:4]]
    if callable(getattr(adapter, 'delete', None)):
        adapter.delete(keys[:2])
        assert adapter.told['deleted'] == [(key, SIZE) for key in keys[:2]]
        assert lookup(keys) == [False] * 2 + [True] * 2 + [False] * 2
    assert adapter._demux_thread.is_alive()
    adapter.close()
    return calls


class LmcacheHostTest(RecordedCallsTest):
    ENGINE, RECORD = 'LMCache', RECORD

    def test_calls_of_each_release(self):
        self.assertEqual(set(self.recorded), set(RELEASES))
        for release, calls in self.recorded.items():
            with self.subTest(release), Cluster(servers=1) as cluster:
                connector = EmsConnector(controller=cluster.address, timeout=10)
                loop = Loop(connector)
                try:
                    for name, keys, expected in calls:
                        memory = [memoryview(filled(key, SIZE) if name == 'set' else bytearray(SIZE)) for key in keys]
                        call = getattr(connector, f'submit_batch_{name}')
                        ok, _, flags = loop.wait(loop.submit(call, keys, *([memory] if name in ('set', 'get') else [])))
                        self.assertEqual([ok, flags], expected, name)
                        for key, one, flag in zip(keys, memory, flags if name == 'get' else ()):
                            self.assertTrue(not flag or one == filled(key, SIZE))
                finally:
                    loop.stop()
                    connector.close()

    @unittest.skipUnless(any(map(os.environ.get, RELEASES.values())), 'no sources of LMCache: EMS_HOST_LMCACHE is not set')
    def test_its_own_modules(self):
        for release, variable in RELEASES.items():
            if not os.environ.get(variable):
                continue
            with self.subTest(release), Cluster(servers=1) as cluster:
                self.check_host(release, os.environ[variable], cluster.address)


if __name__ == '__main__':
    if sys.argv[1:2] == ['--host']:
        print(json.dumps(run_host(*sys.argv[2:])))
    else:
        unittest.main()
