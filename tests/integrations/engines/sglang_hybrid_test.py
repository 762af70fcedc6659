"""SGLang's hybrid models: pools beside the KV pool (interface v2), whose names meet in no other pool."""
import unittest

import fake_sglang
import numpy
from fake_sglang import HostPool, LogicalPool, PoolGroup, PoolHitPolicy, PoolName, PoolTransfer, StatePool
from harness import Cluster

from ems.errors import InvalidArgument

fake_sglang.install()
PAGES = 16


def hashes(name, count):
    return [f'{name:08x}{page:056x}' for page in range(count)]


def filled(pool):
    pool.memory[:] = numpy.random.default_rng(7).integers(1, 255, pool.memory.shape, numpy.uint8)
    return pool


def latent(pages=PAGES, **options):
    """A pool of MLA: the same on each tp rank."""
    pool = HostPool(pages, is_mla=True, **options)
    del pool.head_num, pool.head_dim
    pool.kv_lora_rank = 512
    return pool


def indexer(pages=PAGES):
    pool = latent(pages, page_bytes=2048)
    pool.index_head_dim = 128
    return pool


def last(name, pool, keys, count=1):
    """A transfer of the last `count` pages to the first ones of `pool`."""
    return PoolTransfer(name, pool.indices(range(count)), keys[-count:], PoolHitPolicy.TRAILING_PAGES)


class SglangHybridTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2, dram='128MiB')
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def backend(self, group, **config):
        storage = fake_sglang.backend(self.cluster.address, group, **config)
        self.addCleanup(storage.close)
        return storage

    def test_states_of_mamba_go_out_and_come_back(self):
        keys = hashes(1, 6)
        kv, states = filled(HostPool(PAGES)), filled(StatePool(8))
        storage = self.backend(PoolGroup(kv, mamba=states))
        put = last(PoolName.MAMBA, states, keys)
        self.assertEqual(storage.batch_exists_v2(keys, [put]).kv_hit_pages, 0)
        self.assertEqual(storage.batch_set_v2([put]), {PoolName.MAMBA: [True]})
        self.assertEqual(storage.batch_exists_v2(keys, [put]).kv_hit_pages, 0, 'the KV pages are not there')
        self.assertEqual(storage.batch_set_v1(keys, kv.indices(range(6))), [True] * 6)

        kv_there, states_there = HostPool(PAGES), StatePool(8)
        other = self.backend(PoolGroup(kv_there, mamba=states_there))
        get = last(PoolName.MAMBA, states_there, keys)
        found = other.batch_exists_v2(keys + hashes(2, 2), [get])
        self.assertEqual((found.kv_hit_pages, found.extra_pool_hit_pages), (6, {'kv': 6, 'mamba': 6}))
        self.assertEqual(other.batch_get_v1(keys, kv_there.indices(range(6))), [True] * 6)
        self.assertEqual(other.batch_get_v2([get]), {PoolName.MAMBA: [True]})
        self.assertTrue((states_there.memory[0] == states.memory[0]).all())
        self.assertTrue((kv_there.memory[:6] == kv.memory[:6]).all())

    def test_prefix_ends_where_each_pool_has_what_it_needs_there(self):
        keys = hashes(3, 8)
        kv, swa, states, index = filled(HostPool(PAGES)), filled(HostPool(PAGES)), filled(StatePool(8)), filled(indexer())
        storage = self.backend(PoolGroup(kv, swa=swa, mamba=states, indexer=index))
        storage.batch_set_v1(keys[:7], kv.indices(range(7)))
        storage.batch_set_v2([PoolTransfer(PoolName.INDEXER, index.indices(range(6)), keys[:6]),
                              PoolTransfer(PoolName.SWA, swa.indices(range(4)), keys[1:5]),
                              PoolTransfer(PoolName.MAMBA, states.indices([0, 1]), [keys[5], keys[3]])])

        def found(*transfers):
            return storage.batch_exists_v2(keys, list(transfers)).kv_hit_pages
        state, window = last(PoolName.MAMBA, states, keys), last(PoolName.SWA, swa, keys, 2)
        self.assertEqual(found(), 7)
        self.assertEqual(found(PoolTransfer(PoolName.INDEXER)), 6)
        self.assertEqual(found(state), 6)
        self.assertEqual(found(window), 5)
        self.assertEqual(found(state, window), 4, 'at 6 there is no window, at 5 no state')
        self.assertEqual(found(last(PoolName.SWA, swa, keys, 5)), 0, 'the window begins with a page that is not there')

    def test_value_of_one_pool_never_answers_another(self):
        keys = hashes(4, 4)
        pools = {'swa': filled(latent()), 'indexer': latent(), 'draft': latent()}
        storage = self.backend(PoolGroup(latent(), **pools), is_mla_model=True)
        self.assertEqual(storage.batch_set_v2([PoolTransfer(PoolName.SWA, pools['swa'].indices(range(4)), keys)]),
                         {PoolName.SWA: [True] * 4})
        for name in ('indexer', 'draft'):  # of the same shape
            transfer = PoolTransfer(PoolName(name), pools[name].indices(range(4)), keys)
            self.assertEqual(storage.batch_get_v2([transfer]), {PoolName(name): [False] * 4})
        self.assertEqual(storage.batch_exists(keys), 0)
        self.assertEqual(storage.batch_get_v1(keys, pools['swa'].indices(range(4))), [False] * 4)

    def test_states_of_another_layout_are_misses(self):
        keys = hashes(5, 1)
        states, split = filled(StatePool(8)), StatePool(8, temporal=3072, conv=2048)  # as many bytes
        storage, other = (self.backend(PoolGroup(HostPool(PAGES), mamba=pool)) for pool in (states, split))
        storage.batch_set_v2([last(PoolName.MAMBA, states, keys)])
        self.assertEqual(other.batch_get_v2([last(PoolName.MAMBA, split, keys)]), {PoolName.MAMBA: [False]})
        self.assertEqual(storage.batch_get_v2([last(PoolName.MAMBA, states, keys)]), {PoolName.MAMBA: [True]})

    def test_ranks_of_an_mla_model_share_what_is_not_split_between_them(self):
        keys = hashes(6, 1)

        def rank(number):
            pools = {'mamba': StatePool(8), 'indexer': indexer(), 'swa': HostPool(PAGES)}  # the last one has heads
            for pool in pools.values():
                pool.memory[:] = 0xA0 + number
            return self.backend(PoolGroup(latent(), **pools), is_mla_model=True, tp_rank=number, tp_size=2), pools
        (first, own), (second, others) = rank(0), rank(1)
        for name, pool in own.items():
            first.batch_set_v2([PoolTransfer(PoolName(name), pool.indices([0]), keys)])
        for name, pool in others.items():
            done = second.batch_get_v2([PoolTransfer(PoolName(name), pool.indices([0]), keys)])
            self.assertEqual(done, {PoolName(name): [name == 'indexer']})
            self.assertTrue((pool.memory[0] == (0xA0 if name == 'indexer' else 0xA1)).all())

    def test_draft_pages_of_an_mla_model_are_their_ranks_own(self):
        value = numpy.full(4096, 0xA0, numpy.uint8)
        ranks = [self.backend(latent(), is_mla_model=True, tp_rank=rank, tp_size=2) for rank in (0, 1)]
        [key] = [f'{name}.draft' for name in hashes(7, 1)]
        self.assertTrue(ranks[0].batch_set([key], [value]))
        self.assertEqual(ranks[1].batch_get([key], [numpy.zeros_like(value)]), [None])
        said = [self.backend(latent(), is_mla_model=True, tp_rank=rank, tp_size=2, extra={'shared_draft': 1}) for rank in (0, 1)]
        self.assertTrue(said[0].batch_set([key], [value]))
        self.assertTrue((said[1].batch_get([key], [numpy.zeros_like(value)])[0] == value).all())

    def test_pool_that_sglang_lets_one_rank_alone_write_though_each_needs_its_own_is_told(self):
        for pool, tp_size, is_told in ((HostPool(PAGES), 2, True), (HostPool(PAGES), 1, False), (latent(), 2, False)):
            with self.assertLogs('ems', 'INFO') as logs:
                self.backend(PoolGroup(latent(), draft=pool, mamba=StatePool(8)), is_mla_model=True, tp_size=tp_size)
            told = [one.getMessage() for one in logs.records if one.levelname == 'WARNING']
            self.assertEqual([('pages of draft' in one) for one in told], [True] * is_told)

    def test_kv_pool_without_memory_counts_as_far_as_the_pools_beside_it_have_all(self):
        keys = hashes(8, 4)
        whole, state = filled(latent()), filled(latent())
        storage = self.backend(PoolGroup(LogicalPool(), indexer=whole, swa=state), is_mla_model=True)
        indices = whole.indices(range(4))
        self.assertEqual(storage.batch_exists(keys), 0)
        self.assertEqual(storage.batch_set_v1(keys, indices), [True] * 4)
        self.assertEqual(storage.batch_get_v1(keys, indices), [True] * 4)
        self.assertEqual(storage.batch_exists_v2(keys).kv_hit_pages, 0)
        transfers = [PoolTransfer(PoolName.INDEXER, indices, keys), last(PoolName.SWA, state, keys)]
        self.assertEqual(storage.batch_exists_v2(keys, transfers).kv_hit_pages, 0)
        storage.batch_set_v2(transfers)
        self.assertEqual(storage.batch_exists_v2(keys, transfers).kv_hit_pages, 4)
        self.assertEqual(storage.batch_exists_v2(keys, transfers[1:]).kv_hit_pages, 0, 'no pool has all pages')

    def test_nothing_raises_whatever_is_wrong(self):
        kv, states = HostPool(PAGES), StatePool(8)
        storage = self.backend(PoolGroup(kv, mamba=states))
        keys = hashes(9, 2)
        for transfer in (PoolTransfer(PoolName.MAMBA, None, keys), PoolTransfer(PoolName.MAMBA, states.indices([0]), keys),
                         PoolTransfer(PoolName.SWA, states.indices([0, 1]), keys)):  # a pool that is not there
            for call in (storage.batch_get_v2, storage.batch_set_v2):
                self.assertEqual(call([transfer]), {transfer.name: [False, False]})
        self.assertEqual(storage.batch_set_v2([PoolTransfer(PoolName.MAMBA)]), {PoolName.MAMBA: []})
        self.assertEqual(storage.batch_exists_v2(keys, [PoolTransfer(PoolName.SWA)]).kv_hit_pages, 0)
        self.assertEqual((storage.batch_exists_v2(None).kv_hit_pages, storage.batch_exists_v2([]).kv_hit_pages), (0, 0))
        self.assertEqual((storage.batch_get_v2([]), storage.batch_set_v2(None)), ({}, {}))

    def test_pool_that_tells_no_dtype_is_refused(self):
        states = StatePool(8)
        del states.dtype
        with self.assertRaisesRegex(InvalidArgument, 'dtype'):
            self.backend(PoolGroup(HostPool(PAGES), mamba=states))


if __name__ == '__main__':
    unittest.main()
