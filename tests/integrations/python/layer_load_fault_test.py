"""ContextCache.load_layers while servers hang or die: each wait ends in time, and no wrong byte counts as there."""
import threading
import time
import unittest

import numpy
from cluster import Cluster

import ems

PAGE, LAYERS, BLOCKS = 16, 64, 48
TIMEOUT, SLACK = 1.0, 0.1


def kv():
    return [[numpy.zeros((BLOCKS, PAGE, 4, 128), numpy.float16) for _ in 'kv'] for _ in range(LAYERS)]


class LayerLoadFaultTest(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(servers=2, dram='512MiB').__enter__()
        self.addCleanup(self.cluster.stop)
        # Not in place: what a dead server has shared can still be read there.
        self.client = ems.Client(self.cluster.address, transport='tcp', async_threads=1, timeout=20)
        self.addCleanup(self.client.close)
        self.mine, self.yours = kv(), kv()
        random = numpy.random.default_rng(3)
        for tensor in sum(self.mine, []):
            tensor[:] = random.integers(1, 1000, tensor.shape)
        self.layout, self.target = ems.KvLayout(self.mine), ems.KvLayout(self.yours)
        self.cache = ems.ContextCache(self.client, model='fault', kv_layout=self.layout.fingerprint, block_tokens=PAGE,
                                      timeout=20)
        self.keys = self.cache.hash_tokens(range(PAGE * BLOCKS))
        saved = self.cache.save_paged(self.layout, self.keys, slot_mapping=range(PAGE * BLOCKS))
        self.assertEqual(saved.blocks, [None] * BLOCKS)

    def load(self, timeout=TIMEOUT):
        return self.cache.load_layers(self.target, self.keys, slot_mapping=range(PAGE * BLOCKS), timeout=timeout,
                                      layer_read_bytes=1)

    def is_in_place(self, layer, block):
        return all((here[block] == there[block]).all() for here, there in zip(self.mine[layer], self.yours[layer]))

    def test_a_wait_that_is_over_leaves_the_load_alone(self):
        self.cluster.servers[0].stand_still()
        load = self.load(timeout=20)
        begin = time.monotonic()
        with self.assertRaisesRegex(ems.errors.DeadlineExceeded, f'of {LAYERS}'):
            load.wait_layer(LAYERS - 1, 0.1)
        with self.assertRaises(ems.errors.DeadlineExceeded):
            load.result(timeout=0.1)
        self.assertLess(time.monotonic() - begin, 0.2 + SLACK)
        self.assertFalse(load.done)
        self.cluster.servers[0].go_on()
        self.assertEqual(load.wait_layer(LAYERS - 1), ems.LayerReady(BLOCKS, []))
        self.assertTrue(all(self.is_in_place(LAYERS - 1, block) for block in range(BLOCKS)))

    def test_servers_that_hang_are_codes_at_the_deadline(self):
        self.cluster.stand_still()
        begin = time.monotonic()
        load = self.load()
        ready = load.wait_layer(0)
        result = load.result()
        self.assertLess(time.monotonic() - begin, TIMEOUT + SLACK)
        self.assertEqual(ready, ems.LayerReady(0, list(range(BLOCKS))))
        self.assertEqual(result.leading_blocks, 0)
        for block in result.blocks:
            self.assertIn(block.code, ('DEADLINE_EXCEEDED', 'UNAVAILABLE'))
        self.cluster.go_on()

    def mid_load(self):
        """A load of which a layer has arrived, and which cannot go on: both servers stand still."""
        for _ in range(50):
            load = self.load()
            began = time.monotonic()
            load.wait_layer(0)
            for server in self.cluster.servers:
                server.stand_still()
            if load.ready_layers < LAYERS - 4:
                return load, began
            for server in self.cluster.servers:
                server.go_on()
            load.result()
            for tensor in sum(self.yours, []):
                tensor[:] = 0
        raise AssertionError('50 loads were over before their servers could be stopped')

    def test_servers_killed_in_mid_load(self):
        load, began = self.mid_load()
        self.cluster.kill_servers()
        last = load.wait_layer(LAYERS - 1)
        result = load.result()
        self.assertLess(time.monotonic() - began, TIMEOUT + SLACK)
        self.assertEqual(last.missing, [i for i, block in enumerate(result.blocks) if not isinstance(block, int)])
        self.assertTrue(last.missing)
        before = set()
        for layer in range(LAYERS):
            missing = set(load.wait_layer(layer, 0).missing)
            self.assertLessEqual(before, missing)
            before = missing
            for block in set(range(BLOCKS)) - missing:
                self.assertTrue(self.is_in_place(layer, block), (layer, block))
        self.assertEqual(load.wait_layer(0).missing, [])   # it had arrived

    def test_cancel_in_mid_load_and_waits_behind_it(self):
        load, began = self.mid_load()
        load.cancel()   # behind the read on its way, which ends at the deadline
        self.assertLess(time.monotonic() - began, TIMEOUT + SLACK)
        self.assertTrue(load.done)
        for server in self.cluster.servers:
            server.go_on()
        before = [tensor.copy() for tensor in sum(self.yours, [])]
        begin = time.monotonic()
        last = load.wait_layer(LAYERS - 1)
        self.assertLess(time.monotonic() - begin, SLACK)
        self.assertTrue(last.missing)
        for block in load.result().blocks:
            self.assertTrue(block is None or isinstance(block, (int, ems.errors.Error)))
        # Another load, of other tensors, is served; these are left alone.
        other = kv()
        again = self.cache.load_layers(ems.KvLayout(other), self.keys, slot_mapping=range(PAGE * BLOCKS), timeout=20)
        self.assertEqual(again.result().leading_blocks, BLOCKS)
        for tensor, was in zip(sum(self.yours, []), before):
            self.assertTrue((tensor == was).all())

    def test_a_load_that_waits_for_a_thread_is_cancelled_at_once_and_ends_in_time(self):
        for server in self.cluster.servers:
            server.stand_still()
        running = self.load(timeout=1.5)   # takes the only thread of this client
        queued, late = self.load(timeout=20), self.load(timeout=0.3)
        begin = time.monotonic()
        queued.cancel()
        self.assertEqual(queued.wait_layer(0), ems.LayerReady(0, list(range(BLOCKS))))
        self.assertEqual({type(block) for block in queued.result().blocks}, {ems.errors.Cancelled})
        self.assertLess(time.monotonic() - begin, SLACK)
        self.assertEqual(late.wait_layer(0).leading_blocks, 0)
        self.assertEqual({type(block) for block in late.result().blocks}, {ems.errors.DeadlineExceeded})
        self.assertLess(time.monotonic() - begin, 0.3 + SLACK)
        self.assertFalse(running.done)
        running.cancel()

    def test_a_load_that_is_dropped_ends_before_its_tensors(self):
        load, began = self.mid_load()
        kept, self.yours, self.target = self.yours, None, None
        del load
        self.assertLess(time.monotonic() - began, TIMEOUT + SLACK)
        before = [tensor.copy() for tensor in sum(kept, [])]
        for server in self.cluster.servers:
            server.go_on()
        self.assertEqual(self.cache.load(self.keys[:1], [bytearray(self.layout.block_bytes(PAGE))]).leading_blocks, 1)
        for tensor, was in zip(sum(kept, []), before):
            self.assertTrue((tensor == was).all())

    def test_other_threads_run_while_a_layer_is_waited_for(self):
        for server in self.cluster.servers:
            server.stand_still()
        counted, over = [0], threading.Event()

        def count():
            while not over.is_set():
                counted[0] += 1
        thread = threading.Thread(target=count)
        load = self.load()
        thread.start()
        try:
            before = counted[0]
            load.wait_layer(0)
            self.assertGreater(counted[0] - before, 1000)
        finally:
            over.set()
            thread.join()


if __name__ == '__main__':
    unittest.main()
