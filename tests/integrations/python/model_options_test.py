"""Options of model caching as Python gives them: what is not understood is refused by name, before anything is asked."""
import unittest

import ems


class ModelOptionsTest(unittest.TestCase):
    def setUp(self):
        self.cache = ems.ModelCache('127.0.0.1:1', start_timeout=0.2)
        self.addCleanup(self.cache.close)

    def load(self, **options):
        self.cache.load_buffers('model@v1', timeout=0.5, **options)

    def test_options_that_nobody_knows_or_that_no_load_can_have(self):
        for options, error, text in (({'speed': 9}, TypeError, 'no option speed'),
                                     ({'threads': 0}, ems.errors.InvalidArgument, '1 at least'),
                                     ({'threads': 65}, ems.errors.InvalidArgument, 'threads is 65'),
                                     ({'batch_bytes': 0}, ems.errors.InvalidArgument, '1 at least'),
                                     ({'priority': 1001}, ems.errors.InvalidArgument, 'priority is 1001'),
                                     ({'threads': 'many'}, TypeError, ''), ({'pool_patience': -1}, ValueError, '')):
            with self.subTest(options), self.assertRaisesRegex(error, text):
                self.load(**options)

    def test_options_that_are_understood_let_the_load_begin(self):
        for options in ({}, {'threads': 64, 'batch_bytes': 1 << 20, 'verify_digests': True, 'fallback_to_source': False,
                             'pool_patience': 0.1, 'priority': 0}):
            with self.assertRaises((ems.errors.Unavailable, ems.errors.DeadlineExceeded)):
                self.load(**options)

    def test_verify_is_a_word_or_a_boolean(self):
        for verify in ('perhaps', '', 1, None):
            with self.assertRaisesRegex(ValueError, 'auto'):
                self.cache.add('model@v1', '/nowhere', verify=verify)
        for verify in ('auto', 'always', 'never', True, False):
            with self.assertRaises(ems.errors.Error):
                self.cache.add('model@v1', '/nowhere', verify=verify, timeout=0.5)


if __name__ == '__main__':
    unittest.main()
