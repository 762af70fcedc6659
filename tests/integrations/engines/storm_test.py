"""Blocks through the connectors while servers are paused, killed and started again at random: what arrives is right, no thread of
the engine sees an exception, and no call lasts longer than its timeout.

EMS_STORM_BYTES: how much has to arrive, of each connector. EMS_STORM_SEED repeats a run's faults."""
import os
import random
import threading
import time
import unittest

import fake_sglang
import numpy
from harness import Cluster
from lmcache_loop import Loop, key

from ems.lmcache import EmsConnector

fake_sglang.install()
BYTES = int(os.environ.get('EMS_STORM_BYTES', 64 << 20))
SEED = int(os.environ.get('EMS_STORM_SEED', time.time_ns() % 1_000_000))
SIZE, BATCH, NAMES = 64 << 10, 32, 40  # a batch of a name is 2 MiB
TIMEOUT, SLACK = 0.5, 5.0              # seconds; the second of a busy machine
FAULTS = 4                             # at least, of each connector
WHOLE_RUN = 60 + BYTES / 5e6           # seconds


def block(name, at, size=SIZE):
    """Bytes that only this block has, in each word of them."""
    words = numpy.arange(size // 8, dtype=numpy.uint64)
    return (words * numpy.uint64(0x9E3779B97F4A7C15) + numpy.uint64(name * BATCH + at + 1)).view(numpy.uint8)


class Weather:
    """Pauses one server, or kills it and starts it again, every now and then. Use it with `with`."""

    def __init__(self, cluster, seed):
        self._cluster, self._random, self._stop = cluster, random.Random(seed), threading.Event()
        self.paused = self.killed = 0
        self.error = None
        self._thread = threading.Thread(target=self._run, name='weather')

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self._stop.set()
        self._thread.join()

    @property
    def faults(self):
        return self.paused + self.killed

    def _run(self):
        try:
            while not self._stop.wait(self._random.uniform(0.2, 0.8)):
                server = self._random.choice(self._cluster.servers)
                if self._random.random() < 0.7:
                    server.stand_still()
                    self._stop.wait(self._random.uniform(0.1, 1.0))
                    server.go_on()
                    self.paused += 1
                else:
                    server.kill()
                    server.start()
                    server.wait_ready()
                    self.killed += 1
        except BaseException as error:  # pylint: disable=broad-except
            self.error = error


class Tally:
    def __init__(self):
        self.arrived = self.wrong = 0
        self.slowest = 0.0
        self.begin = time.monotonic()

    def time(self, call, *arguments):
        begin = time.monotonic()
        result = call(*arguments)
        self.slowest = max(self.slowest, time.monotonic() - begin)
        return result

    def check(self, flags, name, memory, blocks):
        """memory: bytes of each block that was asked for."""
        for at, (flag, got) in enumerate(zip(flags, memory)):
            if flag:
                self.arrived += got.nbytes
                self.wrong += not numpy.array_equal(got, blocks[name][at])

    def goes_on(self, weather):
        enough = self.arrived >= BYTES and weather.faults >= FAULTS
        return not enough and time.monotonic() - self.begin < WHOLE_RUN


class StormTest(unittest.TestCase):
    def check(self, tally, weather):
        told = f'EMS_STORM_SEED={SEED}: {tally.arrived} bytes, {weather.paused} pauses, {weather.killed} kills, slowest {tally.slowest:.2f} s'
        print(told)
        self.assertIsNone(weather.error, told)
        self.assertEqual(tally.wrong, 0, told)
        self.assertGreaterEqual(tally.arrived, BYTES, told)
        self.assertLess(tally.slowest, 2 * TIMEOUT + SLACK, told)
        self.assertGreaterEqual(weather.faults, FAULTS, told)

    def test_blocks_of_lmcache(self):
        blocks = [[block(name, at) for at in range(BATCH)] for name in range(NAMES)]
        random_names, tally = random.Random(SEED), Tally()
        with Cluster(servers=3, controller_flags=['damping_ms=0']) as cluster:
            connector = EmsConnector(controller=cluster.address, timeout=TIMEOUT)
            loop = Loop(connector)
            self.addCleanup(connector.close)
            self.addCleanup(loop.stop)
            with Weather(cluster, SEED) as weather:
                while tally.goes_on(weather):
                    name = random_names.randrange(NAMES)
                    keys = [key(name * BATCH + at) for at in range(BATCH)]
                    memory = [numpy.zeros(SIZE, numpy.uint8) for _ in keys]
                    flags = tally.time(loop.get, keys, memory)[2]
                    self.assertEqual(len(flags), BATCH)
                    tally.check(flags, name, memory, blocks)
                    if not all(flags):
                        self.assertEqual(len(tally.time(loop.set, keys, blocks[name])[2]), BATCH)
            self.assertEqual((loop.error, loop.doubled), (None, []))
        self.check(tally, weather)

    def test_pages_of_sglang(self):
        pool = fake_sglang.HostPool(BATCH, page_bytes=SIZE // 2)
        blocks = [[block(name, at).reshape(pool.memory[0].shape) for at in range(BATCH)] for name in range(NAMES)]
        random_names, tally = random.Random(SEED), Tally()
        with Cluster(servers=3, controller_flags=['damping_ms=0']) as cluster:
            storage = fake_sglang.backend(cluster.address, pool, extra={'timeout': TIMEOUT})
            self.addCleanup(storage.close)
            with Weather(cluster, SEED) as weather:
                while tally.goes_on(weather):
                    name = random_names.randrange(NAMES)
                    hashes = [f'{name:08x}{at:056x}' for at in range(BATCH)]
                    pool.memory[:] = 0
                    flags = tally.time(storage.batch_get_v1, hashes, pool.indices(range(BATCH)))
                    self.assertEqual(len(flags), BATCH)
                    tally.check(flags, name, pool.memory, blocks)
                    if not all(flags):
                        pool.memory[:] = blocks[name]
                        self.assertEqual(len(tally.time(storage.batch_set_v1, hashes, pool.indices(range(BATCH)))), BATCH)
        self.check(tally, weather)


if __name__ == '__main__':
    unittest.main()
