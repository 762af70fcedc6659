"""Blocks through the connectors while servers are paused, killed and started again at random: what arrives is right, no thread of
the engine sees an exception, and no call lasts longer than its timeout.

EMS_STORM_BYTES: how much has to arrive, of each connector; with 1 GiB there are 64 faults. EMS_STORM_SEED repeats a run's faults."""
import os
import random
import threading
import time
import unittest
from types import SimpleNamespace

import fake_sglang
import fake_vllm
import numpy
from harness import Cluster
from lmcache_loop import Loop, key

from ems.lmcache import EmsConnector

fake_sglang.install()
fake_vllm.install()

import ems.vllm  # pylint: disable=wrong-import-position

BYTES = int(os.environ.get('EMS_STORM_BYTES', 64 << 20))
SEED = int(os.environ.get('EMS_STORM_SEED', time.time_ns() % 1_000_000))
SIZE, BATCH, NAMES = 64 << 10, 32, 40  # a batch of a name is 2 MiB
TIMEOUT, SLACK = 0.5, 5.0              # seconds; the second of a busy machine
FAR = 'tcp'                            # a server of this host that is paused is read all the same
FAULTS = max(4, BYTES >> 24)           # at least, of each connector: 64 with 1 GiB
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
    def is_enough(self):
        return self.paused + self.killed >= FAULTS and self.paused > 0 and self.killed > 0

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
        self.arrived = self.wrong = 0  # bytes
        self.slowest = 0.0             # seconds that the engine's thread was in one call
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
                self.wrong += numpy.count_nonzero(got != blocks[name][at])

    def goes_on(self, weather):
        enough = self.arrived >= BYTES and weather.is_enough
        return not enough and time.monotonic() - self.begin < WHOLE_RUN


class StormTest(unittest.TestCase):
    def check(self, tally, weather):
        told = (f'EMS_STORM_SEED={SEED} {self._testMethodName}: {tally.arrived} bytes checked, {weather.killed} kills, '
                f'{weather.paused} pauses, {tally.wrong} wrong bytes, longest stall {tally.slowest:.2f} s')
        print(told)
        self.assertIsNone(weather.error, told)
        self.assertEqual(tally.wrong, 0, told)
        self.assertGreaterEqual(tally.arrived, BYTES, told)
        self.assertLess(tally.slowest, 2 * TIMEOUT + SLACK, told)
        self.assertTrue(weather.is_enough, told)

    def test_blocks_of_lmcache(self):
        blocks = [[block(name, at) for at in range(BATCH)] for name in range(NAMES)]
        random_names, tally = random.Random(SEED), Tally()
        with Cluster(servers=3, controller_flags=['damping_ms=0']) as cluster:
            connector = EmsConnector(controller=cluster.address, timeout=TIMEOUT, transport=FAR)
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

    def test_blocks_of_vllms_tier(self):
        memory = numpy.zeros((BATCH, SIZE), numpy.uint8)
        blocks = [[block(name, at) for at in range(BATCH)] for name in range(NAMES)]
        random_names, tally = random.Random(SEED), Tally()
        with Cluster(servers=3, controller_flags=['damping_ms=0']) as cluster:
            tier = ems.vllm.EmsTierManager(fake_vllm.offloading_spec(), memoryview(memory), 'ems', controller=cluster.address,
                                           timeout=TIMEOUT)
            self.addCleanup(tier.shutdown)

            def carried(submit, keys):
                tally.time(submit, fake_vllm.TransferJob(1, keys, numpy.arange(BATCH)))
                tally.time(tier.drain_jobs)
                [result] = tier.get_finished_jobs()
                return keys if result.success else list(result.successful_keys or ())
            with Weather(cluster, SEED) as weather:
                while tally.goes_on(weather):
                    name = random_names.randrange(NAMES)
                    keys = [(name * BATCH + at).to_bytes(32, 'big') + bytes(4) for at in range(BATCH)]
                    answers = [tally.time(tier.lookup, key, None) for key in keys]
                    tally.time(tier.on_schedule_end)
                    moved = []
                    if fake_vllm.LookupResult.HIT in answers:  # of others a load says what is not there
                        memory[:] = 0
                        moved = carried(tier.submit_load, keys)
                        tally.check([key in moved for key in keys], name, memory, blocks)
                    if fake_vllm.LookupResult.MISS in answers or len(moved) < BATCH:
                        memory[:] = blocks[name]
                        carried(tier.submit_store, keys)
        self.check(tally, weather)

    def test_blocks_of_vllms_connector(self):
        random_names, tally = random.Random(SEED), Tally()
        with Cluster(servers=3, controller_flags=['damping_ms=0']) as cluster:
            ranks = Ranks(self, cluster.address, tally)
            with Weather(cluster, SEED) as weather:
                while tally.goes_on(weather):
                    ranks.serve(random_names.randrange(NAMES))
        self.check(tally, weather)


