"""ContextCache's paged calls with KV in the memory of a device: in order with what the engine gives to it, and every byte as by address."""
import asyncio
import threading
import unittest
from unittest import mock

import device_tensor
import numpy
from cluster import Cluster, until
from device_tensor import DeviceTensor, HostTensor

import ems
from ems import DeviceKvLayout, SaveResult, errors

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

    def test_awaited_calls_come_behind_the_stream_of_who_awaits_and_are_in_place_behind_it(self):
        with mock.patch.object(device_tensor, 'npu', device_tensor.Streams()) as streams:
            layers, before = filled(10)
            layout = DeviceKvLayout(layers)
            cache = self.cache(layout)
            computed, read = HostTensor(numpy.full(SHAPE[1:], 9, numpy.uint16)), []
            engine = streams.Stream()  # not the one of the threads that asyncio's calls run on

            async def main():
                engine.give(lambda: layers[0][1][3].copy_(computed))
                self.assertEqual((await cache.asave_paged(layout, self.keys(cache, 1), slot_mapping=slots(3))).stored, 1)
                engine.give(lambda: read.append(layers[0][1].numpy()[8]))
                loaded = await cache.aload_paged(layout, self.keys(cache, 1), slot_mapping=slots(8))
                self.assertEqual(loaded.leading_blocks, 1)
                before[0][1][3] = 9
                self.check(layers, before, [(3, 8)])
                self.assertTrue((read[0] == before[0][1][8]).all())
            with streams.stream(engine):
                asyncio.run(main())

    def test_nothing_is_written_behind_the_end_of_a_load_and_nothing_said_to_be_there_that_is_not(self):
        with mock.patch.object(device_tensor, 'npu', device_tensor.Streams()) as streams:
            layers, before = filled(11)
            layout = DeviceKvLayout(layers)
            cache = self.cache(layout)
            keys = self.keys(cache, 2)
            cache.save_paged(layout, keys, slot_mapping=slots(0, 1))
            with cache.load_layers(layout, keys, slot_mapping=slots(8, 9)) as load:
                until(lambda: load._native.done, 5, 'all is in host memory')

                def begin_a_layer():
                    with streams.stream(streams.Stream()):
                        load.wait_layer(0)
                other = threading.Thread(target=begin_a_layer)
                other.start()
                other.join()
            for tensor in layers[0]:  # the engine computes what it did not wait for
                streams.engines.give(lambda tensor=tensor: tensor[8].copy_(HostTensor(numpy.full(SHAPE[1:], 7, numpy.uint16))))
            self.assertEqual(load.wait_layer(0).missing, [])
            self.assertEqual(load.wait_layer(1).missing, [0, 1])
            result = load.result()
            self.assertEqual(result.leading_blocks, 0)
            self.assertIsInstance(result.blocks[1], errors.Cancelled)
            streams.engines.synchronize()
            layout._copies.synchronize()
            for tensor, was in zip(layers[0], before[0]):
                self.assertTrue((tensor.numpy()[8] == 7).all())
                was[8] = 7
            self.check(layers, before, [(1, 9)], up_to=1)

            async def cancelled():
                async with cache.load_layers(layout, keys, slot_mapping=slots(10, 11)) as load:
                    self.assertEqual(load.wait_layer(0).missing, [])
                self.assertTrue((layers[0][0].numpy()[10] == before[0][0][0]).all(), 'nobody has to wait any more')
            asyncio.run(cancelled())

    def test_a_block_that_misses_at_a_later_layer_is_in_place_in_those_before(self):
        layers, before = filled(12)
        layout = DeviceKvLayout(layers)
        cache = self.cache(layout)
        keys = self.keys(cache, 2)
        cache.save_paged(layout, keys, slot_mapping=slots(0, 1))
        with cache.load_layers(layout, keys, slot_mapping=slots(8, 9)) as load:
            until(lambda: load._native.done, 5, 'all is in host memory')
            native = load._native
            load._native = mock.Mock(layers=LAYERS, wait_layer=lambda layer, _: (2, []) if layer < 1 else (1, [1]), done=True,
                                     result=native.result)
            self.assertEqual(load.wait_layer(2).missing, [1])
            self.assertEqual(load.wait_layer(0).missing, [])
        self.check(layers[1:], before[1:], [(0, 8)])
        self.check(layers[:1], before[:1], [(0, 8), (1, 9)])

    def test_layers_that_are_said_to_be_done_are_copied(self):
        layers, before = filled(13)
        layout = DeviceKvLayout(layers)
        cache = self.cache(layout)
        cache.save_paged(layout, self.keys(cache, 1), slot_mapping=slots(0))
        for name, said in (('ready_layers', LAYERS), ('done', True)):
            load = cache.load_layers(layout, self.keys(cache, 1), slot_mapping=slots(8))
            until(lambda load=load, name=name, said=said: getattr(load, name) == said, 5, name)
            self.check(layers, before, [(0, 8)])
            for layer, was in zip(layers, before):
                for tensor, old in zip(layer, was):
                    tensor[8].copy_(HostTensor(old[8]))

    def test_a_load_does_not_wait_for_the_device_while_there_is_host_memory(self):
        with mock.patch.object(device_tensor, 'npu', device_tensor.Streams()) as streams:
            layers, before = filled(14)
            layout = DeviceKvLayout(layers)
            cache = self.cache(layout)
            cache.save_paged(layout, self.keys(cache, 1), slot_mapping=slots(0))
            ran = []
            streams.engines.give(lambda: ran.append(1))
            for page in (8, 9):
                load = cache.load_layers(layout, self.keys(cache, 1), slot_mapping=slots(page))
                self.assertEqual(load.result().leading_blocks, 1)
            self.assertEqual(ran, [])
            streams.engines.synchronize()
            self.check(layers, before, [(0, 8), (0, 9)])

    def test_a_call_that_finds_less_host_memory_than_there_is_goes_in_more_turns(self):
        layers, before = filled(15)
        layout = DeviceKvLayout(layers, staging_bytes=3 * 2 * LAYERS * PAGE_BYTES)
        cache = self.cache(layout)
        keys = self.keys(cache, 6)
        answers, held = [], []

        def answer(*args):  # a turn is over: another thread takes two of the three pages
            answers.append(args)
            if len(answers) == 2:
                held.append(cache.load_layers(layout, keys[:2], slot_mapping=slots(14, 15)))
            return SaveResult(*args)
        with mock.patch('ems.device_layout.SaveResult', answer):
            self.assertEqual(cache.save_paged(layout, keys, slot_mapping=slots(*range(6))).stored, 6)
        self.assertEqual(len(answers), 5)
        self.assertEqual(cache.load_paged(layout, keys, slot_mapping=slots(*range(6, 12))).leading_blocks, 6)
        held[0].cancel()
        self.check([[layer[0][:14], layer[1][:14]] for layer in layers], [[old[:14] for old in was] for was in before],
                   [(i, 6 + i) for i in range(6)])

    def test_ranks_that_share_a_save_store_all_of_it_whatever_their_host_memory(self):
        layers, before = filled(16)
        layout = DeviceKvLayout(layers)
        caches = [ems.ContextCache(self.client, model=self.id(), kv_layout=layout.fingerprint, block_tokens=PAGE, tp_rank=rank, tp_size=2,
                                   shared_by_tp=True) for rank in range(2)]
        keys = self.keys(caches[0], 7)
        for cache, room in zip(caches, (3, 16)):
            layout = DeviceKvLayout(layers, staging_bytes=room * 2 * LAYERS * PAGE_BYTES)
            cache.save_paged(layout, keys, slot_mapping=slots(*range(7)))
        self.assertEqual(caches[0].load_paged(layout, keys, slot_mapping=slots(*range(8, 15))).leading_blocks, 7)
        self.check(layers, before, [(i, 8 + i) for i in range(7)])

    def test_a_page_is_written_once(self):
        layers, before = filled(17)
        layout = DeviceKvLayout(layers)
        cache = self.cache(layout)
        cache.save_paged(layout, self.keys(cache, 2), slot_mapping=slots(0, 1))
        for call in (cache.load_paged, cache.load_layers):
            with self.assertRaisesRegex(errors.InvalidArgument, 'written already'):
                call(layout, self.keys(cache, 2), slot_mapping=slots(8, 8))
        self.check(layers, before, [])

    def test_host_memory_and_several_devices_are_refused(self):
        array = numpy.zeros(SHAPE, numpy.uint16)
        for layers, why in (([[HostTensor(array)]], 'KvLayout'), ([], 'no tensors'), ([[]], 'no tensors'),
                            ([[DeviceTensor(SHAPE), DeviceTensor(SHAPE, device='npu:1')]], 'several devices')):
            with self.assertRaisesRegex(errors.InvalidArgument, why):
                DeviceKvLayout(layers)

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
