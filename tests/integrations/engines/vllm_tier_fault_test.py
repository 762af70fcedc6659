"""vLLM's secondary tier with daemons that stand still or die: its scheduler thread never waits, and jobs end as failures."""
import time
import unittest

import fake_vllm
from harness import Cluster, Stopwatch, until

fake_vllm.install()

# pylint: disable=wrong-import-position
from vllm_tier_test import Tier, key

TIMEOUT, SLACK = 0.4, 5.0


class VllmTierFaultTest(unittest.TestCase):
    def test_scheduler_thread_never_waits_while_the_daemons_stand_still(self):
        with Cluster(servers=2) as cluster:
            tier = Tier(cluster.address, timeout=TIMEOUT)
            self.addCleanup(tier.manager.shutdown)
            self.assertTrue(tier.store([key(1)], [0]))
            watch, jobs = Stopwatch(), []
            cluster.stand_still()
            try:
                begin = time.monotonic()
                for i in range(10):
                    keys = [key(1000 + i * 32 + block) for block in range(32)]
                    jobs.append(watch.time(tier.job, tier.manager.submit_store, keys, range(32)))
                    jobs.append(watch.time(tier.job, tier.manager.submit_load, keys, range(32)))
                    watch.time(tier.manager.lookup, keys[0], None)
                self.assertEqual(tier.wait(*jobs), [False] * len(jobs))
                self.assertFalse(tier.lookup(key(5)))
                for _ in range(5):
                    watch.time(tier.manager.get_finished)
                self.assertLess(time.monotonic() - begin, TIMEOUT + SLACK)
            finally:
                cluster.go_on()
            watch.check(self)
            until(lambda: tier.load([key(1)], [1]), 20, 'the pool answers again')

    def test_daemon_killed_in_mid_batch_fails_jobs_and_goes_on(self):
        with Cluster(servers=1, controller_flags=['damping_ms=0']) as cluster:
            tier = Tier(cluster.address, timeout=TIMEOUT)
            self.addCleanup(tier.manager.shutdown)
            jobs = []
            for i in range(20):
                keys = [key(i * 32 + block) for block in range(32)]
                jobs.append(tier.job(tier.manager.submit_store, keys, range(32)))
                if i == 5:
                    cluster.kill_servers()
            begin = time.monotonic()
            self.assertIn(False, tier.wait(*jobs))
            self.assertLess(time.monotonic() - begin, TIMEOUT + SLACK)
            self.assertFalse(tier.lookup(key(1)))
            cluster.start_servers()
            until(lambda: tier.store([key(5000)], [0]), 20, 'the pool takes blocks again')


if __name__ == '__main__':
    unittest.main()
