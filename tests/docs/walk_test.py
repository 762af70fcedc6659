"""A walk through README and docs/: every block is run from the installed packages, page by page, on a cluster at the ports that pages
name; or blocks.txt says who runs it, or why nobody can. A new block is run from the day on which it is written.

Everything happens in namespaces of its own (network, processes): ports are the pages', and nothing is left behind. Where these
cannot be made, the pages' ports have to be free. Without EMS_DOCS=all, blocks of kind nightly are left out.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

from cluster import Daemon
from packages import BUILD, SOURCE_DIR, make_debs, output
from pages import blocks, rule_of, rules

ALL = os.environ.get('EMS_DOCS') == 'all'
PAGE_SECONDS_MAX = 600 if ALL else 100
INSIDE = 'EMS_DOCS_INSIDE'
PACKAGES = ('ems-controller', 'ems-server', 'ems-pdc', 'ems-tools', 'python3-ems')
SERVERS = 2
BLOCKS, RULES = blocks(), rules()


def runs(block):
    rule = rule_of(block, RULES)
    return rule is None or (ALL and rule.how == 'nightly')


def chosen(language):
    """Page → its blocks of this language that are to be run here."""
    found = {}
    for block in BLOCKS:
        if block.language == language and runs(block):
            found.setdefault(block.page, []).append(block.text)
    return found


class WalkTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix='ems-docs-')
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.root = os.path.join(cls.folder, 'root')
        for deb in make_debs(os.path.join(cls.folder, 'debs'), *PACKAGES).values():
            output('dpkg-deb', '-x', deb, cls.root)
        cls.bin = os.path.join(cls.root, 'usr', 'bin')
        cls.env = {**os.environ, 'PATH': cls.bin + ':' + os.environ['PATH'], 'EMS_BIN': cls.bin, 'EMS_CONTROLLER': '127.0.0.1:7400',
                   'MODELS': cls.folder, 'HOME': cls.folder, 'PYTHONPATH': os.path.join(cls.root, 'usr', 'lib', 'python3', 'dist-packages')}
        cls.start_cluster()

    @classmethod
    def start_cluster(cls):
        flags = {'mp-controller': [['http_listen=127.0.0.1:7401', f'data_dir={cls.folder}/c']]}
        flags['mp-server'] = [[f'name=server-{i + 1}', 'controller=127.0.0.1:7400', f'data_dir={cls.folder}/s{i}', 'dram.bytes=512MiB',
                               f'http_listen=127.0.0.1:{7501 + 10 * i}', f'unix_path={cls.folder}/{i}.sock',
                               f'models.file_root={cls.folder}'] for i in range(SERVERS)]
        daemons = []
        for program, each in flags.items():
            for i, more in enumerate(each):
                daemons.append(Daemon(cls.folder, f'{program}-{i}', program, more))
                daemons[-1].address = f"127.0.0.1:{7400 if program == 'mp-controller' else 7500 + 10 * i}"
                cls.addClassCleanup(daemons[-1].terminate)
                daemons[-1].start()
        for daemon in daemons:
            daemon.wait_ready()

    def checkout(self, page):
        """A folder that looks like the source tree, built, with the installed programs; what a page writes stays in it."""
        folder = os.path.join(self.folder, page.replace('/', '-'))
        os.makedirs(os.path.join(folder, 'build', 'release'))
        for name in os.listdir(SOURCE_DIR):
            if name not in ('build', '.git'):
                os.symlink(os.path.join(SOURCE_DIR, name), os.path.join(folder, name))
        os.symlink(self.bin, os.path.join(folder, 'build', 'release', 'bin'))
        return folder

    def run_page(self, page, command, text):
        with subprocess.Popen(['timeout', '--kill-after=5', str(PAGE_SECONDS_MAX), *command], cwd=self.checkout(page), env=self.env,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            out, _ = process.communicate(text)
        self.assertEqual(process.returncode, 0, f'{page}:\n{out[-4000:]}')
        return out

    def test_commands(self):
        said = {}
        for page, texts in chosen('sh').items():
            with self.subTest(page=page):
                # One shell a page, as a reader has; what it still runs at its end ends with it.
                lines = ['set -euo pipefail', 'trap \'kill $(jobs -p) 2>/dev/null || true\' EXIT']
                for text in texts:
                    lines.append(text.replace('/tmp/', self.folder + '/').replace('cmake --preset release && ninja -C build/release', ': built:'))
                script = os.path.join(self.folder, page.replace('/', '-') + '.sh')
                with open(script, 'w', encoding='utf-8') as file:
                    file.write('\n'.join(lines))
                said[page] = self.run_page(page, ['bash', '-x', script], '')
        self.assertIn('ideal LRU', said['README.md'])
        self.assertIn('hello', said['README.md'])

    def test_python(self):
        for page, texts in chosen('python').items():
            with self.subTest(page=page):
                out = self.run_page(page, ['/usr/bin/python3', '-'], '\n'.join(texts) + "\nprint('the end of', ems.__file__)\n")
                self.assertIn(self.root, out)

    def test_json_and_yaml(self):
        for texts in chosen('json').values():
            for text in texts:
                json.loads(text)
        for page, texts in chosen('yaml').items():
            for text in texts:
                with self.subTest(page=page), tempfile.NamedTemporaryFile('w', suffix='.yaml') as file:
                    file.write(text)
                    file.flush()
                    is_controllers = 'controller.yaml' in text.splitlines()[0]
                    daemon = ['mp-controller'] if is_controllers else ['mp-server', '--set', 'name=a']
                    output(os.path.join(self.bin, daemon[0]), *daemon[1:], '--check-config', '--config', file.name,
                           '--set', f'data_dir={self.folder}/d')
                    self.assertTrue(yaml.safe_load(text))


def enter():
    """The command that makes namespaces; empty where they cannot be made."""
    command = ['unshare', *([] if os.geteuid() == 0 else ['--user', '--map-root-user']), '--net', '--pid', '--fork', '--kill-child',
               '--mount-proc', 'sh', '-c', 'ip link set lo up && exec "$@"', 'sh']
    return command if subprocess.run([*command, 'true'], capture_output=True, check=False).returncode == 0 else []


if __name__ == '__main__':
    if os.environ.get(INSIDE):
        unittest.main()
    else:
        sys.exit(subprocess.run([*enter(), sys.executable, '-B', *sys.argv], env={**os.environ, INSIDE: '1'}, check=False).returncode)
