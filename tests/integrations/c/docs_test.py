"""docs/C_API.md as it stands: what it quotes is the programs that run, and its commands build them with what is installed."""
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

from cluster import SOURCE_DIR, Cluster
from model_files import safetensors, write

BUILD_DIR = os.environ.get('EMS_BUILD_DIR', os.path.join(SOURCE_DIR, 'build', 'release'))
EXAMPLES = {'kv_blocks': ('connect', 'prompt'), 'kv_layers': ('paged', 'layers'),
            'model_load': ('version', 'tensors')}  # program → its quoted parts
BLOCKS = '0 blocks loaded, 8 computed\n8 blocks loaded, 0 computed\n'


def read(*path):
    with open(os.path.join(SOURCE_DIR, *path), encoding='utf-8') as file:
        return file.read()


def blocks(language):
    return re.findall(r'```%s\n(.*?)```' % language, read('docs', 'C_API.md'), re.S)


def output(command, **more):
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **more)
    if run.returncode != 0:
        raise AssertionError(f'{command}: exit {run.returncode}\n{run.stdout}{run.stderr}')
    return run.stdout


class DocumentTest(unittest.TestCase):
    def test_what_the_page_quotes_is_the_programs_that_run(self):
        marked = []
        for name, marks in EXAMPLES.items():
            program = read('examples', 'c', name + '.c')
            for mark in marks:
                marked.append(re.search(r'/\* \[%s\] \*/\n(.*?)/\* \[%s\] \*/' % (mark, mark), program, re.S).group(1))
        self.assertEqual(blocks('c'), marked)

    @unittest.skipIf(os.environ.get('EMS_SANITIZE'), 'a plain program cannot load a sanitized library')
    def test_its_commands_build_programs_that_run_against_a_cluster(self):
        self.assertEqual(len(blocks('sh')), 1)
        commands = blocks('sh')[0].splitlines()
        # The build is the one that this test belongs to: only that preset and target exist is looked at.
        preset, target = re.fullmatch(r'cmake --preset (\w+) && ninja -C build/\1 (\w+)', commands[0]).groups()
        self.assertIn(f'"{preset}"', output(['cmake', '--list-presets'], cwd=SOURCE_DIR))
        output(['ninja', '-n', '-C', BUILD_DIR, target])
        with tempfile.TemporaryDirectory(prefix='ems-') as root, \
                Cluster(servers=2, server_flags=['models.file_root={folder}']) as cluster:
            # The commands see a checkout, and a machine of their own below DESTDIR.
            os.makedirs(os.path.join(root, 'build'))
            os.symlink(BUILD_DIR, os.path.join(root, 'build', preset))
            machine = os.path.join(root, 'machine')
            searched = output(['pkg-config', '--variable', 'pc_path', 'pkg-config']).strip().split(':')
            env = dict(os.environ, DESTDIR=machine, PKG_CONFIG_SYSROOT_DIR=machine,
                       PKG_CONFIG_LIBDIR=':'.join(machine + path for path in searched))
            weights = safetensors({'wq': ('F32', (4, 2), bytes(32)), 'norm': ('F32', (2,), bytes(8))})
            write(os.path.join(cluster.folder, 'model'), {'model.safetensors': weights})
            model = ([os.path.join(cluster.folder, 'model'), 'c/example@v1'],
                     f'{len(weights)} bytes of model.safetensors\n2 tensors of rank 1, 24 bytes\n')
            for name in EXAMPLES:
                arguments, wanted = model if name == 'model_load' else ([], BLOCKS)
                shutil.copy(os.path.join(SOURCE_DIR, 'examples', 'c', name + '.c'), os.path.join(root, 'engine.c'))
                libraries = []
                for command in commands[1:]:
                    if shlex.split(command)[0] == 'ldconfig':  # of this machine's loader: the folder is named instead
                        libraries = [flag[2:] for flag in output(['pkg-config', '--libs-only-L', 'ems'], env=env).split()]
                        output(['/sbin/ldconfig', '-n'] + libraries)
                    else:
                        output(['sh', '-c', command], cwd=root, env=env)
                self.assertEqual(len(libraries), 1)
                printed = output([os.path.join(root, 'a.out'), cluster.address] + arguments,
                                 env=dict(env, LD_LIBRARY_PATH=libraries[0]))
                self.assertEqual(printed, wanted, name)


if __name__ == '__main__':
    unittest.main()
