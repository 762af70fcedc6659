"""The ABI of libems.so: what it exports, what its header is in C and in C++, what an installed copy can do."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE_DIR = os.environ.get('EMS_SOURCE_DIR', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', '..'))
BUILD_DIR = os.environ.get('EMS_BUILD_DIR', os.path.join(SOURCE_DIR, 'build', 'release'))
LIBRARY = os.environ.get('EMS_LIBRARY', os.path.join(BUILD_DIR, 'lib', 'libems.so'))
HEADERS = [os.path.join(SOURCE_DIR, 'integrations', 'c', name) for name in ('ems.h', 'ems_kv.h', 'ems_models.h')]
HEADER = HEADERS[0]  # includes the others
CC, CXX = os.environ.get('CC', 'cc'), os.environ.get('CXX', 'c++')
STRICT = ['-Wall', '-Wextra', '-pedantic', '-Werror']

PROGRAM = '''
#include <ems.h>
#include <stdio.h>
int main(void) {
  ems_client_options options;
  if (ems_client_options_init(&options, sizeof(options)) != EMS_OK) return 1;
  if (ems_put(NULL, "k", 1, "v", 1, NULL) != EMS_INVALID_ARGUMENT) return 1;
  printf("%s %u %s %s\\n", ems_version(), (unsigned)ems_abi_version(), options.controller, ems_last_error());
  return 0;
}
'''


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def output(*command, **more):
    run = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if run.returncode != 0:
        raise AssertionError(f'{" ".join(command)}: exit {run.returncode}\n{run.stdout}{run.stderr}')
    return run.stdout


def listed():
    """Version → its names, as ems.map lists them."""
    text = re.sub(r'#[^\n]*', '', read(os.path.join(SOURCE_DIR, 'integrations', 'c', 'ems.map')))
    return {version: set(re.findall(r'\b(ems_\w+);', body)) for version, body in re.findall(r'(EMS_[\d.]+)\s*\{(.*?)\}', text, re.S)}


class ExportsTest(unittest.TestCase):
    def test_the_library_exports_what_is_listed_and_nothing_else(self):
        exported = set()
        for line in output('nm', '-D', '--defined-only', LIBRARY).splitlines():
            name, kind = line.split()[-1], line.split()[-2]
            if kind != 'A':  # the version's own name
                exported.add(name)
        wanted = {f'{name}@@{version}' for version, names in listed().items() for name in names}
        self.assertEqual(exported, wanted)

    def test_the_header_declares_what_is_listed(self):
        declared = re.findall(r'^EMS_API [^;(]*?\b(ems_\w+)\(', ''.join(map(read, HEADERS)), re.M)
        self.assertEqual(len(declared), len(set(declared)))
        self.assertEqual(set(declared), set().union(*listed().values()))

    def test_its_name_says_which_abi(self):
        self.assertIn('[libems.so.0]', output('readelf', '-d', LIBRARY))


class HeaderTest(unittest.TestCase):
    def compile(self, compiler, language, *flags):
        output(compiler, *flags, *STRICT, '-x', language, '-fsyntax-only', '-include', HEADER, os.devnull)

    def test_it_is_c99(self):
        self.compile(CC, 'c', '-std=c99')
        self.compile(CC, 'c', '-std=c11')

    def test_it_is_cxx(self):
        for standard in ('c++11', 'c++20'):
            self.compile(CXX, 'c++', f'-std={standard}')


class InstallTest(unittest.TestCase):
    @unittest.skipIf(os.environ.get('EMS_SANITIZE'), 'a plain program cannot load a sanitized library')
    def test_a_program_builds_and_runs_with_what_is_installed(self):
        with tempfile.TemporaryDirectory(prefix='ems-') as prefix:
            for component in ('ems_c_runtime', 'ems_c_development'):
                output('cmake', '--install', BUILD_DIR, '--component', component, '--prefix', prefix)
            found = {name for _, _, names in os.walk(prefix) for name in names}
            self.assertEqual(found, {'ems.h', 'ems_kv.h', 'ems_models.h', 'ems.pc', 'libems.so', 'libems.so.0', 'libems.so.0.2.0'})
            pc = [os.path.join(folder, 'ems.pc') for folder, _, names in os.walk(prefix) if 'ems.pc' in names][0]
            env = dict(os.environ, PKG_CONFIG_PATH=os.path.dirname(pc))
            flags = output('pkg-config', '--cflags', '--libs', 'ems', env=env).split()
            source, program = os.path.join(prefix, 'p.c'), os.path.join(prefix, 'p')
            with open(source, 'w', encoding='utf-8') as file:
                file.write(PROGRAM)
            output(CC, '-std=c99', *STRICT, source, '-o', program, *flags)
            libraries = [flag[2:] for flag in flags if flag.startswith('-L')]
            printed = output(program, env=dict(os.environ, LD_LIBRARY_PATH=':'.join(libraries)))
            self.assertEqual(printed, '0.2.0 5 127.0.0.1:7400 client is NULL\n')


TWO_COPIES = '''
import ctypes, sys
for path in sys.argv[1:]:
    library = ctypes.CDLL(path)
    library.ems_last_error.restype = ctypes.c_char_p
    options = (ctypes.c_size_t * 512)()
    if library.ems_client_options_init(options, ctypes.c_size_t(4096)) != 0:
        sys.exit('init')
    options[1] = ctypes.cast(ctypes.c_char_p(b'127.0.0.1:1'), ctypes.c_void_p).value
    client = ctypes.c_void_p()
    code = library.ems_connect(options, ctypes.byref(client))
    print(code, b'127.0.0.1:1' in library.ems_last_error())
'''


@unittest.skipIf(os.environ.get('EMS_SANITIZE'), 'a plain program cannot load a sanitized library')
class CopiesTest(unittest.TestCase):
    def test_two_libraries_of_the_same_parts_live_in_one_process(self):
        with tempfile.TemporaryDirectory(prefix='ems-') as folder:
            copy = shutil.copy(LIBRARY, os.path.join(folder, 'another.so'))
            printed = output(sys.executable, '-c', TWO_COPIES, LIBRARY, copy)
            self.assertEqual(printed, '14 True\n14 True\n')


if __name__ == '__main__':
    unittest.main()
