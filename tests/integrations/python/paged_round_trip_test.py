"""Paged KV of real models through real daemons and back, byte by byte: MLA and GQA, both orders, many block sizes, random slots."""
import os
import unittest

import numpy
from cluster import Cluster
from npu_tensor import NpuTensor

import ems
from ems import CcConfig_v1, CcKvOption, Ems, EmsConfig

PAGE = 16  # tokens of the engine's own pages
MODELS = {  # layers, (heads, head size) of each tensor of a layer
    'mla': (61, ((1, 512), (1, 64))),
    'gqa': (80, ((8, 128), (8, 128))),
}


def tensors(model, pages, order, random=None):
    layers, sizes = MODELS[model]
    made = []
    for _ in range(layers):
        made.append([])
        for heads, size in sizes:
            tensor = NpuTensor((pages, PAGE, heads, size) if order == 'NHD' else (pages, heads, PAGE, size))
            if random is not None:
                host = tensor.host()
                host[:] = random.integers(0, 65536, host.shape, dtype=numpy.uint16)
            made[-1].append(tensor)
    return made


def by_slot(tensor, order):
    """The tensor as [slots, heads, head size]: a copy."""
    host = tensor.host() if order == 'NHD' else tensor.host().transpose(0, 2, 1, 3)
    return host.reshape(-1, *host.shape[2:])


class PagedRoundTripTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2, dram='512MiB').__enter__()
        cls.client = ems.Client(cls.cluster.address, timeout=20)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.cluster.stop()

    def round_trip(self, model, order, block_tokens, blocks, seed):
        random = numpy.random.default_rng(seed)
        tokens = block_tokens * blocks
        pages = tokens // PAGE + 3
        mine, yours = tensors(model, pages, order, random), tensors(model, pages, order)
        source, target = ems.KvLayout(mine, order=order), ems.KvLayout(yours, order=order)
        cache = ems.ContextCache(self.client, model=model, kv_layout=source.fingerprint, cache_salt=str(seed),
                                 block_tokens=block_tokens)
        keys = cache.hash_tokens(range(tokens))
        self.assertEqual(len(keys), blocks)
        out = random.permutation(pages * PAGE)[:tokens]   # each token in a slot of its own
        back = random.permutation(pages * PAGE)[:tokens]
        self.assertEqual(cache.save_paged(source, keys, slot_mapping=out).stored, blocks)
        self.assertEqual(cache.load_paged(target, keys, slot_mapping=back).leading_blocks, blocks)
        untouched = numpy.setdiff1d(numpy.arange(pages * PAGE), back)
        for layer, other in zip(mine, yours):
            for tensor, copy in zip(layer, other):
                self.assertTrue(numpy.array_equal(by_slot(tensor, order)[out], by_slot(copy, order)[back]))
                self.assertFalse(by_slot(copy, order)[untouched].any())

    def test_blocks_of_16_to_512_tokens_in_both_orders(self):
        for seed, (model, order, block_tokens, blocks) in enumerate((
                ('mla', 'NHD', 16, 5), ('mla', 'NHD', 128, 2), ('mla', 'NHD', 512, 1), ('mla', 'HND', 48, 2),
                ('gqa', 'NHD', 16, 3), ('gqa', 'NHD', 64, 1), ('gqa', 'HND', 16, 2), ('gqa', 'HND', 128, 1))):
            with self.subTest(model=model, order=order, block_tokens=block_tokens):
                self.round_trip(model, order, block_tokens, blocks, seed)

    def test_negative_slots_are_refused_in_our_own_words(self):
        array = numpy.zeros((4, 16, 2, 8), numpy.float16)
        layout = ems.KvLayout([[array]])
        cache = ems.ContextCache(self.client, model='negative', kv_layout=layout.fingerprint, block_tokens=16)
        keys = cache.hash_tokens(range(16))
        for where in ({'slot_mapping': range(-1, 15)}, {'runs': [[(-16, 16)]]}, {'runs': [[(0, -16)]]}, {'runs': [[(0, 2 ** 40)]]}):
            for call in (cache.load_paged, cache.save_paged):
                with self.assertRaisesRegex(ems.errors.InvalidArgument, 'makes no sense'):
                    call(layout, keys, **where)

    def test_the_original_interface_moves_the_same_bytes(self):
        random = numpy.random.default_rng(99)
        kv = tensors('mla', 12, 'NHD', random)
        before = [[by_slot(tensor, 'NHD').copy() for tensor in layer] for layer in kv]
        os.environ['EMS_CONTROLLER'] = self.cluster.address
        self.addCleanup(os.environ.pop, 'EMS_CONTROLLER', None)
        Ems.init(EmsConfig(cc_config_v1=CcConfig_v1(rank_id=0, device_id=0, model_id='round-trip')))
        try:
            cc = Ems.get_cc()
            cc.register_kvcache(kv)
            slots = random.permutation(12 * PAGE)
            out, back = slots[:4 * PAGE], slots[4 * PAGE:8 * PAGE]
            hashes, option = [-1, -2 ** 63, 7, 2 ** 63 - 1], CcKvOption(timeout=20000)
            where = {'hashes': hashes, 'offsets': [PAGE] * 4, 'option': option}
            self.assertEqual(cc.save(slot_mapping=out.tolist(), **where).success, 4)
            self.assertEqual(cc.load(slot_mapping=back.tolist(), **where).success, 4)
            for layer, was in zip(kv, before):
                for tensor, old in zip(layer, was):
                    now = by_slot(tensor, 'NHD')
                    self.assertTrue(numpy.array_equal(now[back], old[out]))
                    rest = numpy.setdiff1d(numpy.arange(12 * PAGE), back)
                    self.assertTrue(numpy.array_equal(now[rest], old[rest]))
        finally:
            Ems.shutdown()


if __name__ == '__main__':
    unittest.main()
