"""SGLang's HiCache with daemons that stand still or die: its threads get full lists in time, and never an exception."""
import threading
import time
import unittest

import fake_sglang
from harness import Cluster, until

fake_sglang.install()
PAGES, TIMEOUT, SLACK = 16, 0.4, 5.0


def hashes(name):
    return [f'{name:08x}{page:056x}' for page in range(PAGES)]


class SglangFaultTest(unittest.TestCase):
    def test_daemon_that_stands_still_is_misses_in_time_and_then_at_once(self):
        with Cluster(servers=2) as cluster:
            pool = fake_sglang.HostPool(PAGES)
            pool.memory[:] = 7
            storage = fake_sglang.backend(cluster.address, pool, extra={'timeout': TIMEOUT})
            self.addCleanup(storage.close)
            self.assertEqual(storage.batch_set_v1(hashes(1), pool.indices(range(PAGES))), [True] * PAGES)
            cluster.stand_still()
            try:
                begin = time.monotonic()
                for call in range(12):  # two to know, the others wait for nothing but a look a second
                    self.assertEqual(storage.batch_set_v1(hashes(2 + call), pool.indices(range(PAGES))), [False] * PAGES)
                self.assertLess(time.monotonic() - begin, 4 * TIMEOUT + SLACK / 2)
                self.assertEqual(storage.batch_exists(hashes(99)), 0)
            finally:
                cluster.go_on()
            until(lambda: storage.batch_exists(hashes(1)) == PAGES, 20, 'the pool answers again')

    def test_pools_beside_the_kv_pool_wait_for_still_daemons_as_one(self):
        with Cluster(servers=2) as cluster:
            pools = {name: fake_sglang.HostPool(PAGES) for name in ('swa', 'indexer', 'draft')}
            pool = fake_sglang.HostPool(PAGES)
            storage = fake_sglang.backend(cluster.address, fake_sglang.PoolGroup(pool, **pools), extra={'timeout': TIMEOUT})
            self.addCleanup(storage.close)
            transfers = [fake_sglang.PoolTransfer(fake_sglang.PoolName(name), one.indices(range(PAGES)), hashes(1))
                         for name, one in pools.items()]
            self.assertEqual(storage.batch_set_v2(transfers), {transfer.name: [True] * PAGES for transfer in transfers})
            cluster.stand_still()
            try:
                begin = time.monotonic()
                self.assertEqual(storage.batch_get_v2(transfers), {transfer.name: [False] * PAGES for transfer in transfers})
                self.assertEqual(storage.batch_exists_v2(hashes(1), transfers).kv_hit_pages, 0)
                self.assertLess(time.monotonic() - begin, 3 * TIMEOUT + SLACK / 2)
            finally:
                cluster.go_on()

    def test_daemon_killed_in_mid_batch_does_not_end_the_prefetch_thread(self):
        with Cluster(servers=1, controller_flags=['damping_ms=0']) as cluster:
            pool = fake_sglang.HostPool(PAGES)
            pool.memory[:] = 7
            storage = fake_sglang.backend(cluster.address, pool, extra={'timeout': TIMEOUT})
            self.addCleanup(storage.close)
            self.assertEqual(storage.batch_set_v1(hashes(1), pool.indices(range(PAGES))), [True] * PAGES)
            state = {'rounds': 0, 'bad': [], 'slowest': 0.0, 'stop': False}

            def prefetch():
                while not state['stop']:
                    begin = time.monotonic()
                    done = storage.batch_get_v1(hashes(1), pool.indices(range(PAGES)))
                    if len(done) != PAGES or not all(flag in (True, False) for flag in done):
                        state['bad'].append(done)
                    state['slowest'] = max(state['slowest'], time.monotonic() - begin)
                    state['rounds'] += 1
            thread = threading.Thread(target=prefetch)
            thread.start()
            try:
                until(lambda: state['rounds'] > 10, 20, 'it runs')
                cluster.kill_servers()
                seen = state['rounds']
                until(lambda: state['rounds'] > seen + 10, 20, 'it goes on')
                self.assertEqual(storage.batch_exists(hashes(1)), 0)
                cluster.start_servers()
                until(lambda: all(storage.batch_set_v1(hashes(1), pool.indices(range(PAGES)))), 20, 'pages are taken again')
            finally:
                state['stop'] = True
                thread.join()
            self.assertEqual(state['bad'], [])
            self.assertLess(state['slowest'], TIMEOUT + SLACK)

    def test_close_waits_for_a_load_under_way_and_then_nothing_touches_its_pages(self):
        with Cluster(servers=1, server_flags=['shm.share=off']) as cluster:
            pool = fake_sglang.HostPool(PAGES)
            pool.memory[:] = 7
            storage = fake_sglang.backend(cluster.address, pool, extra={'timeout': 2.0})
            self.assertEqual(storage.batch_set_v1(hashes(1), pool.indices(range(PAGES))), [True] * PAGES)
            cluster.stand_still()
            state = {}

            def prefetch():
                state['begun'] = True
                state['done'] = storage.batch_get_v1(hashes(1), pool.indices(range(PAGES)))
            thread = threading.Thread(target=prefetch)
            try:
                begin = time.monotonic()
                thread.start()
                until(lambda: 'begun' in state, 10, 'it runs')
                time.sleep(0.2)  # it is in the call
                storage.close()
                pool.memory[:] = 0xEE
                self.assertGreater(time.monotonic() - begin, 1.5)
                self.assertLess(time.monotonic() - begin, 2.0 + SLACK)
                thread.join(SLACK)
                self.assertEqual(state.get('done'), [False] * PAGES)
            finally:
                cluster.go_on()
                thread.join()
            other = fake_sglang.backend(cluster.address, fake_sglang.HostPool(PAGES))
            self.addCleanup(other.close)
            until(lambda: other.batch_exists(hashes(1)) == PAGES, 20, 'the pool answers again')
            self.assertTrue((pool.memory == 0xEE).all())


if __name__ == '__main__':
    unittest.main()
