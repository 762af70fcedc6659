#!/usr/bin/python3
"""What a batch of LMCache's shape costs through ems.lmcache: 32 blocks of 256 KiB, submitted and heard of by the eventfd.

Everything in one run, on a cluster of its own: stores and loads of a window of batches beside memcpy of as many bytes, from and
into the same memory, by one thread; and how long submitting takes, also with the servers stopped, beside what the machine takes to
wake a process that reads a pipe. Each loaded byte is compared.
--gate checks the targets of EMS. Needs PYTHONPATH (the package) and EMS_BIN (the daemons); docs/BENCHMARKS.md says how to
read it.
"""
import collections
import ctypes
import gc
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..', 'tests', 'integrations', 'python'))

# pylint: disable=wrong-import-position
import numpy
import script
from cluster import Cluster
from ems.lmcache import EmsConnector

KEYS, BLOCK_BYTES = 32, 256 << 10
WINDOW = 12  # batches: 96 MiB of the engine's, as much of the pool's, and no cache holds both
WARM_UP_WINDOWS = 2
STOPPED_TIMEOUT = 0.3
STEP_SECONDS = 0.002
GATES = (('lmcache_submit_p99_us', '<=', 100, 'timed'), ('lmcache_submit_stopped_p99_us', '<=', 100, 'timed'),
         ('lmcache_load_vs_memcpy', '>=', 0.70, 'timed'), ('lmcache_store_vs_memcpy', '>=', 0.40, 'timed'))


class Engine:
    """Memory in blocks, and the loop that LMCache runs around a connector."""

    def __init__(self, connector):
        self.connector = connector
        shape = (WINDOW, KEYS, BLOCK_BYTES)
        self.source = numpy.random.default_rng(1).integers(0, 256, shape, numpy.uint8)
        self.target, self.copied = numpy.zeros(shape, numpy.uint8), numpy.zeros(shape, numpy.uint8)
        self.source_views = [[memoryview(block) for block in batch] for batch in self.source]
        self.target_views = [[memoryview(block) for block in batch] for batch in self.target]
        self.pairs = [[(into.ctypes.data, out_of.ctypes.data) for into, out_of in zip(*batches)]
                      for batches in zip(self.copied, self.source)]
        self.submits = collections.defaultdict(list)
        self.wakes = []
        # pylint: disable-next=consider-using-with
        self.sleeper = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0)

    def close(self):
        self.sleeper.stdin.close()
        self.sleeper.wait()

    def wake(self):
        """The time in which this machine wakes a thread that sleeps on another core: no submission can be faster."""
        time.sleep(STEP_SECONDS)
        begin = time.perf_counter()
        self.sleeper.stdin.write(b'.')
        self.wakes.append((time.perf_counter() - begin) * 1e6)

    def run(self, call, *arguments):
        """One batch; returns the seconds from submitting it to its completion."""
        time.sleep(STEP_SECONDS)  # as LMCache's loop, which sleeps between batches; it is not counted
        begin = time.perf_counter()
        number = call(*arguments)
        submitted = time.perf_counter()
        self.submits[call.__name__].append((submitted - begin) * 1e6)
        while True:
            self.connector._queue.wait(1)
            for done, ok, error, flags in self.connector.drain_completions():
                if done == number:
                    end = time.perf_counter()
                    if not (ok and all(flags)):
                        raise SystemExit(f'{flags.count(False)} of {len(flags)} blocks failed: {error}')
                    return end - begin

    def window(self, name):
        """Seconds of memcpy, of stores and of loads of all batches."""
        keys = [[f'model@00000000@0@{name:08x}{batch:08x}{block:048x}' for block in range(KEYS)] for batch in range(WINDOW)]
        self.target[:] = 0
        for _ in range(WINDOW):
            self.wake()
        memcpy, store, load = 0, 0, 0
        for pairs in self.pairs:
            time.sleep(STEP_SECONDS)
            begin = time.perf_counter()
            for into, out_of in pairs:
                ctypes.memmove(into, out_of, BLOCK_BYTES)
            memcpy += time.perf_counter() - begin
        for batch in range(WINDOW):
            store += self.run(self.connector.submit_batch_set, keys[batch], self.source_views[batch])
        for batch in range(WINDOW):
            load += self.run(self.connector.submit_batch_get, keys[batch], self.target_views[batch])
        if not (self.target == self.source).all():
            raise SystemExit('wrong bytes')
        for batch in range(WINDOW):
            self.run(self.connector.submit_batch_delete, keys[batch])
        return memcpy, store, load

    def submit_only(self, rounds):
        """Microseconds of submissions whose batches nobody answers."""
        keys = [f'stopped@00000000@0@{block:064x}' for block in range(KEYS)]
        took, late = [], 0
        for number in range(rounds):
            call, views = ((self.connector.submit_batch_get, self.target_views) if number % 2 else
                           (self.connector.submit_batch_set, self.source_views))
            begin = time.perf_counter()
            call(keys, views[number % WINDOW])
            took.append((time.perf_counter() - begin) * 1e6)
            time.sleep(STEP_SECONDS)
            late += sum(any(flags) for _, _, _, flags in self.connector.drain_completions())
        if late:
            raise SystemExit(f'{late} batches had hits while the servers were stopped')
        return took


def measure(quick):
    windows, rounds = (2, 50) if quick else (20, 500)
    moved = WINDOW * KEYS * BLOCK_BYTES
    with Cluster(servers=1, dram='512MiB') as cluster:
        connector = EmsConnector(controller=cluster.address, timeout=5)
        engine = Engine(connector)
        gc.disable()  # as timeit does: a pass over all objects takes milliseconds
        for number in range(WARM_UP_WINDOWS):
            engine.window(number)
        engine.submits.clear()
        engine.wakes.clear()
        taken = [engine.window(WARM_UP_WINDOWS + number) for number in range(windows)]
        submits = engine.submits['submit_batch_set'] + engine.submits['submit_batch_get']
        figures = {
            'memcpy_gb_per_s': moved / statistics.median(memcpy for memcpy, _, _ in taken) / 1e9,
            'store_gb_per_s': moved / statistics.median(store for _, store, _ in taken) / 1e9,
            'load_gb_per_s': moved / statistics.median(load for _, _, load in taken) / 1e9,
            'lmcache_store_vs_memcpy': statistics.median(memcpy / store for memcpy, store, _ in taken),
            'lmcache_load_vs_memcpy': statistics.median(memcpy / load for memcpy, _, load in taken),
            'submits': len(submits),
            'wake_p50_us': script.percentile(engine.wakes, 0.5),
            'wake_p99_us': script.percentile(engine.wakes, 0.99),
            'lmcache_submit_p50_us': script.percentile(submits, 0.5),
            'lmcache_submit_p99_us': script.percentile(submits, 0.99)}
        connector.close()
        stopped = EmsConnector(controller=cluster.address, timeout=STOPPED_TIMEOUT)
        engine.connector = stopped
        cluster.stand_still()
        try:
            took = engine.submit_only(rounds)
        finally:
            cluster.go_on()
        stopped.close()
        engine.close()
        figures['lmcache_submit_stopped_p50_us'] = script.percentile(took, 0.5)
        figures['lmcache_submit_stopped_p99_us'] = script.percentile(took, 0.99)
        gc.enable()
    return figures


if __name__ == '__main__':
    script.run(__doc__, measure, GATES)
