"""vLLM's KV connector with daemons that stand still or die: prompts are computed, right, and no call of the engine hangs."""
import time
import unittest

import fake_vllm
from fake_vllm import BLOCK, Engine, Request
from harness import Cluster, Stopwatch, until

fake_vllm.install()
TIMEOUT, SLACK = 0.4, 5.0


def prompt(seed, tokens=5 * BLOCK + 3):
    return [(seed * 1000 + i * 31) % 32000 for i in range(tokens)]


class VllmConnectorFaultTest(unittest.TestCase):
    def test_scheduler_never_waits_while_the_daemons_stand_still(self):
        with Cluster(servers=2) as cluster:
            engine = Engine(cluster.address, timeout=TIMEOUT, lookup_wait=0.0002)
            self.addCleanup(engine.close)
            engine.run(Request('a', prompt(1)))
            engine.settle()
            watch = Stopwatch()
            cluster.stand_still()
            try:
                for number in range(10):
                    request = Request(f'r{number}', prompt(100 + number))
                    watch.time(engine.scheduler.get_num_new_matched_tokens, request, 0)
                begin = time.monotonic()
                loaded, ids = engine.run(Request('b', prompt(50)))
                self.assertLess(time.monotonic() - begin, 2 * TIMEOUT + SLACK)
                self.assertEqual(loaded, 0)
                self.assertTrue(engine.is_right(Request('b', prompt(50)), ids))
            finally:
                cluster.go_on()
            watch.check(self)
            until(lambda: engine.matched(Request(f'c{time.monotonic()}', prompt(1))) == 5 * BLOCK, 20, 'the pool answers again')

    def test_worker_waits_for_nothing_but_promised_loads_while_the_daemons_stand_still(self):
        with Cluster(servers=2) as cluster:
            engine, other = (Engine(cluster.address, blocks=128, timeout=TIMEOUT) for _ in 'xy')
            self.addCleanup(engine.close)
            self.addCleanup(other.close)
            engine.run(Request('a', prompt(3)))
            engine.settle()
            watch = Stopwatch()
            start, save = engine.worker.start_load_kv, engine.worker.wait_for_save
            engine.worker.start_load_kv = lambda context: watch.time(start, context)
            engine.worker.wait_for_save = lambda: watch.time(save)
            try:
                for number in range(10):
                    engine.run(Request(f'r{number}', prompt(200 + number)), before_step=cluster.stand_still)
                    cluster.go_on()
                begin = []

                def stand_still():
                    cluster.stand_still()
                    begin.append(time.monotonic())
                loaded, ids = other.run(Request('b', prompt(3)), between=stand_still)
                self.assertLess(time.monotonic() - begin[0], TIMEOUT + SLACK)
                self.assertEqual(loaded, 0)
                self.assertTrue(other.is_right(Request('b', prompt(3)), ids))
            finally:
                cluster.go_on()
            watch.check(self)

    def test_daemon_killed_during_a_save_leaves_whole_blocks_or_none(self):
        with Cluster(servers=1, server_flags=['ssd.capacity_bytes=1GiB', 'ssd.path={folder}/ssd'],
                     controller_flags=['damping_ms=0']) as cluster:
            first, second = (Engine(cluster.address, blocks=128, timeout=2.0, durability='ssd') for _ in 'xy')
            self.addCleanup(first.close)
            self.addCleanup(second.close)
            for seed in range(20):
                _, ids = first.run(Request(f'a{seed}', prompt(300 + seed)))
                first.free += ids
                if seed == 0:
                    first.settle()
                if seed == 10:
                    cluster.kill_servers()
            begin = time.monotonic()
            first.settle()
            self.assertLess(time.monotonic() - begin, 2.0 + SLACK)
            cluster.start_servers()
            until(lambda: second.matched(Request(f'c{time.monotonic()}', prompt(300))) > 0, 30, 'the pool answers again')
            for seed in range(20):
                request = Request(f'b{seed}', prompt(300 + seed))
                _, ids = second.run(request)
                second.free += ids
                self.assertTrue(second.is_right(request, ids))

    def test_daemon_killed_between_exists_and_load_means_computing(self):
        with Cluster(servers=1, controller_flags=['damping_ms=0']) as cluster:
            first, second = Engine(cluster.address, timeout=TIMEOUT), Engine(cluster.address, timeout=TIMEOUT)
            self.addCleanup(first.close)
            self.addCleanup(second.close)
            request = Request('a', prompt(2))
            first.run(request)
            first.settle()
            begin = time.monotonic()
            loaded, ids = second.run(Request('b', prompt(2)), between=cluster.kill_servers)
            self.assertLess(time.monotonic() - begin, 2 * TIMEOUT + SLACK)
            self.assertEqual(loaded, 0)
            self.assertTrue(second.is_right(request, ids))
            cluster.start_servers()

            def is_back():
                second.run(Request(f'c{time.monotonic()}', prompt(3)))
                second.settle()
                second.free += range(64)
                return first.matched(Request(f'd{time.monotonic()}', prompt(3))) == 5 * BLOCK
            until(is_back, 30, 'the pool takes blocks again')

    def test_engine_starts_and_computes_without_a_pool(self):
        engine = Engine('127.0.0.1:1', timeout=TIMEOUT, start_timeout=0.2)
        self.addCleanup(engine.close)
        request = Request('a', prompt(4))
        loaded, ids = engine.run(request)
        self.assertEqual(loaded, 0)
        self.assertTrue(engine.is_right(request, ids))


if __name__ == '__main__':
    unittest.main()
