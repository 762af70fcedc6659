"""What ContextCache stores and counts: save policies, ranks that share their blocks, lookup statistics."""
import asyncio
import unittest

import numpy
from cluster import Cluster

import ems

PAGE = 16


class SavePolicyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=1).__enter__()
        cls.client = ems.Client(cls.cluster.address)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.cluster.stop()

    def paged(self, blocks=6, **options):
        """(tensor, layout, cache, keys)"""
        tensor = numpy.arange(blocks * PAGE * 8, dtype=numpy.float32).reshape(blocks, PAGE, 1, 8)
        layout = ems.KvLayout([[tensor]])
        cache = ems.ContextCache(self.client, model=self.id(), kv_layout=layout.fingerprint, block_tokens=PAGE, **options)
        return tensor, layout, cache, cache.hash_tokens(range(blocks * PAGE))

    def test_a_policy_stores_the_phases_it_is_for(self):
        wanted = {'prefill_only': ['prefill'], 'final_response': ['prefill', 'final'], 'all': ['prefill', 'decode', 'final']}
        for policy, phases in wanted.items():
            for phase in ('prefill', 'decode', 'final'):
                with self.subTest(policy=policy, phase=phase):
                    _, layout, cache, keys = self.paged(2, save_policy=policy, cache_salt=policy + phase)
                    stored = 2 if phase in phases else 0
                    self.assertEqual((cache.save_policy, cache.saves(phase)), (policy, phase in phases))
                    saved = cache.save_paged(layout, keys, slot_mapping=range(2 * PAGE), phase=phase)
                    self.assertEqual((saved.stored, saved.skipped, saved.blocks), (stored, 2 - stored, [None, None]))
                    self.assertEqual(cache.lookup_keys(keys), stored)
                    own = [cache.own_key(name) for name in ('a', 'b')]
                    saved = asyncio.run(cache.asave(own, [b'1', b'2'], phase=phase))
                    self.assertEqual((saved.stored, saved.skipped, saved.blocks), (stored, 2 - stored, [None, None]))
                    self.assertEqual(cache.lookup_keys(own), stored)

    def test_words_that_mean_nothing_are_refused(self):
        _, layout, cache, keys = self.paged(1)
        for call in (lambda: cache.save_paged(layout, keys, runs=[[(0, PAGE)]], phase='dreaming'),
                     lambda: cache.save(keys, [b''], phase=''), lambda: cache.saves('PREFILL'),
                     lambda: self.paged(save_policy='some'), lambda: self.paged(durability='tape'),
                     lambda: self.paged(shared_by_tp=True, tp_rank=2, tp_size=2)):
            with self.assertRaises(ValueError):
                call()
        self.assertEqual(cache.lookup_keys(keys), 0)

    def test_ranks_that_share_store_a_part_each_and_load_all(self):
        ranks = [self.paged(shared_by_tp=True, tp_rank=rank, tp_size=4) for rank in range(4)]
        self.assertEqual(len({tuple(keys) for _, _, _, keys in ranks}), 1)
        stored = []
        for _, layout, cache, keys in ranks:
            saved = cache.save_paged(layout, keys, slot_mapping=range(6 * PAGE))
            self.assertEqual(saved.stored + saved.skipped, 6)
            stored.append(saved.stored)
        self.assertEqual(stored, [2, 2, 1, 1])
        for tensor, layout, cache, keys in ranks:
            before = tensor.copy()
            tensor[:] = 0
            self.assertEqual(cache.load_layers(layout, keys, slot_mapping=range(6 * PAGE)).result().leading_blocks, 6)
            self.assertTrue((tensor == before).all())

    def test_ranks_that_do_not_share_have_keys_of_their_own(self):
        keys = [self.paged(tp_rank=rank, tp_size=2)[3] for rank in range(2)]
        self.assertFalse(set(keys[0]) & set(keys[1]))

    def test_a_key_that_comes_twice_is_stored_once(self):
        _, layout, cache, keys = self.paged(2)
        saved = cache.save_paged(layout, [keys[0], keys[1], keys[0]], runs=[[(0, PAGE)], [(16, PAGE)], [(0, PAGE)]])
        self.assertEqual((saved.stored, saved.skipped, saved.blocks), (2, 1, [None] * 3))

    def test_lookups_are_counted_in_blocks_and_tokens(self):
        _, layout, cache, keys = self.paged(4)
        cache.save_paged(layout, keys[:3], slot_mapping=range(3 * PAGE))
        cache.save_paged(layout, keys[:3], slot_mapping=range(3 * PAGE))
        self.assertEqual(cache.lookup(range(4 * PAGE + 5)).leading_blocks, 3)
        self.assertEqual(cache.lookup_keys(keys[:2]), 2)
        self.assertEqual(cache.load(keys[3:] + keys[:1], [bytearray(512), bytearray(511)]).blocks, [None, None])
        self.assertEqual(cache.stats(), {
            'lookups': 2, 'lookup_requested_blocks': 6, 'lookup_requested_tokens': 6 * PAGE + 5, 'lookup_hit_blocks': 5,
            'lookup_hit_tokens': 5 * PAGE, 'loaded_blocks': 0, 'loaded_bytes': 0, 'saved_blocks': 3, 'saved_bytes': 3 * 512,
            'deduped_blocks': 3, 'deduped_bytes': 3 * 512, 'conflicts': 0, 'size_mismatches': 1, 'failed_blocks': 0})


if __name__ == '__main__':
    unittest.main()
