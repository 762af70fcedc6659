"""How a Status of C++ becomes an exception of ems.errors: its class, its code, its text."""
import unittest

from cluster import Cluster

import ems
from ems import _ems


class ErrorsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(servers=2))
        cls.client = cls.enterClassContext(ems.Client(cls.cluster.address))

    def test_misses_are_no_errors_and_errors_have_codes(self):
        self.assertIsNone(self.client.get('nobody'))
        self.assertIsNone(self.client.get_into('nobody', bytearray(1)))
        self.assertIsNone(self.client.view('nobody'))
        self.assertFalse(self.client.get_range('nobody', 0, bytearray(1)))
        self.assertFalse(self.client.exists('nobody'))
        self.assertFalse(self.client.remove('nobody'))
        self.client.put('coded', b'one')
        with self.assertRaises(ems.errors.AlreadyExists) as caught:
            self.client.put('coded', b'two')
        self.assertEqual(caught.exception.code, 'ALREADY_EXISTS')
        self.client.put('coded', b'two', overwrite=True)
        with self.assertRaises(ems.errors.OutOfRange):
            self.client.get_into('coded', bytearray(2))
        with self.assertRaises(ems.errors.InvalidArgument):
            self.client.put('', b'x')
        with self.assertRaises(ValueError):
            self.client.get('coded', timeout=-1)
        with self.assertRaises(ValueError):
            self.client.get('coded', verify='perhaps')
        self.assertTrue(self.client.remove('coded'))

    def test_each_code_has_a_class_that_python_knows_too(self):
        for code, cls, base in (('NOT_FOUND', ems.errors.NotFound, KeyError), ('INVALID_ARGUMENT', ems.errors.InvalidArgument, ValueError),
                                ('DEADLINE_EXCEEDED', ems.errors.DeadlineExceeded, TimeoutError),
                                ('UNAVAILABLE', ems.errors.Unavailable, ConnectionError),
                                ('PERMISSION_DENIED', ems.errors.PermissionDenied, PermissionError)):
            error = ems.errors.of(code, 'why')
            self.assertEqual((type(error), error.code, error.args), (cls, code, ('why',)))
            self.assertRegex(str(error), f'{code}: .*why')
            self.assertIsInstance(error, base)
        unknown = ems.errors.of('OF_A_NEWER_SERVER', 'why')
        self.assertEqual((type(unknown), unknown.code), (ems.errors.Error, 'OF_A_NEWER_SERVER'))

    def test_a_status_keeps_its_text(self):
        with self.assertRaises(ems.errors.InvalidArgument) as caught:
            _ems.set_log_level('loud')
        self.assertIn('loud', str(caught.exception))
        self.assertEqual(caught.exception.code, 'INVALID_ARGUMENT')


if __name__ == '__main__':
    unittest.main()
