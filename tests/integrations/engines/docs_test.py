"""The configurations in docs/engines make what they say: each JSON is given to the class it names, as the engine would."""
import argparse
import importlib
import json
import os
import re
import shlex
import unittest

import fake_sglang
import fake_vllm
import yaml
from event_peer import free_port
from harness import Cluster, filled, until

import ems

from cluster import SOURCE_DIR

fake_sglang.install()
fake_vllm.install()


def page_text(page):
    with open(os.path.join(SOURCE_DIR, 'docs', 'engines', page), encoding='utf-8') as file:
        return file.read()


def configurations(page, *, quoted=True):
    text = page_text(page)
    found = re.findall(r"'(\{.*?\})'" if quoted else r'```json\n(.*?)```', text, flags=re.S)
    return [json.loads(one) for one in found]


class DocsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=1)
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def named(self, module, name):
        return getattr(importlib.import_module(module), name)

    def test_lmcache(self):
        [config] = configurations('LMCACHE.md')
        params = {**config['adapter_params'], 'controller': self.cluster.address}
        connector = self.named(config['module_path'], config['class_name'])(**params)
        self.assertGreater(connector.event_fd(), 0)
        connector.close()

    def test_command_line_of_lmcache_has_what_its_server_needs(self):
        [line] = re.findall(r'```sh\n(lmcache server .*?)```', page_text('LMCACHE.md'), flags=re.S)
        parser = argparse.ArgumentParser(exit_on_error=False)  # as that of `lmcache server`, 0.4 to 0.5
        parser.add_argument('--l1-size-gb', type=float, required=True)
        parser.add_argument('--eviction-policy', choices=['LRU', 'IsolatedLRU', 'noop'], required=True)
        parser.add_argument('--l2-adapter', type=json.loads, action='append')
        parser.error = self.fail
        self.assertEqual(len(parser.parse_args(shlex.split(line)[2:]).l2_adapter), 1)

    def test_sglang(self):
        [config] = configurations('SGLANG.md')
        with self.assertNoLogs('ems'):
            storage = self.named(config['module_path'], config['class_name'])(
                fake_sglang.HiCacheStorageConfig(extra_config={**config, 'controller': self.cluster.address}), {})
        self.assertFalse(storage.exists('nobody'))
        storage.close()

    def test_vllm_connector(self):
        [config] = configurations('VLLM.md')
        self.assertEqual(config['kv_load_failure_policy'], 'recompute')
        settings = fake_vllm.config(self.cluster.address, **{**config['kv_connector_extra_config'],
                                                                  'controller': self.cluster.address})
        for role in fake_vllm.KVConnectorRole:
            self.named(config['kv_connector_module_path'], config['kv_connector'])(settings, role).shutdown()

    def test_vllm_tier(self):
        config, _ = configurations('VLLM.md', quoted=False)
        [tier] = config['kv_connector_extra_config']['secondary_tiers']
        memory = memoryview(bytearray(4096)).cast('B', (4, 1024))
        manager = fake_vllm.SecondaryTierFactory.create_secondary_tier({**tier, 'controller': self.cluster.address}, memory,
                                                                       fake_vllm.offloading_spec())
        self.assertEqual(type(manager).__name__, tier['type'])
        manager.shutdown()

    def test_vllm_connector_beside_another_one(self):
        _, config = configurations('VLLM.md', quoted=False)
        config = config['kv_connector_extra_config']['connectors'][1]
        settings = fake_vllm.config(self.cluster.address, **{**config['kv_connector_extra_config'],
                                                             'controller': self.cluster.address})
        settings.kv_transfer_config.kv_load_failure_policy = config['kv_load_failure_policy']
        for role in fake_vllm.KVConnectorRole:
            connector = self.named(config['kv_connector_module_path'], config['kv_connector'])(settings, role)
            if role is fake_vllm.KVConnectorRole.WORKER:
                self.assertIsNone(connector.get_handshake_metadata())
            connector.shutdown()

    def test_kv_events(self):
        page = page_text('KV_EVENTS.md')
        [options] = re.findall(r'```yaml\n(.*?)```', page, flags=re.S)
        [code] = re.findall(r'```python\n(.*?)```', page, flags=re.S)
        options = yaml.safe_load(options)['kv_events']
        for name in ('listen', 'replay_listen'):
            shown, options[name] = options[name], f'127.0.0.1:{free_port()}'
            code = code.replace(shown, options[name])
        flags = [f'kv_events.{name}={value}' for name, value in options.items()]
        with Cluster(servers=1, server_flags=flags) as cluster:
            made = {}
            exec(code, made)  # pylint: disable=exec-used
            self.addCleanup(made['server'].close)
            client = ems.Client(cluster.address, timeout=10)
            self.addCleanup(client.close)
            cache = ems.ContextCache(client, model='vllm', dtype='bf16')
            hashes = [bytes([i]) * 32 for i in range(3)]
            for one in hashes[:2]:  # of group 0
                client.put(cache.own_key(one + bytes(4)), filled(one, 1000))
            until(lambda: made['cached_prefix'](hashes) == 2, 10, 'two leading blocks')


if __name__ == '__main__':
    unittest.main()
