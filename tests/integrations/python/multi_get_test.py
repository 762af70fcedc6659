"""multi_get: values of any length, one deadline for all of them, against real daemons."""
import threading
import time
import unittest

from cluster import Cluster

import ems


def value_of(name, length):
    return (name.encode() * (length // len(name) + 1))[:length]


class WholeValuesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2).__enter__()
        cls.client = ems.Client(cls.cluster.address)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.cluster.stop()

    def test_values_of_all_lengths_come_whole_and_in_order(self):
        lengths = [0, 1, 2, 100, 65536, 65537, 3 << 20]
        put = {f'whole/{i}': value_of(f'v{i}', length) for i, length in enumerate(lengths)}
        self.assertEqual(self.client.multi_put(put), [None] * len(put))
        wanted = list(put) + ['whole/none', 'whole/3', 'whole/3']
        expected = list(put.values()) + [None] + [put['whole/3']] * 2
        self.assertEqual(self.client.multi_get(wanted), expected)
        with ems.Client(self.cluster.address, transport='tcp') as client:
            self.assertEqual(client.multi_get(wanted), expected)
            self.assertEqual(client.multi_get(iter(wanted), timeout=10), expected)
        self.assertEqual(self.client.multi_get([]), [])

    def test_what_is_no_key_is_refused_and_a_bad_one_is_an_error_of_its_own(self):
        with self.assertRaises(TypeError):
            self.client.multi_get([5])
        self.client.put('whole/good', b'good')
        results = self.client.multi_get(['whole/good', 'k' * 513])
        self.assertEqual(results[0], b'good')
        self.assertIsInstance(results[1], ems.errors.InvalidArgument)

    def test_a_value_that_is_replaced_meanwhile_is_one_or_the_other(self):
        both = [value_of('short', 10), value_of('long', 200000)]
        self.client.put('whole/turns', both[0])
        over = threading.Event()

        def replace():
            while not over.is_set():
                for value in both:
                    self.client.put('whole/turns', value, overwrite=True, timeout=20)

        thread = threading.Thread(target=replace)
        thread.start()
        try:
            with ems.Client(self.cluster.address, transport='tcp') as client:
                for _ in range(200):
                    for value in client.multi_get(['whole/turns'] * 3, timeout=20):
                        self.assertIn(value, both)
        finally:
            over.set()
            thread.join()


class OneDeadlineTest(unittest.TestCase):
    def test_many_keys_of_a_server_that_stands_still_take_one_timeout(self):
        with Cluster(servers=2) as cluster:
            with ems.Client(cluster.address, transport='tcp') as client:
                names = [f'late/{i}' for i in range(64)]
                self.assertEqual(client.multi_put({name: name.encode() for name in names}), [None] * len(names))
                self.assertEqual(client.multi_get(names), [name.encode() for name in names])
                # One call: a key for itself would be a get each, each with a timeout of its own.
                self.assertIn(('multi_get', 'socket'), client.call_latencies())
                self.assertNotIn(('get', 'socket'), client.call_latencies())
                cluster.servers[0].stand_still()
                try:
                    begin = time.monotonic()
                    results = client.multi_get(names, timeout=1.5)
                    took = time.monotonic() - begin
                finally:
                    cluster.servers[0].go_on()
                late = [one for one in results if isinstance(one, ems.errors.Error)]
                self.assertTrue(late)
                self.assertLess(took, 5, f'{len(late)} of {len(results)} keys had no answer')
                for name, value in zip(names, results):
                    self.assertTrue(value == name.encode() or isinstance(value, ems.errors.Error), value)
                self.assertTrue(any(isinstance(one, bytes) for one in results))


if __name__ == '__main__':
    unittest.main()
