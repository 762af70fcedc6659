"""vLLM's own tiering manager over EMS with random requests, evictions in both tiers and resets: what arrives is right, and all ends.

Run by vllm_host_test.py, each release in a process of its own; the folder of its sources is EMS_HOST_FOLDER. EMS_HOST_SEED repeats
a run.
"""
import os
import random
import time
import unittest

import vllm_host_cases as cases
from harness import Cluster, filled, until
from vllm_host_cases import SIZE, host, key, said

from ems.engine_queue import hasher_of

SEED = int(os.environ.get('EMS_HOST_SEED', time.time_ns() % 1_000_000))
ROUNDS, KEYS, LOOKS_MAX = 120, 60, 2000


class Offloading(cases.Engine):
    """What vLLM's offloading scheduler does for one request at a time, in a CPU tier of 24 blocks."""

    def __init__(self, test, name):
        super().__init__(test, name, blocks=24)
        self.loaded = 0
        self._numbers = 0

    def served(self, numbers):
        """Looks up all blocks in each step until all are answered; loads what is there, and stores the rest. Returns the wrong ones."""
        self._numbers += 1
        context = self.request(f'{self.name}-{self._numbers}')
        for _ in range(LOOKS_MAX):
            answers = [said(self.manager.lookup(key(number), context)) for number in numbers]
            self.step_ends()
            if not set(answers) - {'HIT', 'MISS'}:
                break
            self.tier._queue.wait(0.01)
        else:
            raise AssertionError(f'blocks that are never answered: {answers}, EMS_HOST_SEED={SEED}')
        there = [number for number, answer in zip(numbers, answers) if answer == 'HIT']
        self.loaded += len(there)
        wrong = [number for number in there if self.read(context, number) != filled(key(number).hex(), SIZE)]
        self._store(context, [key(number) for number in numbers if number not in there])
        if hasattr(self.manager, 'on_request_finished'):
            self.manager.on_request_finished(context)
        return wrong

    def _store(self, context, keys):
        output = self.manager.prepare_store(keys, context) if keys else None
        if output is None or not output.keys_to_store:
            return
        for one, block in zip(output.keys_to_store, output.store_spec.block_ids):
            self.region.mmap_obj[int(block) * SIZE:(int(block) + 1) * SIZE] = bytes(filled(one.hex(), SIZE))
        self.manager.complete_store(list(output.keys_to_store), context)
        if random.random() < 0.5:  # else it runs beside the next request
            until(lambda: self.step_ends() or not self.jobs(), 20, 'the pool has them')


@unittest.skipUnless(host.has('vllm.v1.kv_offload.tiering.manager'), 'a vLLM without tiers')
class TierCrowdCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2, dram='128MiB')
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def test_many_requests_with_evictions_and_resets(self):
        chosen = random.Random(SEED)
        random.seed(SEED)
        engines = [Offloading(self, name) for name in 'ab']
        own = hasher_of(engines[0].tier.domain).own_key
        for _ in range(ROUNDS):
            engine = chosen.choice(engines)
            first = chosen.randrange(KEYS)
            numbers = [(first + at) % KEYS for at in range(chosen.randrange(1, 12))]
            if chosen.random() < 0.3:
                lost = own(key(chosen.choice(numbers)))
                engine.tier._queue.client.remove(lost)
                if chosen.random() < 0.3:
                    engine.tier._queue.client.put(lost, b'of another size', overwrite=True)  # the other engine may store it just now
            self.assertEqual(engine.served(numbers), [], f'EMS_HOST_SEED={SEED}')
            if chosen.random() < 0.1 and hasattr(engine.manager, 'reset_cache'):
                engine.manager.reset_cache()
        for engine in engines:
            self.assertGreater(engine.loaded, 0)
            until(lambda engine=engine: engine.step_ends() or not engine.jobs(), 20, 'all jobs are over')


if __name__ == '__main__':
    print(f'EMS_HOST_SEED={SEED}')
    unittest.main()
