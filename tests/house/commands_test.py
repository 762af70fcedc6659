"""The commands of README and of the operators' pages, run as they stand there, page by page, on a cluster of this machine. Blocks of
other languages (text, yaml) are not run. Ports and folders are replaced by those of the test."""
import os
import re
import subprocess
import tempfile
import unittest

SOURCE_DIR = os.environ.get('EMS_SOURCE_DIR', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
BIN = os.environ.get('EMS_BIN', os.path.join(SOURCE_DIR, 'build', 'release', 'bin'))
CLUSTER = os.path.join(SOURCE_DIR, 'deploy', 'cluster.sh')
PAGES = ('RUNBOOK', 'SIZING', 'TUNING', 'UPGRADE', 'SECURITY', 'FAQ')
SECONDS_MAX = 100


def blocks_of(page):
    with open(os.path.join(SOURCE_DIR, page), encoding='utf-8') as file:
        found = re.findall(r'^( *)```sh\n(.*?)^ *```', file.read(), re.M | re.S)
    return [re.sub('^' + indent, '', block, flags=re.M) for indent, block in found]


class CommandsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix='ems-commands-')
        self.addCleanup(subprocess.run, ['rm', '-rf', self.folder], check=True)
        self.env = {**os.environ, 'EMS_BIN': BIN, 'PATH': BIN + ':' + os.environ['PATH']}

    def run_block(self, block):
        """Its output. A block has one session, which is ended as a whole if it takes too long."""
        block = block.replace('/tmp/', self.folder + '/').replace('$PWD/build/release/bin', BIN)
        with subprocess.Popen(['timeout', '--kill-after=5', str(SECONDS_MAX), 'bash', '-euo', 'pipefail', '-c', block], cwd=SOURCE_DIR,
                              env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as shell:
            out, _ = shell.communicate()
        self.assertEqual(shell.returncode, 0, f'{block}\n{out}')
        return out

    def test_readme_can_be_tried(self):
        cluster = os.path.join(self.folder, 'ems-try')
        self.addCleanup(lambda: os.path.exists(cluster) and subprocess.run([CLUSTER, 'stop', cluster], env=self.env, check=True))
        block = blocks_of('README.md')[-1]
        self.assertIn('cluster.sh start /tmp/ems-try', block)
        out = self.run_block(block)
        self.assertIn('hello', out)
        self.assertIn('ideal LRU', out)

    def test_commands_of_the_operators_pages(self):
        cluster = os.path.join(self.folder, 'cluster')
        self.addCleanup(subprocess.run, [CLUSTER, 'stop', cluster], env=self.env, check=True)
        subprocess.run([CLUSTER, 'start', cluster, '2'], env=self.env, check=True, stdout=subprocess.DEVNULL)
        daemons = {line.split()[0]: line.split() for line in
                   subprocess.run([CLUSTER, 'status', cluster], env=self.env, check=True, capture_output=True, text=True).stdout.split('\n')
                   if line}
        self.env['EMS_CONTROLLER'] = daemons['controller'][4]
        http = {'127.0.0.1:7401': daemons['controller'][6], '127.0.0.1:7501': daemons['server-1'][6]}
        for page in PAGES:
            blocks = blocks_of(f'docs/{page}.md')
            self.assertTrue(blocks, page)
            for block in blocks:
                with self.subTest(page=page):
                    self.run_block(re.sub(r'127\.0\.0\.1:7[45]01', lambda match: http[match.group()], block))


if __name__ == '__main__':
    unittest.main()
