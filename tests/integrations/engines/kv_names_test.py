"""Names of blocks in KV events, computed as the table in docs/engines/KV_EVENTS.md says, are those of what each connector stores."""
import struct
import unittest
from types import SimpleNamespace
from unittest import mock

import fake_sglang
import fake_vllm
from event_peer import EventCluster
from fake_vllm import BLOCK, Engine, Request
from harness import filled, until

import ems
from ems import _ems
from ems.kv_events import BlockNames, Follower
from ems.lmcache import EmsConnector
from ems.vllm_tier import TierConnector


class KvNamesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        fake_vllm.install()
        fake_sglang.install()
        cls.cluster = EventCluster(dram='128MiB')
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def setUp(self):
        self.follower = Follower(self.cluster.events, self.cluster.replay)
        self.addCleanup(self.follower.close)
        self.before = None
        self.before = self.stored()

    def stored(self):
        """What was stored since the test began, as of batches from now on."""
        while self.follower.poll(0):
            pass
        last = self.follower.last or 0
        until(lambda: self.follower.poll(0.1) and not self.follower.stale and self.follower.last > last + 1, 10, 'follows')
        return self.follower.blocks['EMS_DRAM'] - (self.before or set())

    def domains(self, make):
        """What make() returns, and the domains that it names blocks in: the connector logs its own."""
        seen, hasher = [], _ems.BlockHasher

        def record(**domain):
            seen.append(domain)
            return hasher(**domain)
        with mock.patch.object(_ems, 'BlockHasher', record):
            made = make()
        return made, seen

    def test_tier_of_vllm(self):
        domain = {'dtype': 'bf16', 'tp_rank': 1, 'tp_size': 2}
        view = memoryview(bytearray(filled('tier', 3 * 4096))).cast('B', (3, 4096))
        connector = TierConnector(view, domain, controller=self.cluster.address, timeout=10)
        self.addCleanup(connector._queue.close)
        blocks = [(bytes([i]) * 32, group) for i, group in enumerate((0, 0, 1))]  # vLLM's block hash and KV cache group
        keys = [block_hash + struct.pack('>I', group) for block_hash, group in blocks]  # as its make_offload_key
        connector.submit_store(SimpleNamespace(job_id=1, keys=keys, block_ids=[0, 1, 2]))
        until(lambda: connector.get_finished() == [(1, True)], 10, 'stored')
        names = BlockNames(**{'model': 'vllm', **domain})
        self.assertEqual(self.stored(), {names.of_name(block_hash + group.to_bytes(4, 'big')) for block_hash, group in blocks})

    def test_connector_of_vllm(self):
        prompt = [i * 31 % 32000 for i in range(5 * BLOCK)]
        for what, more in (('plain', {}), ('salt', {'cache_salt': 'tenant'}),
                           ('LoRA', {'lora_request': SimpleNamespace(lora_name='adapter', lora_path='/models/adapter')})):
            with self.subTest(what):
                self.before = None
                self.before = self.stored()
                engine, domains = self.domains(lambda: Engine(self.cluster.address))
                engine.run(Request('a', prompt + [1, 2, 3], **more))
                engine.settle()
                engine.close()
                names = BlockNames(**[one for one in domains if ('seat', 'vllm') in one['custom']][-1])
                expected = names.of_prompt(prompt, **more)
                self.assertEqual((len(expected), self.stored()), (5, set(expected)))
                self.assertEqual(names.of_prompt(prompt[:2 * BLOCK + 1], **more), expected[:2], 'of a prefix')
                self.assertFalse(set(expected) & set(names.of_prompt(prompt, cache_salt='another')))

    def test_lmcache(self):
        connector = EmsConnector(controller=self.cluster.address, domain='bf16', timeout=10)
        self.addCleanup(connector.close)
        connector.submit_batch_set(['model@1@0@ab'], [filled('lmcache', 1000)])
        until(connector.drain_completions, 10, 'stored')
        names = BlockNames(model='lmcache', custom=[('domain', 'bf16')])
        self.assertEqual(self.stored(), {names.of_name('model@1@0@ab')})

    def test_sglang(self):
        pool = fake_sglang.HostPool(4)
        connector = fake_sglang.backend(self.cluster.address, pool, tp_rank=1, tp_size=2,
                                   extra={'dtype': 'bf16', 'extra_key': 'tenant', 'timeout': 10})
        self.addCleanup(connector.close)
        self.assertEqual(list(connector.batch_set_v1(['ff', 'ee'], pool.indices([0, 1]))), [True, True])
        names = BlockNames(**connector.domain)
        self.assertEqual(self.stored(), {names.of_name('ff'), names.of_name('ee')})

    def test_context_cache(self):
        domain = {'model': 'llama', 'dtype': 'bf16', 'block_tokens': 16, 'lora': 'adapter'}
        client = ems.Client(self.cluster.address, timeout=10)
        self.addCleanup(client.close)
        cache = ems.ContextCache(client, **domain)
        tokens = list(range(40))
        keys = cache.hash_tokens(tokens)
        self.assertEqual([error for error in client.multi_put([(key, filled(key, 100)) for key in keys]) if error], [])
        self.assertEqual(self.stored(), set(BlockNames(**domain).of_tokens(tokens)))

    def test_client(self):
        client = ems.Client(self.cluster.address, timeout=10)
        self.addCleanup(client.close)
        client.put('a key', b'1' * 100)
        self.assertEqual(self.stored(), {BlockNames.of_key('a key')})


if __name__ == '__main__':
    unittest.main()
