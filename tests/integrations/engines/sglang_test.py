"""SGLang's HiCache through its dynamic backend, interface v1, with a host pool of the test's own."""
import unittest

import fake_sglang
import numpy
from harness import Cluster

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
        self.assertEqual(storage.get_stats(), {'requested_pages': 2 * PAGES, 'hit_pages': PAGES, 'loaded_pages': PAGES,
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
                      {'is_page_first_layout': False}):
            with self.subTest(other):
                self.assertEqual(self.backend(pool, **other).batch_exists(keys), 0)
        self.assertEqual(self.backend(pool).batch_exists(keys), 2)

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
        storage.register_mem_pool_host(None)
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

    def test_clear_keeps_what_others_use(self):
        pool = self.random_pool()
        storage = self.backend(pool)
        storage.batch_set_v1(hashes(8, 1), pool.indices([0]))
        storage.clear()
        self.assertEqual(storage.batch_exists(hashes(8, 1)), 1)


if __name__ == '__main__':
    unittest.main()
