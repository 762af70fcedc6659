"""The drop-in surface when nobody says in which order a tensor's dimensions come: calls prove it, or are refused before a byte moves."""
import os
import unittest
from unittest import mock

import numpy
from cluster import Cluster
from ems import CcConfig_v1, CcKvOption, Ems, EmsConfig, EmsErrorCode, EmsException
from npu_tensor import NpuTensor

BLOCKS, BLOCK_SIZE = 12, 128
OPTION = CcKvOption(timeout=3000)


def nz_layers(*columns, count=2):
    """Layers as engines on NPUs keep them: [blocks, kv heads × head size / 16, block size, 16], of columns[0], columns[1], …"""
    return [[NpuTensor((BLOCKS, columns, BLOCK_SIZE, 16)) for columns in columns] for _ in range(count)]


def slots(*pages, size=BLOCK_SIZE):
    """As adapters compute them: block id × block size + token."""
    return [page * size + i for page in pages for i in range(size)]


class BatchesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2).__enter__()
        os.environ['EMS_CONTROLLER'] = cls.cluster.address

    @classmethod
    def tearDownClass(cls):
        del os.environ['EMS_CONTROLLER']
        cls.cluster.stop()

    def open(self, kvcache, **stated):
        Ems.shutdown()
        self.addCleanup(Ems.shutdown)
        Ems.init(EmsConfig(cc_config_v1=CcConfig_v1(rank_id=0, device_id=0, model_id=self.id().rsplit('.', maxsplit=1)[-1].lower())))
        Ems.get_cc().register_kvcache(kvcache, **stated)
        return Ems.get_cc()

    def fill(self, kvcache):
        rng = numpy.random.default_rng(5)
        for layer in kvcache:
            for tensor in layer:
                tensor.host()[:] = rng.integers(1, 65535, tensor.shape, numpy.uint16)
        return [[tensor.host().copy() for tensor in layer] for layer in kvcache]

    def refuses(self, call, *args, words='EMS_KV_ORDER', **kwargs):
        with self.assertRaises(EmsException) as caught:
            call(*args, **kwargs)
        self.assertEqual(caught.exception.status_code(), EmsErrorCode.EMS_INVALID_ARGUMENT)
        self.assertIn(words, caught.exception.message())

    def check_moved(self, kvcache, before, moved):
        """Each target page has its source's bytes, and all other pages have what was there before."""
        for layer, old in zip(kvcache, before):
            for tensor, was in zip(layer, old):
                expected = was.copy()
                for source, target in moved:
                    expected[target] = was[source]
                self.assertTrue((tensor.host() == expected).all())

    def test_nz_tensors_of_a_caller_that_says_nothing(self):
        kvcache = nz_layers(64, 64)
        before = self.fill(kvcache)
        cc = self.open(kvcache)
        self.assertEqual(cc.save(slots(0, 1, 2), [1, 2, 3], [BLOCK_SIZE] * 3, OPTION).success, 3)
        self.assertEqual(cc.load(slots(10, 9, 11), [1, 2, 3], [BLOCK_SIZE] * 3, OPTION).success, 3)
        self.check_moved(kvcache, before, [(0, 10), (1, 9), (2, 11)])
        cc = self.open(kvcache, order='NZ')
        self.assertEqual(cc.load(slots(5), [2], [BLOCK_SIZE], OPTION).success, 1, 'stated or proven, it is the same layout')

    def test_keys_and_values_of_other_widths(self):
        kvcache = nz_layers(12, 8)
        before = self.fill(kvcache)
        cc = self.open(kvcache)
        self.assertEqual(cc.save(hashes=[1], chunk_descs=[[(BLOCK_SIZE, BLOCK_SIZE)]], option=OPTION).success, 1)
        self.assertEqual(cc.load(slots(7), [1], [BLOCK_SIZE], OPTION).success, 1)
        self.check_moved(kvcache, before, [(1, 7)])

    def test_as_many_columns_as_tokens_are_one_page_either_way(self):
        kvcache = nz_layers(BLOCK_SIZE)
        before = self.fill(kvcache)
        cc = self.open(kvcache)
        self.assertEqual(cc.save(slots(3), [1], [BLOCK_SIZE], OPTION).success, 1)
        self.assertEqual(cc.load(slots(4), [1], [BLOCK_SIZE], OPTION).success, 1)
        self.check_moved(kvcache, before, [(3, 4)])

    def test_blocks_that_are_no_page_are_refused_before_a_byte_moves(self):
        kvcache = nz_layers(64, 64)
        before = self.fill(kvcache)
        cc = self.open(kvcache)
        for call in (cc.save, cc.load, cc.async_save, cc.async_load):
            self.refuses(call, list(range(96)), [1], [96], OPTION)  # neither dimension
            self.refuses(call, list(range(256)), [1], [256], OPTION)  # two pages of one, four of the other
            self.refuses(call, slots(0) + list(range(128, 192)), [1, 2], [128, 64], OPTION)  # one of each
            self.refuses(call, list(range(64, 192)), [1], [128], OPTION)  # a page that begins in one
            self.refuses(call, hashes=[1], chunk_descs=[[(0, 96)]], option=OPTION)
        self.assertEqual(cc.exists([1, 2], OPTION).success, 0)
        self.check_moved(kvcache, before, [])

    def test_what_a_call_has_proven_later_ones_cannot_contradict(self):
        kvcache = nz_layers(64, 64)
        before = self.fill(kvcache)
        cc = self.open(kvcache)
        self.refuses(cc.save, list(range(1, 65)), [7], [64], OPTION)  # refused: it proves nothing
        self.assertEqual(cc.save(slots(0), [1], [BLOCK_SIZE], OPTION).success, 1)
        self.refuses(cc.load, slots(3, size=64), [1], [64], OPTION, words='a page has 128 tokens')
        self.check_moved(kvcache, before, [])

    def test_heads_before_tokens_are_not_guessed(self):
        kvcache = [[NpuTensor((BLOCKS, 8, BLOCK_SIZE, 64)) for _ in 'kv']]
        before = self.fill(kvcache)
        self.refuses(self.open(kvcache).save, slots(0), [1], [BLOCK_SIZE], OPTION, words="order='NHD'")
        cc = self.open(kvcache, order='HND')
        self.assertEqual(cc.save(slots(0, 1), [1, 2], [BLOCK_SIZE] * 2, OPTION).success, 2)
        self.assertEqual(cc.load(slots(11, 10), [1, 2], [BLOCK_SIZE] * 2, OPTION).success, 2)
        self.check_moved(kvcache, before, [(0, 11), (1, 10)])

    def test_a_stated_order_allows_blocks_of_several_pages_and_of_parts(self):
        kvcache = nz_layers(64, 64)
        before = self.fill(kvcache)
        with mock.patch.dict(os.environ, EMS_KV_ORDER='NZ'):
            cc = self.open(kvcache)
        self.assertEqual(cc.save(slots(0, 2), [1], [2 * BLOCK_SIZE], OPTION).success, 1)
        self.assertEqual(cc.save(slots(1)[:40], [2], [40], OPTION).success, 1)
        self.assertEqual(cc.load(slots(8, 6), [1], [2 * BLOCK_SIZE], OPTION).success, 1)
        self.check_moved(kvcache, before, [(0, 8), (2, 6)])
        self.refuses(self.open, kvcache, order='DNH', words="order is 'DNH'")

    def test_one_head_is_the_same_in_every_order(self):
        cc = self.open([[NpuTensor((BLOCKS, BLOCK_SIZE, 1, 512)), NpuTensor((BLOCKS, BLOCK_SIZE, 1, 64))]])
        self.assertEqual(cc.save(slots(0)[:40], [1], [40], OPTION).success, 1)
        self.assertEqual(cc.load(slots(5)[7:47], [1], [40], OPTION).success, 1)


if __name__ == '__main__':
    unittest.main()
