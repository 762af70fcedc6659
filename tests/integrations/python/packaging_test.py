"""The wheel and the Debian packages, made and unpacked as docs/PYTHON_API.md says, then used against a cluster from there."""
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import unittest
import zipfile

from cluster import SOURCE_DIR, Cluster

BUILD = os.environ.get('EMS_BUILD_DIR', os.path.join(SOURCE_DIR, 'build', 'release'))
MAKE_WHEEL = os.path.join(SOURCE_DIR, 'integrations', 'python', 'make_wheel.py')
MAKE_DEBS = os.path.join(SOURCE_DIR, 'deploy', 'make_debs.py')
USE = '''
import os, sys
import ems
assert ems.__file__.startswith(sys.argv[1]), ems.__file__
with ems.Client(sys.argv[2], timeout=10) as client:
    cache = ems.ContextCache(client, model='packaged', block_tokens=16)
    keys = cache.hash_tokens(list(range(32)))
    cache.save(keys, [b'1' * 100, b'2' * 100])
    into = [bytearray(100), bytearray(100)]
    assert cache.load(keys, into).leading_blocks == 2 and into == [b'1' * 100, b'2' * 100]
with ems.ModelCache(sys.argv[2]) as models:
    assert models.list() == []
print('used')
'''


def environment(**more):
    """Of a user: nothing of the build tree's."""
    own = {name: value for name, value in os.environ.items() if name not in ('PYTHONPATH', 'PYTHONHOME', 'LD_LIBRARY_PATH')}
    return {**own, 'PYTHONDONTWRITEBYTECODE': '1', **more}


class PackagingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Runs the lines of the documentation."""
        cls.out = tempfile.mkdtemp(prefix='ems-packages-')
        cls.addClassCleanup(shutil.rmtree, cls.out, ignore_errors=True)
        with open(os.path.join(SOURCE_DIR, 'docs', 'PYTHON_API.md'), encoding='utf-8') as file:
            lines = re.findall(r'```sh\n(.*?)```', file.read().split('## Packages')[1], flags=re.S)
        assert len(lines) == 2, lines
        run = subprocess.run(['sh', '-eu', '-c', ''.join(lines)], cwd=SOURCE_DIR, env=environment(BUILD=BUILD, OUT=cls.out),
                             capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        cls.printed = run.stdout
        cls.root = os.path.join(cls.out, 'root')
        cls.cluster = cls.enterClassContext(Cluster(servers=1))

    def run_as_user(self, command, **more):
        run = subprocess.run(command, cwd=self.out, env=environment(**more), capture_output=True, text=True, timeout=60,
                             check=False)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        return run.stdout

    def field(self, package, name):
        path, = (path for path in os.listdir(self.out) if path.startswith(package + '_') and path.endswith('.deb'))
        return self.run_as_user(['dpkg-deb', '-f', path, name]).strip()

    def test_what_was_printed(self):
        lines = self.printed.splitlines()
        self.assertEqual(len([line for line in lines if line.endswith('.deb')]), 3)
        self.assertEqual(lines.count('0.2.0'), 2)

    def test_the_wheel_works_from_a_venv(self):
        venv = os.path.join(self.out, 'venv')
        self.assertEqual(self.run_as_user([f'{venv}/bin/python', '-c', USE, venv, self.cluster.address]), 'used\n')

    def test_a_wheel_of_another_platform_has_its_own_pythons_module(self):
        modules = os.path.join(self.out, 'modules')
        shutil.copytree(os.path.join(BUILD, 'python'), modules, copy_function=os.symlink)
        with open(os.path.join(modules, 'ems', '_ems.cpython-399-x86_64-linux-gnu.so'), 'wb'):
            pass
        wheel = self.run_as_user(['/usr/bin/python3', MAKE_WHEEL, modules, modules, 'manylinux_2_28_x86_64']).strip()
        self.assertRegex(wheel, r'ems-0\.2\.0-(cp3\d+)-\1-manylinux_2_28_x86_64\.whl$')
        with zipfile.ZipFile(wheel) as archive:
            modules = [name for name in archive.namelist() if name.endswith('.so')]
            self.assertIn('-manylinux_2_28_x86_64\n', archive.read('ems-0.2.0.dist-info/WHEEL').decode())
        self.assertEqual(modules, ['ems/_ems' + sysconfig.get_config_var('EXT_SUFFIX')])

    def test_the_debian_package_works_from_where_it_is_unpacked(self):
        modules = os.path.join(self.root, 'usr', 'lib', 'python3', 'dist-packages')
        printed = self.run_as_user(['/usr/bin/python3', '-c', USE, modules, self.cluster.address], PYTHONPATH=modules)
        self.assertEqual(printed, 'used\n')

    def test_c_programs_are_compiled_and_run_with_the_library_packages(self):
        architecture, = (name for name in os.listdir(os.path.join(self.root, 'usr', 'lib')) if '-linux-' in name)
        folder = os.path.join(self.root, 'usr', 'lib', architecture)
        flags = self.run_as_user(['pkg-config', '--cflags', '--libs', 'ems'], PKG_CONFIG_LIBDIR=f'{folder}/pkgconfig',
                                 PKG_CONFIG_SYSROOT_DIR=self.root, PKG_CONFIG_ALLOW_SYSTEM_CFLAGS='1',
                                 PKG_CONFIG_ALLOW_SYSTEM_LIBS='1').split()
        example = os.path.join(SOURCE_DIR, 'examples', 'c', 'kv_blocks.c')
        self.run_as_user(['cc', '-D_POSIX_C_SOURCE=200809L', example, '-o', 'kv_blocks'] + flags)
        printed = self.run_as_user(['./kv_blocks', self.cluster.address], LD_LIBRARY_PATH=folder)
        self.assertIn('8 blocks loaded, 0 computed', printed)

    def test_packages_name_what_they_need(self):
        needs = self.field('python3-ems', 'Depends')
        self.assertRegex(needs, r'^python3 \(>= 3\.\d+\), python3 \(<< 3\.\d+\), .*libgrpc\+\+')
        self.assertIn('libgrpc++', self.field('libems0', 'Depends'))
        self.assertEqual(self.field('libems-dev', 'Depends'), f'libems0 (= {self.field("libems0", "Version")})')
        for package in ('python3-ems', 'libems0'):
            for need in re.findall(r'([a-z0-9.+-]+)(?: \(.*?\))?(?:, |$)', self.field(package, 'Depends')):
                self.assertTrue(self.run_as_user(['dpkg-query', '-W', need]), need)  # Debian has it

    def test_libraries_are_looked_for_where_debian_has_them(self):
        libraries = [os.path.join(folder, name) for folder, _, names in os.walk(self.root) for name in names
                     if '.so' in name and not os.path.islink(os.path.join(folder, name))]
        self.assertEqual(len(libraries), 2, libraries)
        for library in libraries:
            dynamic = self.run_as_user(['readelf', '-d', library])
            self.assertIn('(NEEDED)', dynamic)
            self.assertNotRegex(dynamic, 'RPATH|RUNPATH')

    def test_what_is_missing_or_unknown_is_said(self):
        for arguments, code, text in ((['--build-dir', self.out], 1, 'CMakeCache.txt is not there'), ([], 2, '--build-dir'),
                                      (['--build-dir', BUILD, 'ems-gui'], 2, 'no package ems-gui')):
            run = subprocess.run([MAKE_DEBS, '--out', self.out] + arguments, capture_output=True, text=True, check=False)
            self.assertEqual(run.returncode, code)
            self.assertIn(text, run.stderr.splitlines()[-1])


if __name__ == '__main__':
    unittest.main()
