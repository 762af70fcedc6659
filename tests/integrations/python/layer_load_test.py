"""ContextCache.load_layers against real daemons: order, bytes, bad input, who keeps the memory, asyncio, the end of a process."""
import asyncio
import gc
import os
import subprocess
import sys
import unittest
import weakref

import numpy
from cluster import Cluster

import ems

PAGE, LAYERS, BLOCKS = 16, 12, 6


def kv(random=None):
    """Two layer groups: even layers in pages of 16 tokens, odd ones in pages of 8."""
    layers = [[numpy.zeros((10, PAGE, 2, 64) if n % 2 == 0 else (20, PAGE // 2, 1, 32), numpy.float16) for _ in 'kv']
              for n in range(LAYERS)]
    if random is not None:
        for tensor in sum(layers, []):
            tensor[:] = random.standard_normal(tensor.shape)
    return layers


def layout_of(layers):
    return ems.KvLayout(layers, groups=[n % 2 for n in range(LAYERS)])


def by_slot(tensor):
    return tensor.reshape(-1, *tensor.shape[2:])


class LayerLoadTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2).__enter__()
        cls.client = ems.Client(cls.cluster.address, timeout=20)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.cluster.stop()

    def setUp(self):
        """self.mine is saved under self.keys; a load into self.yours is to make them equal at `back`."""
        random = numpy.random.default_rng(7)
        self.mine, self.yours = kv(random), kv()
        self.source, self.target = layout_of(self.mine), layout_of(self.yours)
        self.cache = ems.ContextCache(self.client, model=self.id(), kv_layout=self.source.fingerprint, block_tokens=PAGE,
                                      timeout=10)
        self.keys = self.cache.hash_tokens(range(PAGE * BLOCKS))
        self.out = [random.permutation(160)[:PAGE * BLOCKS] for _ in range(2)]
        self.back = [random.permutation(160)[:PAGE * BLOCKS] for _ in range(2)]
        self.assertEqual(self.cache.save_paged(self.source, self.keys, slot_mapping=self.out).stored, BLOCKS)

    def load(self, **options):
        return self.cache.load_layers(self.target, self.keys, slot_mapping=self.back, **options)

    def is_in_place(self, layer, block):
        """Whether the tokens of `block` at `layer` are those that were saved."""
        tokens = slice(block * PAGE, (block + 1) * PAGE)
        return all((by_slot(there)[self.back[layer % 2][tokens]] == by_slot(here)[self.out[layer % 2][tokens]]).all()
                   for here, there in zip(self.mine[layer], self.yours[layer]))

    def test_layers_come_in_order_with_their_bytes(self):
        load = self.load(layer_read_bytes=1)
        self.assertEqual(load.layers, LAYERS)
        for layer, ready in enumerate(load):
            self.assertEqual(ready, ems.LayerReady(BLOCKS, []))
            self.assertGreater(load.ready_layers, layer)
            self.assertTrue(all(self.is_in_place(layer, block) for block in range(BLOCKS)), layer)
        size = self.source.block_bytes(PAGE, 0) + self.source.block_bytes(PAGE, 1)
        self.assertEqual(load.result().blocks, [size] * BLOCKS)
        self.assertEqual(load.result(timeout=0).leading_blocks, BLOCKS)
        self.assertTrue(load.done)
        self.assertEqual(self.cache.stats()['loaded_blocks'], BLOCKS)
        rest = [numpy.setdiff1d(numpy.arange(160), slots) for slots in self.back]
        for n, layer in enumerate(self.yours):
            for tensor in layer:
                self.assertFalse(by_slot(tensor)[rest[n % 2]].any())

    def test_a_block_that_is_gone_is_missing_at_all_layers(self):
        self.assertTrue(self.client.remove(self.keys[2]))
        load = self.load()
        for layer in (0, LAYERS - 1):
            self.assertEqual(load.wait_layer(layer), ems.LayerReady(2, [2]))
        self.assertIsNone(load.result().blocks[2])
        self.assertEqual(load.result().leading_blocks, 2)
        for block in (0, 1, 3, 4, 5):
            self.assertTrue(all(self.is_in_place(layer, block) for layer in range(LAYERS)))

    def test_layers_that_are_not_there_and_other_nonsense_are_refused(self):
        load = self.load()
        for layer in (-1, LAYERS, 2 ** 62):
            with self.assertRaisesRegex(ems.errors.OutOfRange, f'layer {layer} of {LAYERS}'):
                load.wait_layer(layer)
        for layer in ('0', 1.0, None, 2 ** 70):
            with self.assertRaises(TypeError):
                load.wait_layer(layer)
        for timeout in (-1, float('nan')):
            with self.assertRaises(ValueError):
                load.wait_layer(0, timeout)
            with self.assertRaises(ValueError):
                load.result(timeout)
            with self.assertRaises(ValueError):
                self.load(timeout=timeout)
        self.assertEqual(load.result().leading_blocks, BLOCKS)

        twice = [numpy.concatenate([self.back[0][:-1], self.back[0][:1]]), self.back[1]]
        before = [tensor.copy() for tensor in sum(self.yours, [])]
        for error, where in ((ems.errors.InvalidArgument, {'slot_mapping': twice}),
                             (ems.errors.OutOfRange, {'slot_mapping': [self.back[0] + 160, self.back[1]]}),
                             (ems.errors.OutOfRange, {'slot_mapping': [self.back[0] - 160, self.back[1]]}),
                             (ValueError, {'slot_mapping': self.back[:1]}), (ValueError, {}),
                             (ValueError, {'slot_mapping': [self.back[0], self.back[1][1:]]}),
                             (ValueError, {'slot_mapping': self.back, 'tokens': 0}),
                             (ValueError, {'runs': [[(0, 16)]] * BLOCKS}),
                             (ems.errors.InvalidArgument, {'slot_mapping': self.back, 'layer_read_bytes': -1}),
                             (TypeError, {'slot_mapping': self.back, 'layer_read_bytes': '1'}),
                             (TypeError, {'slot_mapping': [self.back[0].astype(float), self.back[1]]})):
            with self.assertRaises(error):
                self.cache.load_layers(self.target, self.keys, **where)
        other = ems.ContextCache(self.client, model='other', kv_layout='other', block_tokens=PAGE)
        with self.assertRaises(ems.errors.InvalidArgument):
            other.load_layers(self.target, self.keys, slot_mapping=self.back)
        for tensor, was in zip(sum(self.yours, []), before):
            self.assertTrue((tensor == was).all())

    def test_a_load_of_nothing_is_over_at_once(self):
        load = self.cache.load_layers(self.target, [], runs=[])
        self.assertEqual(load.wait_layer(LAYERS - 1, 5), ems.LayerReady(0, []))
        self.assertEqual(load.result(), ems.LoadResult(0, []))

    def test_cancelling_what_is_over_changes_nothing(self):
        with self.load() as load:
            whole = load.result()
        load.cancel()
        self.assertEqual(load.result(), whole)
        self.assertEqual(load.wait_layer(LAYERS - 1), ems.LayerReady(BLOCKS, []))

    def test_tensors_are_kept_until_the_load_is_gone(self):
        load = self.load()
        tensor = weakref.ref(self.yours[-1][-1])
        self.yours = self.target = None
        gc.collect()
        self.assertEqual(load.result().leading_blocks, BLOCKS)
        self.assertIsNotNone(tensor())
        del load
        gc.collect()
        self.assertIsNone(tensor())

    def test_with_asyncio(self):
        async def main():
            async with self.load() as load:
                layers = [ready async for ready in load]
                self.assertEqual(layers, [ems.LayerReady(BLOCKS, [])] * LAYERS)
                with self.assertRaises(ems.errors.OutOfRange):
                    await load.await_layer(LAYERS)
                return (await load.aresult()).leading_blocks
        self.assertEqual(asyncio.run(main()), BLOCKS)
        self.assertTrue(all(self.is_in_place(layer, block) for layer in range(LAYERS) for block in range(BLOCKS)))

    def test_a_load_outlives_its_client_and_cache(self):
        client = ems.Client(self.cluster.address)
        cache = ems.ContextCache(client, model=self.id(), kv_layout=self.source.fingerprint, block_tokens=PAGE)
        load = cache.load_layers(self.target, self.keys, slot_mapping=self.back)
        client.close()
        del client, cache
        self.assertEqual(load.result(10).leading_blocks, BLOCKS)

    def test_processes_end_and_fork_while_loads_are_under_way(self):
        script = ('import ems, numpy, os, sys\n'
                  'client = ems.Client(sys.argv[1], transport="tcp")\n'
                  'layout = ems.KvLayout([[numpy.ones((64, 16, 8, 128), numpy.float16)] * 1 for _ in range(40)])\n'
                  'cache = ems.ContextCache(client, model="end", kv_layout=layout.fingerprint, block_tokens=16)\n'
                  'keys = cache.hash_tokens(range(16 * 64))\n'
                  'assert cache.save_paged(layout, keys, slot_mapping=range(16 * 64), timeout=20).blocks == [None] * 64\n'
                  'load = cache.load_layers(layout, keys, slot_mapping=range(16 * 64), timeout=20)\n'
                  'load.wait_layer(0)\n'
                  'child = os.fork()\n'
                  'if child == 0:\n'
                  '    try: load.wait_layer(1)\n'
                  '    except ems.errors.FailedPrecondition: sys.exit(0)\n'
                  '    sys.exit(1)\n'
                  'sys.exit(os.waitpid(child, 0)[1])\n')   # with the load, wherever it is
        for _ in range(3):
            run = subprocess.run([sys.executable, '-c', script, self.cluster.address], env=os.environ, capture_output=True,
                                 text=True, timeout=60, check=False)
            self.assertEqual((run.returncode, run.stderr), (0, ''))


if __name__ == '__main__':
    unittest.main()
