"""SGLang's HiCache through its dynamic backend, interface v1, with a host pool of the test's own."""
import dataclasses
import unittest

import fake_sglang
import numpy
from harness import Cluster

import ems
from ems.errors import InvalidArgument
from ems.kv_events import BlockNames

fake_sglang.install()
PAGES = 16


def hashes(name, count):
    """As SGLang's: SHA-256 in hex."""
    return [f'{name:08x}{page:056x}' for page in range(count)]


class SglangTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2, dram='128MiB')
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def backend(self, pool, **config):
        storage = fake_sglang.backend(self.cluster.address, pool, **config)
        self.addCleanup(storage.close)
        return storage

    @staticmethod
    def random_pool(**options):
        pool = fake_sglang.HostPool(2 * PAGES, **options)
        pool.memory[:PAGES] = numpy.random.default_rng(7).integers(1, 255, pool.memory[:PAGES].shape, numpy.uint8)
        return pool

    def test_pages_go_out_and_come_back_elsewhere(self):
        pool = self.random_pool()
        storage = self.backend(pool)
        keys = hashes(1, PAGES)
        self.assertEqual(storage.batch_exists(keys), 0)
        self.assertEqual(storage.batch_set_v1(keys, pool.indices(range(PAGES))), [True] * PAGES)
        self.assertEqual(storage.batch_exists(keys), PAGES)
        back = list(range(2 * PAGES - 1, PAGES - 1, -1))
        self.assertEqual(storage.batch_get_v1(keys, pool.indices(back)), [True] * PAGES)
        self.assertTrue((pool.memory[back] == pool.memory[:PAGES]).all())
        self.assertEqual(storage.counts(), {'requested_pages': 2 * PAGES, 'hit_pages': PAGES, 'loaded_pages': PAGES,
                                            'stored_pages': PAGES})

    def test_exists_counts_the_consecutive_pages_from_the_start(self):
        pool = self.random_pool()
        storage = self.backend(pool)
        keys = hashes(2, 6)
        storage.batch_set_v1(keys[:2] + keys[3:], pool.indices([0, 1, 3, 4, 5]))
        self.assertEqual(storage.batch_exists(keys), 2)
        self.assertEqual(storage.batch_exists(keys[3:]), 3)
        self.assertEqual(storage.batch_exists([]), 0)

    def test_partial_load_has_a_result_for_each_page(self):
        pool = self.random_pool()
        storage = self.backend(pool)
        keys = hashes(3, 4)
        storage.batch_set_v1(keys[:2], pool.indices([0, 1]))
        self.assertEqual(storage.batch_get_v1(keys, pool.indices(range(PAGES, PAGES + 4))), [True, True, False, False])
        self.assertTrue((pool.memory[PAGES:PAGES + 2] == pool.memory[:2]).all())

    def test_page_of_another_size_is_a_miss(self):
        pool, larger = self.random_pool(), self.random_pool(page_bytes=16384)
        self.backend(pool).batch_set_v1(hashes(4, 1), pool.indices([0]))
        self.assertEqual(self.backend(larger).batch_get_v1(hashes(4, 1), larger.indices([0])), [False])

    def test_salt_dtype_rank_and_model_never_meet(self):
        pool = self.random_pool()
        keys = hashes(5, 2)
        self.backend(pool).batch_set_v1(keys, pool.indices([0, 1]))
        for other in ({'extra': {'extra_key': 'tenant'}}, {'extra': {'dtype': 'fp8_e5m2'}}, {'extra': {'domain': 'b'}},
                      {'tp_rank': 1, 'tp_size': 2}, {'pp_rank': 1, 'pp_size': 2}, {'model_name': 'llama2'},
                      {'attn_cp_rank': 1, 'attn_cp_size': 2}, {'tp_lcm_size': 4, 'should_split_heads': True},
                      {'is_page_first_layout': False}):
            with self.subTest(other):
                self.assertEqual(self.backend(pool, **other).batch_exists(keys), 0)
        self.assertEqual(self.backend(pool).batch_exists(keys), 2)
        self.assertEqual(self.backend(pool, dp_rank=1, dp_size=2).batch_exists(keys), 2)  # it computes the same

    def test_context_parallel_ranks_keep_their_own_slices_of_a_page(self):
        pools = [self.random_pool(is_mla=True) for _ in range(2)]
        ranks = [self.backend(pool, is_mla_model=True, attn_cp_rank=rank, attn_cp_size=2) for rank, pool in enumerate(pools)]
        [key] = hashes(20, 1)
        for rank, (storage, pool) in enumerate(zip(ranks, pools)):
            pool.memory[0] = 0xA0 + rank
            self.assertEqual(storage.batch_exists([key]), 0)
            self.assertEqual(storage.batch_set_v1([key], pool.indices([0])), [True])
        for rank, (storage, pool) in enumerate(zip(ranks, pools)):
            self.assertEqual(storage.batch_get_v1([key], pool.indices([PAGES])), [True])
            self.assertTrue((pool.memory[PAGES] == 0xA0 + rank).all())
        self.assertEqual(self.backend(pools[0], is_mla_model=True).batch_exists([key]), 0)

    def test_ranks_of_a_kind_that_is_not_known_share_nothing_and_it_is_said(self):
        config = dataclasses.make_dataclass('NewerConfig', [('ring_rank', int, 0), ('ring_size', int, 1)],
                                            bases=(fake_sglang.HiCacheStorageConfig,))
        pool, [key] = self.random_pool(), hashes(21, 1)
        with self.assertNoLogs('ems', 'WARNING'):  # one of one has the whole page
            self.backend(pool, config_class=config).batch_set_v1([key], pool.indices([0]))
        self.assertEqual(self.backend(pool).batch_exists([key]), 1)
        for rank in (0, 1):
            with self.assertLogs('ems', 'WARNING') as logs:
                storage = self.backend(pool, config_class=config, ring_rank=rank, ring_size=2)
            self.assertIn('ring_size', ''.join(logs.output))
            self.assertEqual(storage.batch_exists([key]), 0)
            storage.batch_set_v1([key], pool.indices([rank]))
            storage.batch_get_v1([key], pool.indices([PAGES]))
            self.assertTrue((pool.memory[PAGES] == pool.memory[rank]).all())

    def test_host_pools_of_another_dtype_layout_or_shape_never_meet(self):
        def pools():
            yield 'e4m3', self.random_pool(dtype='float8_e4m3fn')
            yield 'e5m2', self.random_pool(dtype='float8_e5m2')
            yield 'bytes', self.random_pool(dtype='uint8')
            for layout in ('page_first_direct', 'page_head', 'layer_first'):
                yield layout, self.random_pool(dtype='float8_e4m3fn', layout=layout)
            heads = self.random_pool(dtype='float8_e4m3fn')
            heads.head_num, heads.head_dim = 1, 64
            yield 'heads', heads
            yield 'packed', type('MHATokenToKVPoolHostPacked', (fake_sglang.HostPool,), {})(2 * PAGES, dtype='float8_e4m3fn')
        keys = hashes(22, 1)
        for name, pool in pools():
            with self.subTest(name):
                storage = self.backend(pool)
                self.assertEqual(storage.batch_get_v1(keys, pool.indices([PAGES])), [False])
                self.assertEqual(storage.batch_set_v1(keys, pool.indices([0])), [True])
        for name, pool in pools():
            with self.subTest(name):
                self.assertEqual(self.backend(pool).batch_exists(keys), 1)

    def test_group_of_host_pools_is_as_its_anchor(self):
        pool, keys = self.random_pool(), hashes(23, 1)
        self.backend(pool).batch_set_v1(keys, pool.indices([0]))
        self.assertEqual(self.backend(fake_sglang.PoolGroup(pool)).batch_get_v1(keys, pool.indices([PAGES])), [True])

    def test_host_pool_without_a_dtype_is_refused_unless_it_is_given(self):
        pool = self.random_pool()
        del pool.dtype
        with self.assertRaisesRegex(InvalidArgument, 'dtype'):
            self.backend(pool)
        self.assertEqual(self.backend(pool, extra={'dtype': 'bf16'}).batch_exists(hashes(24, 1)), 0)

    def test_model_without_a_name_is_refused_unless_a_domain_is_given(self):
        pool = self.random_pool()
        with self.assertRaisesRegex(InvalidArgument, 'model'):
            self.backend(pool, model_name=None)
        self.assertEqual(self.backend(pool, model_name=None, extra={'domain': 'a'}).batch_exists(hashes(28, 1)), 0)

    def test_names_of_pages_for_routers_are_of_its_domain(self):
        pool, [key] = self.random_pool(), hashes(25, 1)
        storage = self.backend(pool, tp_rank=1, tp_size=2, extra={'domain': 'd'})
        storage.batch_set_v1([key], pool.indices([0]))
        client = ems.Client(self.cluster.address)
        self.addCleanup(client.close)
        self.assertTrue(client.exists(ems.ContextCache(client, **storage.domain).own_key(key)))
        self.assertEqual(BlockNames(**storage.domain).of_name(key),
                         BlockNames.of_key(ems.ContextCache(client, **storage.domain).own_key(key)))

    def test_figures_do_not_end_the_scheduler(self):
        pool = self.random_pool()
        storage = self.backend(pool, enable_storage_metrics=True)
        storage.batch_set_v1(hashes(26, 2), pool.indices([0, 1]))
        fake_sglang.check_hicache_events(storage)
        self.assertEqual(storage.counts()['stored_pages'], 2)

    def test_evicted_between_exists_and_get_is_a_miss_and_not_garbage(self):
        with Cluster(servers=1, dram='64MiB') as cluster:
            pool = self.random_pool(page_bytes=1 << 20)
            storage = fake_sglang.backend(cluster.address, pool)
            self.addCleanup(storage.close)
            keys = hashes(27, PAGES)
            self.assertEqual(storage.batch_set_v1(keys, pool.indices(range(PAGES))), [True] * PAGES)
            self.assertEqual(storage.batch_exists(keys), PAGES)
            for later in range(100, 108):  # more than the pool has
                storage.batch_set_v1(hashes(later, PAGES), pool.indices(range(PAGES)))
            done = storage.batch_get_v1(keys, pool.indices(range(PAGES, 2 * PAGES)))
            self.assertIn(False, done)
            for page, arrived in enumerate(done):
                self.assertTrue(not arrived or (pool.memory[PAGES + page] == pool.memory[page]).all())

    def test_ranks_of_an_mla_model_share_pages(self):
        pool = self.random_pool(is_mla=True)
        keys = hashes(6, 2)
        self.backend(pool, is_mla_model=True, tp_rank=0, tp_size=2).batch_set_v1(keys, pool.indices([0, 1]))
        other = self.backend(pool, is_mla_model=True, tp_rank=1, tp_size=2)
        self.assertEqual(other.batch_get_v1(keys, pool.indices([PAGES, PAGES + 1])), [True, True])
        self.assertTrue((pool.memory[PAGES:PAGES + 2] == pool.memory[:2]).all())

    def test_lists_are_full_and_nothing_raises_whatever_is_wrong(self):
        pool = self.random_pool()
        storage = self.backend(pool)
        keys = hashes(7, 3)
        for call in (storage.batch_get_v1, storage.batch_set_v1):
            self.assertEqual(call([], pool.indices([0])), [])
            self.assertEqual(call(keys, pool.indices([0])), [False] * 3)           # not enough pages
            self.assertEqual(call(keys[:2], pool.indices([0])), [False] * 2)       # K and V are no two pages
            self.assertEqual(call(keys, numpy.array([10 ** 9] * 48)), [False] * 3)  # pages that are not there
            self.assertEqual(call(['\ud800'] + keys, pool.indices(range(4))), [False] * 4)
            self.assertEqual(call(keys, None), [False] * 3)
            self.assertEqual(call(None, pool.indices([0])), [])
            self.assertEqual(call((key for key in keys[:1]), pool.indices([0])), [call == storage.batch_set_v1])
        self.assertEqual((storage.batch_exists(None), storage.batch_exists([1, 2])), (0, 0))
        storage.register_mem_pool_host(fake_sglang.DevicePool())  # it cannot say where pages are
        self.assertEqual(storage.batch_get_v1(keys, pool.indices(range(3))), [False] * 3)
        storage.close()
        self.assertEqual((storage.batch_exists(keys), storage.exists(keys[0])), (0, False))

    def test_generic_interface_moves_single_tensors(self):
        storage = self.backend(self.random_pool())
        value, into = numpy.arange(1000, dtype=numpy.float32), numpy.zeros(1000, numpy.float32)
        self.assertTrue(storage.set('one', value))
        self.assertTrue(storage.exists('one'))
        self.assertIs(storage.get('one', into), into)
        self.assertTrue((into == value).all())
        self.assertIsNone(storage.get('two', into))
        self.assertIsNone(storage.get('one', numpy.zeros(999, numpy.float32)))
        self.assertFalse(storage.batch_set(['a', 'b'], [value, value[::2]]))  # not contiguous
        self.assertEqual(storage.batch_get(['one', 'two'], [into, into]), [into, None])
        self.assertIsNone(storage.get('one'))

    def test_servers_whose_pages_come_by_different_interfaces_never_meet(self):
        # Of layers first, the host pool's pieces are K and V of each layer, and its flat page is K of all layers, then V.
        pool, keys = self.random_pool(layout='layer_first'), hashes(9, 2)
        pieces, flat = self.backend(pool), self.backend(pool, extra={'interface_v1': 0})
        pieces.batch_set_v1(keys[:1], pool.indices([0]))
        self.assertIsNone(flat.get(keys[0], numpy.zeros(pool.memory[0].nbytes, numpy.uint8)))
        self.assertTrue(flat.set(keys[1], pool.memory[0].ravel()))
        self.assertEqual([storage.batch_exists(keys[at:]) for storage, at in ((pieces, 0), (pieces, 1), (flat, 0), (flat, 1))],
                         [1, 0, 0, 1])

    def test_clear_keeps_what_others_use_and_says_so(self):
        pool = self.random_pool()
        storage = self.backend(pool)
        storage.batch_set_v1(hashes(8, 1), pool.indices([0]))
        with self.assertRaisesRegex(NotImplementedError, 'domain'):
            storage.clear()
        self.assertEqual(storage.batch_exists(hashes(8, 1)), 1)


if __name__ == '__main__':
    unittest.main()
