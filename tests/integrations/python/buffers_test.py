"""What counts as memory, names and numbers where Python hands them to the extension module."""
import unittest

import numpy
from cluster import Cluster
from npu_tensor import NpuTensor

import ems

try:
    import torch
except ImportError:
    torch = None


class BuffersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(servers=2))
        cls.client = cls.enterClassContext(ems.Client(cls.cluster.address))

    def test_values_come_from_and_go_to_whatever_is_memory(self):
        array = numpy.arange(30000, dtype=numpy.float64).reshape(100, 300)
        tensor = NpuTensor((4, 1000))
        tensor.host()[:] = 513
        for name, value, want in (('bytes', b'abc', b'abc'), ('bytearray', bytearray(b'abd'), b'abd'),
                                  ('view', memoryview(b'xabe')[1:], b'abe'), ('array', array, array.tobytes()),
                                  ('tensor', tensor, b'\x01\x02' * 4000), ('list', [b'ab', array[0]], b'ab' + array[0].tobytes()),
                                  ('empty', b'', b'')):
            with self.subTest(name):
                self.client.put('value-' + name, value)
                self.assertEqual(self.client.get('value-' + name), want)
                self.assertEqual(self.client.stat('value-' + name), len(want))
        into = numpy.zeros_like(array)
        self.assertEqual(self.client.get_into('value-array', into), array.nbytes)
        self.assertTrue((into == array).all())
        halves = [bytearray(120000), numpy.zeros(15000)]
        self.assertEqual(self.client.get_into('value-array', halves), array.nbytes)
        self.assertEqual(bytes(halves[0]) + halves[1].tobytes(), array.tobytes())
        part = bytearray(800)
        self.assertTrue(self.client.get_range('value-array', 2400, part))
        self.assertEqual(part, array[1, :100].tobytes())

    def test_what_is_no_memory_is_refused(self):
        for value in ('text', 5, None, numpy.zeros((4, 4))[:, 1]):
            with self.assertRaises((TypeError, BufferError, ValueError)):
                self.client.put('refused', value)
        with self.assertRaises((TypeError, BufferError)):
            self.client.get_into('refused', b'read-only')
        self.assertIsNone(self.client.get('refused'))

    def test_names_that_no_utf8_holds_are_refused_in_our_own_words(self):
        bad = 'a\ud800b'
        for call in (lambda: self.client.put(bad, b'x'), lambda: self.client.get(bad), lambda: self.client.exists(bad),
                     lambda: self.client.get('key', route_key=bad), lambda: self.client.multi_exists(['key', bad]),
                     lambda: self.client.multi_put({bad: b'x'}), lambda: ems.Client(bad), lambda: ems.Client(namespace=bad),
                     lambda: ems.ContextCache(self.client, model=bad), lambda: ems.ContextCache(self.client, model='m', lora=bad),
                     lambda: ems.ContextCache(self.client, model='m', custom={'name': bad}),
                     lambda: ems.ContextCache(self.client, model='m').own_key(bad)):
            with self.assertRaisesRegex(ems.errors.InvalidArgument, 'surrogates'):
                call()
        with self.assertRaisesRegex(ems.errors.InvalidArgument, 'tp_rank is -1'):
            ems.ContextCache(self.client, model='m', tp_rank=-1)
        with self.assertRaisesRegex(TypeError, 'str or bytes, not int'):
            self.client.get(5)

    def test_memory_of_python_objects_is_refused(self):
        objects = numpy.array(['a', None], dtype=object)
        fields = numpy.zeros(2, dtype=[('n', numpy.int32), ('any', object)])
        mixed = numpy.zeros(2, dtype=[('when', 'M8[s]'), ('any', object)])  # without a format
        for array in (objects, memoryview(objects), fields, mixed, [b'bytes', objects]):
            with self.assertRaises(TypeError):
                self.client.put('objects', array)
        with self.assertRaises(TypeError):
            self.client.get_into('objects', objects)
        self.assertFalse(self.client.exists('objects'))
        for name, array in (('times', numpy.array([5, 6], dtype='M8[s]')),
                            ('names', numpy.zeros(3, dtype=[('O', numpy.int8)]))):
            self.client.put(name, array)
            self.assertEqual(self.client.get(name), array.tobytes())

    @unittest.skipIf(torch is None, 'torch is not installed')
    def test_torch_tensors_on_the_cpu(self):
        tensor = torch.arange(1000, dtype=torch.bfloat16)
        self.client.put('torch', tensor)
        into = torch.zeros(1000, dtype=torch.bfloat16)
        self.assertEqual(self.client.get_into('torch', into), 2000)
        self.assertTrue(torch.equal(into, tensor))
        with self.assertRaises(BufferError):
            self.client.put('torch-strided', torch.zeros(4, 4)[:, 1])

    def test_a_list_that_changes_while_it_is_read(self):
        values = []

        class Tensor(NpuTensor):
            def data_ptr(self):
                values[1:] = ['no memory']
                return super().data_ptr()

        values += [Tensor((4,), 'int8'), b'rest']
        self.client.put('changing', values)
        self.assertEqual(self.client.get('changing'), bytes(4) + b'rest')


if __name__ == '__main__':
    unittest.main()
