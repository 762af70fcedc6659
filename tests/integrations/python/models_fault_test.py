"""Loads of models when daemons are slow, gone, or die in the middle."""
import asyncio
import os
import time
import unittest

import numpy
from cluster import Cluster, until
from model_files import random_bytes, read, safetensors, write

import ems

ROWS = 64
TENSORS = {f'layer.{i:02}': ('U8', (ROWS, 4096), random_bytes(ROWS * 4096, i)) for i in range(64)}  # 16 MiB
SLOW = 512 << 10  # bytes a second and server, so that a load takes longer than the test has to interrupt it


class ModelsFaultTest(unittest.TestCase):
    def setUp(self):
        self.cluster = self.enterContext(Cluster(servers=2, server_flags=['models.file_root={folder}'],
                                                controller_flags=['lease_ms=2000']))
        self.cache = self.enterContext(ems.ModelCache(self.cluster.address))
        write(self.folder('source'), {'model.safetensors': safetensors(TENSORS)})

    def folder(self, name):
        return os.path.join(self.cluster.folder, name)

    def add(self, bytes_per_s_max=SLOW):
        self.cache.add('py/m', self.folder('source'), 'v1', block_bytes=64 << 10, bytes_per_s_max=bytes_per_s_max)

    def test_a_timeout_says_what_is_missing(self):
        self.add()
        begin = time.monotonic()
        with self.assertRaisesRegex(ems.errors.DeadlineExceeded, 'in place'):
            self.cache.load_buffers('py/m', timeout=1, fallback_to_source=False)
        self.assertLess(time.monotonic() - begin, 6)
        self.cache.prefetch('py/m')
        with self.assertRaises(ems.errors.DeadlineExceeded):
            self.cache.wait_prefetched('py/m', timeout=0.2)
        self.cache.cancel('py/m')
        with self.assertRaises(ems.errors.Cancelled):
            self.cache.wait_prefetched('py/m')

    def test_a_server_killed_in_mid_load_costs_no_byte(self):
        self.add(2 << 20)
        seen = {}
        for name, tensor in self.cache.load_tensors('py/m', pool_patience=2, timeout=100):
            if not seen:
                self.cluster.servers[0].kill()
            seen[name] = tensor.tobytes()
        self.assertEqual(seen, {name: content for name, (_, _, content) in TENSORS.items()})

    def test_all_servers_killed_in_mid_load_is_said_without_the_source_and_in_time(self):
        self.add()
        load = self.cache.load_tensors('py/m', fallback_to_source=False, timeout=5)
        begin, seen = time.monotonic(), {}
        with self.assertRaises((ems.errors.DeadlineExceeded, ems.errors.Unavailable)):
            for name, tensor in load:
                if not seen:
                    self.cluster.kill_servers()
                seen[name] = tensor.tobytes()
        self.assertLess(time.monotonic() - begin, 5 + 5)
        for name, content in seen.items():
            self.assertEqual(content, TENSORS[name][2])
        with self.assertRaises((ems.errors.DeadlineExceeded, ems.errors.Unavailable)):
            load.stats()

    def test_the_controller_killed_is_said(self):
        self.add(0)
        self.cluster.controller.kill()
        for call in (lambda: self.cache.list(timeout=1), lambda: self.cache.load_buffers('py/m', timeout=1),
                     lambda: self.cache.safe_open('py/m', timeout=1)):
            with self.assertRaises((ems.errors.Unavailable, ems.errors.DeadlineExceeded)):
                call()

    def test_a_source_that_changed_fails_and_leaves_the_folder_as_it_was(self):
        self.add(0)
        write(self.folder('source'), {'model.safetensors': safetensors({'t': ('U8', (1,), b'1')})})
        write(self.folder('out'), {'model.safetensors': b'before'})
        with self.assertRaises(ems.errors.FailedPrecondition):
            self.cache.load_files('py/m', self.folder('out'), timeout=60)
        self.assertEqual(os.listdir(self.folder('out')), ['model.safetensors'])
        self.assertEqual(read(self.folder('out'), 'model.safetensors'), b'before')

    def test_who_leaves_early_ends_the_load(self):
        self.add()

        class Enough(Exception):
            pass

        def stop(_done, _total):
            raise Enough
        with self.assertRaises(Enough):
            self.cache.load_files('py/m', self.folder('out'), on_progress=stop, fallback_to_source=False)
        self.assertEqual(os.listdir(self.folder('out')), [])
        with self.cache.load_tensors('py/m', fallback_to_source=False) as load:
            name, tensor = next(iter(load))
        self.assertEqual(tensor.tobytes(), TENSORS[name][2])
        with self.assertRaises(ems.errors.Cancelled):
            load.stats()

    def test_cancelling_in_asyncio_ends_the_load(self):
        self.add()
        room = numpy.zeros(len(read(self.folder('source'), 'model.safetensors')), numpy.uint8)

        async def main():
            load = asyncio.create_task(self.cache.aload_buffers(
                'py/m', files={'model.safetensors': room}, fallback_to_source=False))
            await asyncio.to_thread(until, room.any, 20, 'bytes arrive')
            begin = time.monotonic()
            load.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await load
            self.assertLess(time.monotonic() - begin, 5)
            kept = room.copy()

            async def iterate():
                async for _ in self.cache.load_tensors('py/m', names=['layer.63'], fallback_to_source=False):
                    pass
            begin = time.monotonic()
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(iterate(), 0.5)
            self.assertLess(time.monotonic() - begin, 6)
            self.assertTrue(numpy.array_equal(room, kept))  # nothing is written behind the end
        asyncio.run(main())


if __name__ == '__main__':
    unittest.main()
