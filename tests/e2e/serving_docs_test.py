"""The commands of docs/SERVING.md, run as they stand there, block by block; only the ports are free ones of this machine."""
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
from model_testing import Cluster  # noqa: E402

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'docs', 'SERVING.md')
BIN = os.environ['EMS_BIN']
SECONDS_MAX = 60


def free_ports(text):
    """`text` with each port of this host replaced by a free one, the same one for the same port."""
    sockets, ports = [], {}
    for port in sorted(set(re.findall(r'127\.0\.0\.1:(\d+)', text))):
        sockets.append(socket.create_server(('127.0.0.1', 0)))
        ports[port] = str(sockets[-1].getsockname()[1])
    for one in sockets:
        one.close()
    return re.sub(r'127\.0\.0\.1:(\d+)', lambda match: f'127.0.0.1:{ports[match.group(1)]}', text)


class ServingDocsTest(unittest.TestCase):
    def run_block(self, block, controller):
        with tempfile.TemporaryDirectory(prefix='ems-serving-') as folder:
            # Jobs in process groups of their own, as in a terminal; the whole session is ended whatever happens.
            shell = subprocess.Popen(
                ['bash', '-c', 'set -euo pipefail -m\ntrap "kill $(jobs -p) 2>/dev/null || true" EXIT\n' + free_ports(block)],
                cwd=folder, env={**os.environ, 'PATH': BIN + ':' + os.environ['PATH'], 'EMS_CONTROLLER': controller},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            try:
                out, _ = shell.communicate(timeout=SECONDS_MAX)
            except subprocess.TimeoutExpired:
                shell.terminate()
                out, _ = shell.communicate(timeout=10)
                self.fail(f'does not end:\n{block}\n{out}')
            self.assertEqual(shell.returncode, 0, f'{block}\n{out}')
            return out

    def test_every_block_of_commands_does_what_the_page_says(self):
        with open(PAGE, encoding='utf-8') as page:
            blocks = re.findall(r'```sh\n(.*?)```', page.read(), re.S)
        self.assertEqual(len(blocks), 4)
        with Cluster(servers=1) as cluster:
            for block in blocks:
                out = self.run_block(block, cluster.address)
                self.assertIn('"text":', out)
        alone, cached, parts, demo = blocks
        self.assertIn('cached_tokens', cached)
        self.assertIn('role=router', parts)
        self.assertIn('model.preset=demo', demo)


if __name__ == '__main__':
    unittest.main()
