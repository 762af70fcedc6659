"""The extension module `_ems` as a whole: what it has, its version, its log."""
import builtins
import subprocess
import sys
import unittest

import ems
from ems import _ems


class ModuleTest(unittest.TestCase):
    def test_it_has_what_the_package_is_made_of(self):
        for name in ('BatchQueue', 'BlockHasher', 'Client', 'DropInPool', 'LayerLoad', 'ModelCache', 'ModelJob', 'ModelSession'):
            self.assertTrue(isinstance(getattr(_ems, name), type), name)
        self.assertEqual(_ems.version, ems.__version__)

    def test_it_exports_its_entry_alone_and_shares_nothing_with_other_modules(self):
        names = subprocess.run(['nm', '-D', '--defined-only', _ems.__file__], capture_output=True, text=True, timeout=60, check=True).stdout
        self.assertEqual([line.split()[-1] for line in names.splitlines()], ['PyInit__ems'])
        self.assertEqual([key for key in vars(builtins) if key.startswith('__pybind11_internals') and '_ems_' not in key], [])

    def test_its_log_is_as_loud_as_one_says(self):
        _ems.set_log_level('off')
        self.addCleanup(_ems.set_log_level, 'info')
        with self.assertRaisesRegex(ems.errors.InvalidArgument, 'loud'):
            _ems.set_log_level('loud')

    def test_it_is_imported_once_however_often_one_asks(self):
        run = subprocess.run([sys.executable, '-c', 'import ems, ems._ems, sys\nfrom ems import _ems\n'
                              'assert sys.modules["ems._ems"] is _ems and ems._ems is _ems'], capture_output=True, text=True,
                             timeout=60, check=False)
        self.assertEqual((run.returncode, run.stderr), (0, ''))


if __name__ == '__main__':
    unittest.main()
