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
