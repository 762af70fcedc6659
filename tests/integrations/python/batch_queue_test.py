"""_ems.BatchQueue without a pool: what a batch may be, that each is over once, and that its memory is held until then."""
import gc
import select
import unittest
import weakref

import numpy

import ems
from ems import _ems
from ems.engine_queue import hasher_of


class BatchQueueTest(unittest.TestCase):
    def setUp(self):
        self.queue = self.open()

    def open(self, **options):
        queue = _ems.BatchQueue(hasher=hasher_of({'model': 'm'}),
                                **{**dict(threads=1, lanes=1, waiting_max=16, timeout=2.0, durability=''), **options})
        self.addCleanup(queue.close)
        return queue

    def drain(self, count):
        """By id."""
        poller, over = select.poll(), {}
        poller.register(self.queue.event_fd, select.POLLIN)
        while len(over) < count:
            self.assertTrue(poller.poll(20_000))
            over.update({outcome[0]: outcome[1:] for outcome in self.queue.drain()})
        return over

    def test_batches_are_over_once_and_say_why(self):
        ids = [self.queue.submit('exists', ['a', b'b']), self.queue.submit('set', ['a'], [b'memory']),
               self.queue.submit('get', ['a'], [[bytearray(2), numpy.zeros(3)]]), self.queue.fail(3, 'no names')]
        over = self.drain(4)
        self.assertEqual(sorted(over), ids)
        self.assertEqual([over[i][2] for i in ids], [[False] * 2, [False], [False], [False] * 3])
        for i in ids[:3]:
            self.assertRegex(over[i][1], 'UNAVAILABLE.*not connected')
        self.assertIn('no names', over[ids[3]][1])
        self.assertEqual(self.queue.drain(), [])

    def test_what_makes_no_sense_is_refused_when_it_is_submitted(self):
        for call, error in ((lambda: self.queue.submit('take', ['a']), ValueError), (lambda: self.queue.submit('get', [5]), TypeError),
                            (lambda: self.queue.submit('set', ['a', 'b'], [b'1']), ems.errors.InvalidArgument),
                            (lambda: self.queue.submit('set', ['a']), ems.errors.InvalidArgument),
                            (lambda: self.queue.submit('get', ['a'], [b'read-only']), (TypeError, BufferError)),
                            (lambda: self.queue.run_at('set', ['a'], [0], [1]), ems.errors.InvalidArgument),
                            (lambda: self.queue.run_at('set', ['a'], [1, 2], [1, 2], 1), ems.errors.InvalidArgument),
                            (lambda: self.open(timeout=0.0), ems.errors.InvalidArgument),
                            (lambda: self.open(durability='tape'), ValueError)):
            with self.assertRaises(error):
                call()
        self.assertEqual(self.queue.drain(), [])

    def test_memory_is_held_until_its_batch_is_drained(self):
        class Memory(bytearray):
            pass
        memory = Memory(8)
        held = weakref.ref(memory)
        self.queue.submit('set', ['a'], [memory])
        del memory
        gc.collect()
        self.assertIsNotNone(held())
        self.drain(1)
        gc.collect()
        self.assertIsNone(held())

    def test_on_the_callers_thread(self):
        done, error = self.queue.run_at('exists', ['a', 'b'])
        self.assertEqual(done, [False, False])
        self.assertIn('not connected', error)

    def test_closed_it_ends_what_comes(self):
        self.queue.close()
        self.queue.close()
        number = self.queue.submit('exists', ['a'])
        self.assertEqual(self.drain(1)[number], (False, 'UNAVAILABLE: the connector is closed', [False]))


if __name__ == '__main__':
    unittest.main()
