"""ems.ContextCache and ems.KvLayout against real daemons: keys, look-ups, blocks of memory and of paged tensors."""
import asyncio
import unittest

import numpy
from cluster import Cluster
from npu_tensor import NpuTensor

import ems


class ContextCacheTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(servers=2))
        cls.client = cls.enterClassContext(ems.Client(cls.cluster.address))

    def test_keys_are_chained_and_of_their_domain(self):
        cache = ems.ContextCache(self.client, model='chained', block_tokens=16)
        keys = cache.hash_tokens(range(40))
        self.assertEqual(len(keys), 2)
        self.assertEqual(cache.hash_tokens(numpy.arange(40)), keys)
        self.assertEqual(cache.hash_tokens(list(range(16, 32)), keys[0]), keys[1:])
        other = ems.ContextCache(self.client, model='chained', block_tokens=16, tp_rank=1, tp_size=2)
        self.assertFalse(set(keys) & set(other.hash_tokens(range(40))))
        with self.assertRaises(ems.errors.InvalidArgument):
            ems.ContextCache(self.client, model='m', tp_rank=2, tp_size=2)

    def test_save_then_lookup_then_load(self):
        cache = ems.ContextCache(self.client, model='saved', block_tokens=16)
        tokens = list(range(100, 180))
        keys = cache.hash_tokens(tokens)
        self.assertEqual(cache.lookup(tokens).leading_blocks, 0)
        blocks = [[bytes([i]) * 500, numpy.full(125, i, numpy.int32)] for i in range(5)]
        saved = cache.save(keys[:3], blocks[:3])
        self.assertEqual((saved.stored, saved.existing), (3, 0))
        saved = asyncio.run(cache.asave(keys[:4], blocks[:4]))
        self.assertEqual((saved.stored, saved.existing), (1, 3))
        self.client.remove(keys[1])
        self.assertEqual(cache.lookup(tokens).leading_blocks, 1)
        into = [bytearray(1000) for _ in keys]
        loaded = cache.load(keys, into)
        self.assertEqual(loaded.leading_blocks, 1)
        self.assertEqual(loaded.blocks, [1000, None, 1000, 1000, None])
        self.assertEqual(into[3], b''.join(bytes(part) for part in blocks[3]))
        self.assertEqual(asyncio.run(cache.alookup(tokens)).keys, keys)

    def test_paged_blocks_move_between_layouts_with_other_pages(self):
        def layers(blocks):
            return [[NpuTensor((blocks, 16, 2, 8)), NpuTensor((blocks, 16, 1, 4))] for _ in range(3)]
        mine, yours = layers(6), layers(4)
        for n, layer in enumerate(mine):
            for t, tensor in enumerate(layer):
                flat = tensor.host().reshape(-1)
                flat[:] = numpy.arange(flat.size) + 10000 * n + 3000 * t
        source, target = ems.KvLayout(mine), ems.KvLayout(yours)
        self.assertEqual(source.fingerprint, target.fingerprint)
        self.assertEqual(source.block_bytes(16), 3 * 16 * (2 * 8 + 4) * 2)
        cache = ems.ContextCache(self.client, model='paged', kv_layout=source.fingerprint, block_tokens=16)
        keys = cache.hash_tokens(range(32))
        slots = list(range(64, 80)) + list(range(32, 48))
        self.assertEqual(cache.save_paged(source, keys, slot_mapping=slots).stored, 2)
        loaded = cache.load_paged(target, keys, runs=[[(16, 16)], [(0, 8), (40, 8)]])
        self.assertEqual(loaded.leading_blocks, 2)
        for layer, other in zip(mine, yours):
            for tensor, copy in zip(layer, other):
                self.assertTrue((copy.host()[1] == tensor.host()[4]).all())
                self.assertTrue((copy.host()[0, :8] == tensor.host()[2, :8]).all())
                self.assertTrue((copy.host()[2, 8:] == tensor.host()[2, 8:]).all())
                self.assertFalse(copy.host()[3].any())
        with self.assertRaises(ems.errors.OutOfRange):
            cache.load_paged(target, keys[:1], runs=[[(63, 16)]])
        with self.assertRaises(ValueError):
            cache.load_paged(target, keys, slot_mapping=[1, 2, 3])

    def test_layer_groups_have_pages_of_their_own(self):
        layers = [[numpy.arange(4 * 16 * 8, dtype=numpy.float32).reshape(4, 16, 1, 8)],
                  [numpy.arange(8 * 8 * 4, dtype=numpy.float32).reshape(8, 8, 1, 4)]]
        layout = ems.KvLayout(layers, groups=[0, 1])
        cache = ems.ContextCache(self.client, model='grouped', kv_layout=layout.fingerprint)
        key = cache.own_key('block')
        self.assertEqual(cache.save_paged(layout, [key], runs=[[[(0, 16)], [(8, 8)]]]).stored, 1)
        self.assertEqual(self.client.get(key), layers[0][0][0].tobytes() + layers[1][0][1].tobytes())

    def test_a_slot_is_written_once_and_read_as_often_as_one_likes(self):
        tensor = numpy.arange(4 * 16 * 8, dtype=numpy.float32).reshape(4, 16, 1, 8)
        layout = ems.KvLayout([[tensor]])
        cache = ems.ContextCache(self.client, model='twice', kv_layout=layout.fingerprint, block_tokens=16)
        keys = cache.hash_tokens(range(32))
        self.assertEqual(cache.save_paged(layout, keys, runs=[[(0, 16)], [(0, 16)]]).stored, 2)
        before = tensor.copy()
        for where in ({'runs': [[(16, 16)], [(31, 16)]]}, {'runs': [[(0, 8), (0, 8)], [(16, 16)]]},
                      {'slot_mapping': list(range(16)) * 2}):
            with self.assertRaisesRegex(ems.errors.InvalidArgument, 'slot'):
                cache.load_paged(layout, keys, **where)
        self.assertTrue((tensor == before).all())
        self.assertEqual(cache.load_paged(layout, keys, runs=[[(16, 16)], [(32, 16)]]).leading_blocks, 2)

    def test_runs_that_change_while_they_are_read(self):
        layout = ems.KvLayout([[numpy.zeros((4, 16, 1, 8), numpy.float32)]])
        cache = ems.ContextCache(self.client, model='changing', kv_layout=layout.fingerprint, block_tokens=16)

        class Slot:
            def __index__(self):
                runs[1:] = groups[1:] = ['no run']
                return 0

        runs = [(Slot(), 8), (8, 8)]
        groups = [runs]
        self.assertEqual(cache.save_paged(layout, cache.hash_tokens(range(16)), runs=[groups]).stored, 1)

    def test_a_cache_of_another_layout_is_refused(self):
        layout = ems.KvLayout([[numpy.zeros((2, 16, 1, 8), numpy.float32)]])
        for kv_layout in ('', 'another'):
            cache = ems.ContextCache(self.client, model='unlike', kv_layout=kv_layout, block_tokens=16)
            for call in (cache.load_paged, cache.save_paged):
                with self.assertRaises(ems.errors.InvalidArgument) as caught:
                    call(layout, cache.hash_tokens(range(16)), runs=[[(0, 16)]])
                self.assertIn(f'"{kv_layout}"', str(caught.exception))
                self.assertIn(layout.fingerprint, str(caught.exception))

    def test_tensors_that_are_no_kv_are_refused(self):
        for dtype in (object, 'float64', 'int64', 'uint16', 'bool', 'complex64', '>f4', 'M8[s]', [('n', 'f4')]):
            with self.assertRaises(ems.errors.InvalidArgument):
                ems.KvLayout([[numpy.zeros((2, 16, 1, 8), dtype)]])
        for dtype in ('float32', 'float16', 'int8', 'uint8'):
            self.assertEqual(ems.KvLayout([[numpy.zeros((2, 16, 1, 8), dtype)]]).layers, 1)
        array = numpy.zeros((2, 16, 1, 8), numpy.float32)
        array.flags.writeable = False
        with self.assertRaisesRegex(ems.errors.InvalidArgument, 'read-only'):
            ems.KvLayout([[array]])

    def test_layouts_that_make_no_sense_are_refused(self):
        for layers in ([], [[]], [[numpy.zeros((2, 16, 4))[:, :, ::2]]], [[numpy.zeros(5)]], [['tensor']]):
            with self.assertRaises((ValueError, TypeError)):
                ems.KvLayout(layers)

    def test_groups_that_are_not_there_are_refused(self):
        tensors = [[numpy.zeros((2, 16, 1, 4), numpy.float32)]]
        layout = ems.KvLayout(tensors)
        self.assertEqual((layout.slots(), layout.block_tokens(), layout.block_bytes(16)), (32, 16, 256))
        for group in (1, -1, 10 ** 9, 2 ** 40):
            for call in (layout.slots, layout.block_tokens, lambda group: layout.block_bytes(16, group),
                         lambda group: ems.KvLayout(tensors, groups=[group])):
                with self.assertRaises(ems.errors.InvalidArgument):
                    call(group)

    def test_arrays_without_bytes_are_no_ints(self):
        cache = ems.ContextCache(self.client, model='void')
        for dtype in ('V0', []):
            with self.assertRaises(TypeError):
                cache.hash_tokens(numpy.empty(3, dtype))

if __name__ == '__main__':
    unittest.main()
