"""What the connectors have in common: arguments, domains, and what a large batch is cut into."""
import threading
import unittest

from harness import Cluster, filled

from ems.engine_queue import EngineQueue
from ems.errors import InvalidArgument, NotFound


class EngineQueueTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=1, dram='128MiB')
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def queue(self, **options):
        queue = EngineQueue({'model': 'm'}, controller=self.cluster.address, **options)
        self.addCleanup(queue.close)
        return queue

    def carry(self, queue, *arguments):
        number = queue.submit(*arguments)
        while True:
            self.assertTrue(queue.wait(10))
            for done in queue.drain():
                if done[0] == number:
                    return done[1:]

    def test_lanes_of_a_large_batch_are_one_batch(self):
        for lanes, count in ((1, 9), (2, 9), (4, 9), (4, 2), (16, 3)):
            with self.subTest(lanes=lanes, count=count):
                queue = self.queue(lanes=lanes, threads=4)
                names = [f'{lanes}-{count}-{i}' for i in range(count)]
                values = [filled(name, 1 << 20) for name in names]
                self.assertEqual(self.carry(queue, 'set', names[1:], values[1:]), (True, None, [True] * (count - 1)))
                buffers = [bytearray(1 << 20) for _ in names]
                self.assertEqual(self.carry(queue, 'get', names, buffers)[2], [False] + [True] * (count - 1))
                self.assertEqual(buffers[1:], values[1:])
                self.assertEqual(queue.drain(), [], 'each batch is over once')

    def test_blocks_may_be_of_several_pieces(self):
        queue = self.queue()
        pieces = [filled(i, 1000 + i) for i in range(3)]
        self.carry(queue, 'set', ['pieces'], [pieces])
        whole = bytearray(3003)
        self.assertEqual(self.carry(queue, 'get', ['pieces'], [whole])[2], [True])
        self.assertEqual(whole, b''.join(pieces))

    def test_time_that_is_over_is_no_wait(self):
        queue, answers = self.queue(), []
        waiter = threading.Thread(target=lambda: answers.append(queue.wait(-0.001)), daemon=True)
        waiter.start()
        waiter.join(10)
        self.assertEqual(answers, [False])

    def test_wrong_arguments_raise_when_it_is_made(self):
        for error, options in ((NotFound, {'namespace': 'nobody'}), (InvalidArgument, {'timeout': 0}),
                               (InvalidArgument, {'threads': 0}), (InvalidArgument, {'lanes': 10**6}),
                               (InvalidArgument, {'waiting_max': 0}), (ValueError, {'durability': 'tape'}),
                               (ValueError, {'transport': 'pigeon'})):
            with self.subTest(options):
                with self.assertRaises(error):
                    EngineQueue({'model': 'm'}, controller=self.cluster.address, **options)

    def test_names_that_make_no_sense_raise_nothing(self):
        queue = self.queue()
        for names in (None, 5, [1, 2], [None]):
            with self.subTest(names):
                ok, error, done = self.carry(queue, 'exists', names)
                self.assertEqual((ok, done), (False, [False] * (len(names) if isinstance(names, list) else 0)))
                self.assertEqual(queue.run_at('exists', names)[0], done)
                self.assertTrue(error)
        self.assertEqual(queue.run_at('exists', (1 // k for k in (1, 0)))[0], [])
        self.assertEqual(queue.run_at('exists', (name for name in ['a', 'b'])), ([False, False], None))

    def test_more_than_may_wait_is_over_at_once(self):
        queue = self.queue(threads=1, waiting_max=2)
        self.cluster.stand_still()
        try:
            numbers = [queue.submit('set', [f'w{i}'], [b'x']) for i in range(20)]
            self.assertTrue(queue.wait(1))
            early = queue.drain()
            self.assertIn('wait for a thread', early[0][2])
            over = {done[0] for done in early}
            while len(over) < 20:
                self.assertTrue(queue.wait(30))
                over |= {done[0] for done in queue.drain()}
            self.assertEqual(over, set(numbers))
        finally:
            self.cluster.go_on()


if __name__ == '__main__':
    unittest.main()