class Ranks:
    """vLLM's scheduler and two tp ranks around the connector. What is computed on a block that did not arrive is wrong, and every
    now and then a rank's part of a block goes, between requests or between look-up and load."""
    LAYERS, BLOCKS, RANKS = ('a', 'b'), 2 * BATCH, (0, 1)

    def __init__(self, test, address, tally):
        self._tally, self._requests, self._random = tally, 0, random.Random(SEED)
        self._blocks = [[[block(name + rank * NAMES, at) for at in range(BATCH)] for name in range(NAMES)] for rank in self.RANKS]
        settings = [fake_vllm.config(address, rank, len(self.RANKS), timeout=TIMEOUT, layout='storm', transport=FAR)
                    for rank in self.RANKS]
        groups = SimpleNamespace(num_blocks=self.BLOCKS, kv_cache_groups=[None],
                                 kv_cache_tensors=[SimpleNamespace(size=self.BLOCKS * SIZE)])
        self._scheduler = ems.vllm.EmsConnector(settings[0], fake_vllm.KVConnectorRole.SCHEDULER, groups)
        self._workers = [ems.vllm.EmsConnector(one, fake_vllm.KVConnectorRole.WORKER, groups) for one in settings]
        for connector in (self._scheduler, *self._workers):
            test.addCleanup(connector.shutdown)
        self._kv = [{layer: numpy.zeros((self.BLOCKS, SIZE // 2), numpy.uint8) for layer in self.LAYERS} for _ in self.RANKS]
        for worker, kv in zip(self._workers, self._kv):
            worker.register_kv_caches(kv)

    def serve(self, name):
        self._requests += 1
        tokens = [name * 1000 + at for at in range(BATCH * fake_vllm.BLOCK + 1)]
        request, ids = fake_vllm.Request(f'r{self._requests}', tokens), list(range(1, BATCH + 2))
        found = None
        while found is None:
            found, _ = self._tally.time(self._scheduler.get_num_new_matched_tokens, request, 0)
        self._scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: (ids,)), found)
        self._lose(request)
        for kv in self._kv:
            for cache in kv.values():
                cache[:] = 0
        errors = self._step(name, found // fake_vllm.BLOCK, scheduled={request.request_id: len(tokens) - found}, new=[
            SimpleNamespace(req_id=request.request_id, block_ids=(ids,), num_computed_tokens=found)])
        if errors:
            begin = ids.index(min(errors))
            self._step(name, begin, cached=[request.request_id], computed=[begin * fake_vllm.BLOCK], more=[None],
                       scheduled={request.request_id: len(tokens) - begin * fake_vllm.BLOCK})
        self._scheduler.request_finished(request, ids)
        self._step(name, BATCH)
        self._lose(request)

    def _step(self, name, begin, new=(), cached=(), computed=(), more=(), scheduled=None):
        metadata = self._scheduler.build_connector_meta(SimpleNamespace(
            scheduled_new_reqs=new, num_scheduled_tokens=scheduled or {}, scheduled_cached_reqs=SimpleNamespace(
                req_ids=cached, num_computed_tokens=computed, new_block_ids=more)))
        errors = [self._load(worker, metadata) for worker in self._workers]
        for rank, failed in enumerate(errors):
            is_there = [at < begin and at + 1 not in failed for at in range(BATCH)]
            if metadata.step.loads.names:
                self._tally.check(is_there, name, self._rows(rank), self._blocks[rank])
            truth = self._blocks[rank][name]
            for at in range(begin, BATCH):
                self._put(rank, at, truth[at] ^ 255 if any(errors) else truth[at])
        for worker in self._workers:
            self._tally.time(worker.wait_for_save)
            worker.clear_connector_metadata()
        self._scheduler.update_connector_output(SimpleNamespace(invalid_block_ids=set().union(*errors)))
        return set().union(*errors)

    def _lose(self, request):
        if self._random.random() < 0.3:
            worker, names = self._random.choice(self._workers)._worker, self._scheduler._scheduler._names.of(request)
            worker._queue.run_at('remove', worker._keys([self._random.choice(names)]), hashed=True)

    def _load(self, worker, metadata):
        worker.bind_connector_metadata(metadata)
        self._tally.time(worker.start_load_kv, None)
        return worker.get_block_ids_with_load_errors()

    def _rows(self, rank):
        return numpy.concatenate([self._kv[rank][layer][1:BATCH + 1] for layer in self.LAYERS], axis=1)

    def _put(self, rank, at, value):
        for layer, part in zip(self.LAYERS, numpy.split(value, 2)):
            self._kv[rank][layer][at + 1] = part


if __name__ == '__main__':
    unittest.main()
