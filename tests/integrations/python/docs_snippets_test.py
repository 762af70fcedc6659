"""The examples of docs/PYTHON_API.md run as they stand, in one program, against a cluster."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

from cluster import SOURCE_DIR, Cluster


class DocsSnippetsTest(unittest.TestCase):
    def test_the_examples_run_in_their_order(self):
        with open(os.path.join(SOURCE_DIR, 'docs', 'PYTHON_API.md'), encoding='utf-8') as file:
            blocks = re.findall(r'```python\n(.*?)```', file.read(), flags=re.S)
        self.assertGreaterEqual(len(blocks), 5)
        with Cluster(servers=2, server_flags=['models.file_root={folder}']) as cluster, tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, 'examples.py')
            with open(script, 'w', encoding='utf-8') as file:
                file.write('\n'.join(blocks) + "\nprint('the end')\n")
            run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False,
                                 env=dict(os.environ, EMS_CONTROLLER=cluster.address, MODELS=cluster.folder))
        self.assertEqual((run.returncode, run.stdout), (0, 'the end\n'), run.stderr)


if __name__ == '__main__':
    unittest.main()
