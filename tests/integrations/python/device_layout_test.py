"""ContextCache's paged calls with KV in the memory of a device: in order with what the engine gives to it, and every byte as by address."""
import asyncio
import unittest
from unittest import mock

import device_tensor
import numpy
from cluster import Cluster
from device_tensor import DeviceTensor, HostTensor

import ems
from ems import DeviceKvLayout, errors

BLOCKS, PAGE = 16, 16
SHAPE = (BLOCKS, PAGE, 2, 8)
PAGE_BYTES = PAGE * 2 * 8 * 2
LAYERS = 3


def slots(*pages):
    return [page * PAGE + i for page in pages for i in range(PAGE)]


def filled(seed):
    """(layers of K and V, what is in them)"""
    rng = numpy.random.default_rng(seed)
    layers = [[DeviceTensor(SHAPE) for _ in 'kv'] for _ in range(LAYERS)]
    for layer in layers:
        for tensor in layer:
            tensor.copy_(HostTensor(rng.integers(1, 65535, SHAPE, numpy.uint16)))
    return layers, [[tensor.numpy() for tensor in layer] for layer in layers]


class DeviceLayoutTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2).__enter__()
        cls.addClassCleanup(cls.cluster.stop)
        cls.client = ems.Client(cls.cluster.address, timeout=10)
        cls.addClassCleanup(cls.client.close)

    def cache(self, layout):
        return ems.ContextCache(self.client, model=self.id(), kv_layout=layout.fingerprint, block_tokens=PAGE)

    def keys(self, cache, count):
        return [cache.own_key(b'%d' % i) for i in range(count)]

    def check(self, layers, before, moved, up_to=LAYERS):
        """Pages of layers below `up_to` have moved, and nothing else is touched."""
        for number, (layer, old) in enumerate(zip(layers, before)):
            for tensor, was in zip(layer, old):
                expected = was.copy()
                for source, target in moved if number < up_to else ():
                    expected[target] = was[source]
                self.assertTrue((tensor.numpy() == expected).all(), f'layer {number}')

    def test_pages_go_out_and_come_back_and_no_other_is_touched(self):
        layers, before = filled(1)
        layout = DeviceKvLayout(layers)
        self.assertEqual((layout.layers, layout.groups, layout.slots(), layout.block_tokens()), (LAYERS, 1, BLOCKS * PAGE, PAGE))
        cache = self.cache(layout)
        keys = self.keys(cache, 3)
        self.assertEqual(cache.save_paged(layout, keys, slot_mapping=slots(3, 0, 1)).stored, 3)
        loaded = cache.load_paged(layout, keys, slot_mapping=slots(9, 14, 10))
        self.assertEqual((loaded.leading_blocks, len(loaded.blocks)), (3, 3))
        self.check(layers, before, [(3, 9), (0, 14), (1, 10)])

    def test_host_memory_and_a_device_share_blocks(self):
        layers, before = filled(2)
        layout = DeviceKvLayout(layers)
        cache = self.cache(layout)
        cache.save_paged(layout, self.keys(cache, 1), slot_mapping=slots(5))
        arrays = [[HostTensor(numpy.zeros(SHAPE, numpy.uint16)) for _ in 'kv'] for _ in range(LAYERS)]
        host = ems.KvLayout(arrays)
        self.assertEqual(host.fingerprint, layout.fingerprint)
        self.assertEqual(cache.load_paged(host, self.keys(cache, 1), slot_mapping=slots(2)).leading_blocks, 1)
        for layer, was in zip(arrays, before):
            for array, old in zip(layer, was):
                self.assertTrue((array.numpy()[2] == old[5]).all())

    def test_layers_are_in_place_for_what_the_engine_gives_behind_wait_layer(self):
        with mock.patch.object(device_tensor, 'npu', device_tensor.Streams()) as streams:
            layers, before = filled(3)
            layout = DeviceKvLayout(layers)
            cache = self.cache(layout)
            keys = self.keys(cache, 2)
            cache.save_paged(layout, keys, slot_mapping=slots(0, 1))
            read_before, read = [], []
            streams.engines.give(lambda: read_before.append(layers[0][0].numpy()[8]))  # a kernel that still reads what was there
            with cache.load_layers(layout, keys, slot_mapping=slots(8, 9)) as load:
                for number in range(LAYERS):
                    self.assertEqual(load.wait_layer(number).leading_blocks, 2)
                    self.assertEqual(len(read), 0, 'nothing waits for the device')
                    streams.engines.give(lambda number=number: read.append([tensor.numpy()[8:10] for tensor in layers[number]]))
                    self.check(layers, before, [])
                self.assertEqual(load.result().leading_blocks, 2)
            streams.engines.synchronize()
            self.assertTrue((read_before[0] == before[0][0][8]).all())
            for number in range(LAYERS):
                for got, was in zip(read[number], before[number]):
                    self.assertTrue((got == was[0:2]).all(), f'layer {number}')
            self.check(layers, before, [(0, 8), (1, 9)])

    def test_a_save_takes_what_the_engine_has_given_before(self):
        with mock.patch.object(device_tensor, 'npu', device_tensor.Streams()) as streams:
            layers, before = filled(4)
            layout = DeviceKvLayout(layers)
            cache = self.cache(layout)
            computed = HostTensor(numpy.full(SHAPE[1:], 9, numpy.uint16))
            streams.engines.give(lambda: layers[2][1][3].copy_(computed))
            self.assertEqual(cache.save_paged(layout, self.keys(cache, 1), slot_mapping=slots(3)).stored, 1)
            self.assertEqual(cache.load_paged(layout, self.keys(cache, 1), slot_mapping=slots(11)).leading_blocks, 1)
            streams.engines.synchronize()
            before[2][1][3] = 9
            self.check(layers, before, [(3, 11)])

    def test_host_pages_are_not_filled_again_before_the_device_has_read_them(self):
        with mock.patch.object(device_tensor, 'npu', device_tensor.Streams()) as streams:
            layers, before = filled(5)
            layout = DeviceKvLayout(layers, staging_bytes=2 * LAYERS * PAGE_BYTES)  # one page
            cache = self.cache(layout)
            keys = self.keys(cache, 2)
            for i in range(2):
                cache.save_paged(layout, keys[i:i + 1], slot_mapping=slots(i))
            for i in range(2):
                load = cache.load_layers(layout, keys[i:i + 1], slot_mapping=slots(8 + i))
                self.assertEqual(load.result().leading_blocks, 1)
            streams.engines.synchronize()
            self.check(layers, before, [(0, 8), (1, 9)])

    def test_a_call_larger_than_the_host_memory_goes_in_turns_and_layers_are_refused(self):
        layers, before = filled(6)
        layout = DeviceKvLayout(layers, staging_bytes=3 * 2 * LAYERS * PAGE_BYTES)
        cache = self.cache(layout)
        keys = self.keys(cache, 7)
        self.assertEqual(cache.save_paged(layout, keys, slot_mapping=slots(*range(7))).stored, 7)
        with self.assertRaisesRegex(errors.ResourceExhausted, 'staging_bytes'):
            cache.load_layers(layout, keys, slot_mapping=slots(*range(8, 15)))
        self.check(layers, before, [])
        self.assertEqual(cache.load_paged(layout, keys, slot_mapping=slots(*range(8, 15))).leading_blocks, 7)
        self.check(layers, before, [(i, 8 + i) for i in range(7)])
        held = cache.load_layers(layout, keys[:2], slot_mapping=slots(8, 9))
        with self.assertRaises(errors.ResourceExhausted):
            cache.load_layers(layout, keys[:2], slot_mapping=slots(10, 11))
        del held  # ends it
        with cache.load_layers(layout, keys[:2], slot_mapping=slots(10, 11)) as load:
            self.assertEqual(load.result().leading_blocks, 2)

    def test_pages_of_missing_blocks_are_not_touched(self):
        layers, before = filled(7)
        layout = DeviceKvLayout(layers)
        cache = self.cache(layout)
        keys = self.keys(cache, 4)
        cache.save_paged(layout, [keys[0], keys[2], keys[3]], slot_mapping=slots(0, 2, 3))
        with cache.load_layers(layout, keys, slot_mapping=slots(8, 9, 10, 11)) as load:
            for ready in load:
                self.assertEqual((ready.leading_blocks, ready.missing), (1, [1]))
            loaded = load.result()
        self.assertEqual((loaded.leading_blocks, loaded.blocks[1]), (1, None))
        self.check(layers, before, [(0, 8), (2, 10), (3, 11)])

    def test_what_is_awaited_is_in_place(self):
        async def main():
            layers, before = filled(8)
            layout = DeviceKvLayout(layers)
            cache = self.cache(layout)
            cache.save_paged(layout, self.keys(cache, 1), slot_mapping=slots(4))
            async with cache.load_layers(layout, self.keys(cache, 1), slot_mapping=slots(12)) as load:
                async for ready in load:
                    self.assertEqual(ready.missing, [])
                    self.assertTrue(layers[0][0].numpy()[12].any())
                self.assertEqual((await load.aresult()).leading_blocks, 1)
            self.check(layers, before, [(4, 12)])
        with mock.patch.object(device_tensor, 'npu', device_tensor.Streams()):
            asyncio.run(main())

    def test_parts_of_pages_and_what_cannot_be_copied_are_refused(self):
        layers, before = filled(9)
        layout = DeviceKvLayout(layers)
        cache = self.cache(layout)
        for runs in ([[(1, PAGE)]], [[(0, PAGE - 1)]], [[((BLOCKS - 1) * PAGE, 2 * PAGE)]]):
            for call in (cache.save_paged, cache.load_paged, cache.load_layers):
                with self.assertRaisesRegex(errors.InvalidArgument, 'whole pages'):
                    call(layout, self.keys(cache, 1), runs=runs)
        self.check(layers, before, [])
        with self.assertRaises(errors.InvalidArgument):
            DeviceKvLayout([[numpy.zeros(SHAPE, numpy.float16)]])


if __name__ == '__main__':
    unittest.main()
