"""LMCache's native plug-in with daemons that stand still, die, or are not there yet."""
import os
import time
import unittest

from harness import Cluster, Stopwatch, filled, until
from lmcache_loop import Loop, key

from ems.lmcache import EmsConnector

SIZE = 64 << 10
TIMEOUT = 0.5
SLACK = 5.0  # of a busy machine


class LmcacheFaultTest(unittest.TestCase):
    def connect(self, cluster, **params):
        connector = EmsConnector(controller=cluster.address, timeout=TIMEOUT, **params)
        loop = Loop(connector)
        self.addCleanup(connector.close)
        self.addCleanup(loop.stop)
        return loop

    def test_submitting_takes_no_millisecond_while_the_daemons_stand_still(self):
        with Cluster(servers=2) as cluster:
            loop = self.connect(cluster)
            keys = [key(i) for i in range(32)]
            values = [filled(k, SIZE) for k in keys]
            self.assertEqual(loop.set(keys, values)[2], [True] * 32)
            absent = [key(100 + i) for i in range(32)]
            watch, numbers = Stopwatch(), []
            cluster.stand_still()
            try:
                for _ in range(10):
                    buffers = [bytearray(SIZE) for _ in absent]
                    numbers.append(watch.time(loop.submit, loop.connector.submit_batch_get, absent, buffers))
                    numbers.append(watch.time(loop.submit, loop.connector.submit_batch_set, absent, values))
                    numbers.append(watch.time(loop.submit, loop.connector.submit_batch_exists, absent))
                begin = time.monotonic()
                for number in numbers:
                    self.assertEqual(loop.wait(number)[2], [False] * 32)
                self.assertLess(time.monotonic() - begin, TIMEOUT + SLACK)
            finally:
                cluster.go_on()
            watch.check(self)
            self.assertIsNone(loop.error)
            until(lambda: loop.exists(keys)[2] == [True] * 32, 20, 'the pool answers again')

    def test_99_of_100_submissions_take_no_tenth_of_a_millisecond_while_the_daemons_stand_still(self):
        with Cluster(servers=2) as cluster:
            loop = self.connect(cluster, waiting_max=64)
            keys = [key(i) for i in range(32)]
            values = [memoryview(filled(k, SIZE)) for k in keys]
            self.assertEqual(loop.set(keys, values)[2], [True] * 32)
            targets, numbers, took = [memoryview(bytearray(SIZE)) for _ in keys], [], []
            cluster.stand_still()
            try:
                for number in range(300):  # more than may wait
                    call, memory = ((loop.connector.submit_batch_get, [targets]), (loop.connector.submit_batch_set, [values]),
                                    (loop.connector.submit_batch_exists, []))[number % 3]
                    begin = time.thread_time()  # of this thread's own: others have the cores, too
                    numbers.append(call(keys, *memory))
                    took.append(time.thread_time() - begin)
                begin = time.monotonic()
                self.assertEqual({len(loop.wait(number)[2]) for number in numbers}, {32})
                self.assertLess(time.monotonic() - begin, TIMEOUT + SLACK)
            finally:
                cluster.go_on()
            self.assertLess(sorted(took)[297], 0.0001)
            self.assertEqual((loop.error, loop.doubled), (None, []))

    def test_daemon_killed_in_mid_batch_is_misses_and_no_stuck_thread(self):
        with Cluster(servers=1, controller_flags=['damping_ms=0']) as cluster:
            loop = self.connect(cluster)
            numbers = {}
            for batch in range(40):
                keys = [key(batch * 16 + i) for i in range(16)]
                numbers[loop.submit(loop.connector.submit_batch_set, keys, [filled(k, SIZE) for k in keys])] = keys
                if batch == 5:
                    loop.wait(next(iter(numbers)))
                    cluster.kill_servers()
            begin = time.monotonic()
            stored = [k for number, keys in numbers.items() for k, flag in zip(keys, loop.wait(number)[2]) if flag]
            self.assertLess(time.monotonic() - begin, TIMEOUT + SLACK)
            self.assertLess(len(stored), 40 * 16, 'nothing was under way when it died')
            self.assertIsNone(loop.error)
            # What failed, or was half-written, is not visible; what is there is whole.
            cluster.start_servers()
            until(lambda: loop.set([key(10_000)], [filled('x', SIZE)])[0], 20, 'the pool takes blocks again')
            for number, keys in numbers.items():
                buffers = [bytearray(SIZE) for _ in keys]
                for k, buffer, flag in zip(keys, buffers, loop.get(keys, buffers)[2]):
                    self.assertTrue(not flag or buffer == filled(k, SIZE))

    def test_failure_is_never_told_as_success(self):
        with Cluster(servers=1) as cluster:
            loop = self.connect(cluster)
            cluster.kill_servers()
            for call, memory in ((loop.connector.submit_batch_set, [filled('x', SIZE)]),
                                 (loop.connector.submit_batch_get, [bytearray(SIZE)])):
                ok, error, flags = loop.wait(loop.submit(call, [key(1)], memory))
                self.assertEqual((ok, flags), (False, [False]))
                self.assertTrue(error)
            self.assertEqual(loop.exists([key(1)])[::2], (False, [False]))

    def test_nothing_touches_a_buffer_after_its_completion(self):
        with Cluster(servers=1, server_flags=['shm.share=off']) as cluster:
            loop = self.connect(cluster)
            keys = [key(i) for i in range(32)]
            self.assertEqual(loop.set(keys, [filled(k, SIZE) for k in keys])[2], [True] * 32)
            cluster.stand_still()
            try:
                buffers = [bytearray(SIZE) for _ in keys]
                number = loop.submit(loop.connector.submit_batch_get, keys, buffers)
                self.assertEqual(loop.wait(number)[2], [False] * 32)
                for buffer in buffers:
                    buffer[:] = b'\xee' * SIZE
            finally:
                cluster.go_on()
            # The answers come now, to nobody.
            until(lambda: loop.get(keys, [bytearray(SIZE) for _ in keys])[2] == [True] * 32, 20, 'the pool answers again')
            self.assertTrue(all(buffer == b'\xee' * SIZE for buffer in buffers))

    def test_close_waits_for_loads_under_way(self):
        with Cluster(servers=1, server_flags=['shm.share=off']) as cluster:
            connector = EmsConnector(controller=cluster.address, timeout=TIMEOUT)
            buffer = bytearray(SIZE)
            cluster.stand_still()
            try:
                connector.submit_batch_get([key(1)], [buffer])
                begin = time.monotonic()
                connector.close()
                self.assertLess(time.monotonic() - begin, TIMEOUT + SLACK)
                buffer.extend(b'x')  # BufferError if anything still held it
                self.assertEqual([completion[3] for completion in connector.drain_completions()], [[False]])
            finally:
                cluster.go_on()

    def test_pool_that_comes_later_is_found(self):
        with Cluster(servers=1) as cluster:
            address = cluster.address
            cluster.controller.kill()
            begin = time.monotonic()
            connector = EmsConnector(controller=address, timeout=TIMEOUT, start_timeout=0.3)
            self.assertLess(time.monotonic() - begin, 0.3 + SLACK)
            loop = Loop(connector)
            self.addCleanup(connector.close)
            self.addCleanup(loop.stop)
            ok, error, flags = loop.exists([key(1)])
            self.assertEqual((ok, flags), (False, [False]))
            self.assertIn('not connected', error)
            cluster.controller.start()
            cluster.controller.wait_ready()
            until(lambda: loop.set([key(1)], [filled('x', SIZE)])[0], 30, 'it is connected')

    def test_child_of_fork_is_told_and_the_parent_goes_on(self):
        with Cluster(servers=1) as cluster:
            loop = self.connect(cluster)
            child = os.fork()
            if child == 0:
                try:
                    loop.connector.submit_batch_exists([key(1)])
                    os._exit(1)  # it cannot have been submitted
                except ConnectionError:
                    os._exit(0)
                finally:
                    os._exit(2)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertTrue(loop.exists([key(1)])[0])


if __name__ == '__main__':
    unittest.main()
