"""What makes wheels portable, on small libraries: stubs of an older glibc, the linker launcher, the check of what came out."""
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

SOURCE_DIR = os.environ.get('EMS_SOURCE_DIR', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', '..'))
CHECK = os.path.join(SOURCE_DIR, 'deploy', 'check_portable.py')
PORTABLE = os.path.join(SOURCE_DIR, 'deploy', 'portable')
# Each has a newer version in Debian 12 than in glibc 2.28, or was elsewhere, or was not there at all.
CODE = r'''
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <fcntl.h>
#include <pthread.h>
#include <chrono>
#include <condition_variable>
#include <random>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

static void* Add(void* sum) { *static_cast<int*>(sum) += 1; return nullptr; }

// How many of nine calls did what they should.
extern "C" __attribute__((visibility("default"))) int ems_try(const char* path, double base) {
  int sum = 0;
  struct stat one, two;
  pthread_t thread;
  if (pthread_create(&thread, nullptr, Add, &sum) == 0) pthread_join(thread, nullptr);
  if (dlsym(RTLD_DEFAULT, "getpid") != nullptr) ++sum;
  if (stat(path, &one) == 0 && lstat(path, &two) == 0 && one.st_ino == two.st_ino) ++sum;
  if (fstatat(AT_FDCWD, path, &two, 0) == 0 && one.st_size == two.st_size) ++sum;
  if (stat("/nothing/there", &two) == -1 && errno == ENOENT) ++sum;
  if (pow(base, 3.0) == 8.0) ++sum;
  if (std::to_string(base) == "2.000000") ++sum;
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  const auto begin = std::chrono::steady_clock::now();
  if (never.wait_for(lock, std::chrono::milliseconds(5)) == std::cv_status::timeout &&
      std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(5)) ++sum;
  if (std::random_device()() != std::random_device()()) ++sum;
  return sum;
}
'''
USE = '''
import ctypes, sys
ems_try = ctypes.CDLL(sys.argv[1]).ems_try
ems_try.argtypes = [ctypes.c_char_p, ctypes.c_double]
print(ems_try(sys.argv[1].encode(), 2.0))
'''


def output(*command, fails=False, **more):
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **more)
    if (run.returncode != 0) != fails:
        raise AssertionError(f'{" ".join(command)}: exit {run.returncode}\n{run.stdout}{run.stderr}')
    return run.stdout + (run.stderr if fails else '')


class PortableTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix='ems-portable-'))
        cls.prefix = os.path.join(cls.folder, 'prefix')
        os.makedirs(os.path.join(cls.prefix, 'lib'))
        output(os.path.join(PORTABLE, 'glibc_stubs.py'), os.path.join(cls.prefix, 'stubs'))
        output('gcc', '-O2', '-fPIC', '-fvisibility=hidden', '-Wall', '-Wextra', '-Werror', '-c',
               os.path.join(PORTABLE, 'glibc_additions.c'), '-o', os.path.join(cls.prefix, 'glibc_additions.o'))
        cls.object = cls.compiled(CODE)

    @classmethod
    def compiled(cls, code):
        path = os.path.join(cls.folder, f'{len(os.listdir(cls.folder))}.o')
        output('g++', '-std=c++20', '-fPIC', '-fvisibility=hidden', '-x', 'c++', '-c', '-', '-o', path, input=code)
        return path

    def linked(self, *arguments, portable=True, fails=False):
        library = os.path.join(self.folder, self.id().rsplit('.', 1)[-1] + '.so')
        launcher = [os.path.join(PORTABLE, 'link_static.py'), self.prefix] if portable else []
        text = output(*launcher, 'g++', '-fuse-ld=mold', '-shared', '-o', library, *arguments, fails=fails)
        return text if fails else library

    def exports(self, names):
        path = os.path.join(self.folder, names + '.map')
        with open(path, 'w', encoding='utf-8') as file:
            file.write(f'{{ global: {names}; local: *; }};')
        return '-Wl,--version-script=' + path

    def faults(self, path):
        return output(CHECK, path, fails=True)

    def test_a_library_linked_for_2_28_is_portable_and_works(self):
        library = self.linked(self.object, self.exports('ems_try'))
        self.assertEqual(output(CHECK, library), '')
        needed = set(re.findall(r'\(NEEDED\).*\[(.*)\]', output('readelf', '-dW', library)))
        self.assertLessEqual({'libc.so.6', 'libm.so.6', 'libpthread.so.0', 'libdl.so.2'}, needed)
        self.assertEqual(output(sys.executable, '-c', USE, library), '9\n')

    def test_additions_do_without_what_2_28_lacks(self):
        additions = os.path.join(self.folder, 'without.o')
        output('gcc', '-O2', '-fPIC', '-Ddlsym=FindNothing', '-c', os.path.join(PORTABLE, 'glibc_additions.c'), '-o', additions)
        nothing = self.compiled('extern "C" void* FindNothing(void*, const char*) { return nullptr; }')
        library = self.linked(self.object, additions, nothing, portable=False)
        self.assertEqual(output(sys.executable, '-c', USE, library), '9\n')

    def test_one_linked_as_usual_is_not(self):
        faults = self.faults(self.linked(self.object, portable=False))
        for fault in ('needs libstdc++.so.6', 'pthread_create of GLIBC_2.34, newer than GLIBC_2.28', 'stat of GLIBC_2.33',
                      'pow of GLIBC_2.29'):
            self.assertIn(fault, faults)

    def test_what_glibc_got_later_is_told(self):
        later = self.compiled('extern "C" int pidfd_open(int, unsigned); '
                              'extern "C" __attribute__((visibility("default"))) int ems_try() { return pidfd_open(1, 0); }')
        self.assertIn('pidfd_open, which nothing defines', self.faults(self.linked(later, self.exports('ems_try'))))
        self.assertIn('undefined symbol: pidfd_open', self.linked(later, '-Wl,-z,defs', fails=True))

    def test_a_library_without_an_archive_is_not_linked(self):
        self.assertIn('no archive of libpsl_not_here', self.linked(self.object, '-lpsl_not_here', fails=True))

    def test_what_else_is_exported_or_undefined_is_told(self):
        more = self.compiled('extern "C" int elsewhere(); __attribute__((visibility("default"))) int Shown() { return elsewhere(); }')
        faults = self.faults(self.linked(more, portable=False))
        self.assertIn('exports _Z5Shownv', faults)
        self.assertIn('elsewhere, which nothing defines', faults)

    def test_paths_of_this_machine_are_told(self):
        self.assertIn('RUNPATH /opt/lib', self.faults(self.linked(self.object, self.exports('ems_try'), '-Wl,-rpath,/opt/lib')))
        self.assertEqual(output(CHECK, self.linked(self.object, self.exports('ems_try'), '-Wl,-rpath,$ORIGIN')), '')

    def test_the_library_in_a_wheel_is_checked(self):
        library = self.linked(self.object, portable=False)
        wheels = [os.path.join(self.folder, f'ems-1-cp311-cp311-{tag}_x86_64.whl') for tag in ('manylinux_2_28', 'linux')]
        for wheel in wheels:
            with zipfile.ZipFile(wheel, 'w') as archive:
                archive.write(library, 'ems/_ems.so')
            self.assertIn('ems/_ems.so: pthread_create of GLIBC_2.34', self.faults(wheel))
        self.assertIn('not named manylinux_2_28', self.faults(wheels[1]))


if __name__ == '__main__':
    unittest.main()
