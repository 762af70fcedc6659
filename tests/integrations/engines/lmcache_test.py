"""LMCache's native plug-in: the loop that demultiplexes completions, and what its users have met elsewhere."""
import threading
import unittest

from harness import Cluster, filled
from lmcache_loop import Loop, key

from ems.lmcache import EmsConnector

SIZE = 32 << 10


class LmcacheTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2, dram='128MiB')
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def connect(self, **params):
        connector = EmsConnector(controller=self.cluster.address, **params)
        loop = Loop(connector)
        self.addCleanup(connector.close)
        self.addCleanup(loop.stop)
        return loop

    def test_batches_come_back_byte_for_byte(self):
        loop = self.connect()
        keys = [key(i) for i in range(32)]
        values = [filled(k, SIZE) for k in keys]
        self.assertEqual(loop.set(keys, values), (True, None, [True] * 32))
        buffers = [bytearray(SIZE) for _ in keys]
        self.assertEqual(loop.get(keys, buffers), (True, None, [True] * 32))
        self.assertEqual(buffers, values)
        self.assertEqual(loop.exists(keys + [key(99)])[2], [True] * 32 + [False])

    def test_another_process_of_the_engine_finds_them(self):
        one, other = self.connect(), self.connect()
        one.set([key(200)], [filled('x', SIZE)])
        buffer = bytearray(SIZE)
        self.assertEqual(other.get([key(200)], [buffer])[2], [True])
        self.assertEqual(buffer, filled('x', SIZE))

    def test_many_threads_share_one_eventfd_and_each_gets_its_own(self):
        loop = self.connect(threads=4)
        failures = []

        def work(number):
            try:
                for round_ in range(10):
                    keys = [key(1000 + number * 1000 + round_ * 8 + i) for i in range(8)]
                    values = [filled(k, 4096) for k in keys]
                    buffers = [bytearray(4096) for _ in keys]
                    if loop.set(keys, values)[2] != [True] * 8 or loop.get(keys, buffers)[2] != [True] * 8 or buffers != values:
                        failures.append((number, round_))
            except BaseException as error:  # pylint: disable=broad-except
                failures.append(error)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((failures, loop.doubled), ([], []))

    def test_draining_empties_the_eventfd(self):
        connector = EmsConnector({'controller': self.cluster.address})  # as one dict, too
        number = connector.submit_batch_exists([key(1)])
        self.assertTrue(connector._queue.wait(10))
        self.assertEqual([completion[0] for completion in connector.drain_completions()], [number])
        self.assertFalse(connector._queue.wait(0))
        self.assertEqual(connector.drain_completions(), [])
        connector.close()

    def test_storing_again_moves_nothing_and_is_a_success(self):
        loop = self.connect()
        loop.set([key(300)], [filled('first', SIZE)])
        self.assertEqual(loop.set([key(300)], [filled('computed again, not bit for bit', SIZE)]), (True, None, [True]))
        buffer = bytearray(SIZE)
        loop.get([key(300)], [buffer])
        self.assertEqual(buffer, filled('first', SIZE))

    def test_deleting_says_what_was_there(self):
        loop = self.connect()
        loop.set([key(400)], [filled('x', SIZE)])
        self.assertEqual(loop.delete([key(400), key(401)])[2], [True, False])
        self.assertEqual(loop.exists([key(400)])[2], [False])

    def test_partial_load_has_a_result_for_each_key(self):
        loop = self.connect()
        keys = [key(500 + i) for i in range(8)]
        loop.set(keys[::2], [filled(k, SIZE) for k in keys[::2]])
        buffers = [bytearray(SIZE) for _ in keys]
        ok, error, flags = loop.get(keys, buffers)
        self.assertEqual((ok, flags), (False, [True, False] * 4))
        self.assertIn('4 of 8', error)
        self.assertEqual(buffers[::2], [filled(k, SIZE) for k in keys[::2]])

    def test_load_that_missed_is_no_success_for_who_looks_at_nothing_else(self):
        loop = self.connect()  # LMCache once took `ok` for all keys of a load
        loop.set([key(550)], [filled('x', SIZE)])
        for keys in ([key(551)], [key(551), key(552)], [key(550), key(551)]):
            with self.subTest(keys):
                ok, error, flags = loop.get(keys, [bytearray(SIZE) for _ in keys])
                self.assertEqual((ok, flags), (False, [k == key(550) for k in keys]))
                self.assertTrue(error)
        self.assertEqual(loop.exists([key(551)]), (True, None, [False]))  # these it only takes when ok
        self.assertEqual(loop.delete([key(551)]), (True, None, [False]))

    def test_value_of_another_size_is_a_miss(self):
        loop = self.connect()
        loop.set([key(600), key(601)], [filled('x', SIZE), filled('y', SIZE)])
        for size in (SIZE - 64, SIZE + 64):
            self.assertEqual(loop.get([key(600), key(601)], [bytearray(size), bytearray(SIZE)])[2], [False, True])

    def test_evicted_between_exists_and_get_is_a_miss_and_not_garbage(self):
        loop = self.connect()
        first = [key(10_000 + i) for i in range(16)]
        loop.set(first, [filled(k, SIZE) for k in first])
        self.assertEqual(loop.exists(first)[2], [True] * 16)
        for batch in range(40):  # more than the pool has
            keys = [key(20_000 + batch * 16 + i) for i in range(16)]
            self.assertEqual(loop.set(keys, [filled(k, 1 << 20) for k in keys])[2], [True] * 16)
        buffers = [bytearray(SIZE) for _ in first]
        ok, _, flags = loop.get(first, buffers)
        self.assertFalse(ok)
        self.assertIn(False, flags)
        for k, buffer, arrived in zip(first, buffers, flags):
            self.assertTrue(not arrived or buffer == filled(k, SIZE))

    def test_salt_rank_group_and_domain_never_meet(self):
        loop = self.connect()
        loop.set([key(700)], [filled('x', SIZE)])
        others = [key(700, salt='tenant'), key(700, rank=1), key(700, group=1), key(700, model='llama2')]
        self.assertEqual(loop.exists(others + [key(700)])[2], [False] * 4 + [True])
        self.assertEqual(self.connect(domain='fp8').exists([key(700)])[2], [False])

    def test_results_are_full_length_whatever_is_wrong(self):
        loop = self.connect()
        self.assertEqual(loop.get([], []), (True, None, []))
        for keys, buffers in (([key(1), key(2)], [bytearray(4)]), ([key(1)], [b'read-only']), (['\ud800'], [bytearray(4)]),
                              (['k' * 600], [bytearray(4)]), ([key(1)], [None]), ([None], [bytearray(4)])):
            with self.subTest(keys=keys, buffers=buffers):
                number = loop.submit(loop.connector.submit_batch_get, keys, buffers)
                ok, error, flags = loop.wait(number)
                self.assertEqual((ok, flags), (False, [False] * len(keys)))
                self.assertTrue(error)

    def test_keys_that_cannot_be_counted_raise_nothing(self):
        loop = self.connect()
        for keys in (lambda: None, lambda: 5, lambda: (k for k in [1, 2]), lambda: (1 // k for k in [1, 0])):
            for call, memory in ((loop.connector.submit_batch_exists, ()), (loop.connector.submit_batch_delete, ()),
                                 (loop.connector.submit_batch_get, ([bytearray(4)] * 2,)),
                                 (loop.connector.submit_batch_set, ([bytearray(4)] * 2,))):
                ok, error, flags = loop.wait(loop.submit(call, keys(), *memory))
                self.assertEqual((ok, any(flags)), (False, False))
                self.assertTrue(error)
        loop.set([key(750)], [filled('x', SIZE)])
        self.assertEqual(loop.wait(loop.submit(loop.connector.submit_batch_exists, (k for k in [key(750), key(751)]))),
                         (True, None, [True, False]))

    def test_buffers_are_held_until_their_completion_is_drained(self):
        connector = EmsConnector(controller=self.cluster.address)
        buffer = bytearray(64)
        connector.submit_batch_get([key(1)], [memoryview(buffer)])
        self.assertTrue(connector._queue.wait(10))
        with self.assertRaises(BufferError):
            buffer.extend(b'x')  # its memory would move
        connector.drain_completions()
        buffer.extend(b'x')
        connector.close()

    def test_close_is_idempotent_and_later_batches_are_misses(self):
        loop = self.connect()
        loop.set([key(800)], [filled('x', SIZE)])
        loop.connector.close()
        loop.connector.close()
        ok, error, flags = loop.exists([key(800)])
        self.assertEqual((ok, flags), (False, [False]))
        self.assertIn('closed', error)

    def test_unknown_parameter_is_named(self):
        with self.assertRaisesRegex(TypeError, 'does not take controler; adapter_params may have controller, .* and domain'):
            EmsConnector(controler='127.0.0.1:1')


if __name__ == '__main__':
    unittest.main()
