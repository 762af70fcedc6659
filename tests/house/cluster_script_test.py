"""deploy/cluster.sh with real daemons: starts what it says, and leaves no process and no file."""
import os
import re
import subprocess
import tempfile
import unittest

SOURCE_DIR = os.environ.get('EMS_SOURCE_DIR', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
SCRIPT = os.path.join(SOURCE_DIR, 'deploy', 'cluster.sh')


def run(*arguments):
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False, timeout=90)


def is_running(pid):
    try:
        return os.path.basename(os.readlink(f'/proc/{pid}/exe')).startswith('mp-')
    except OSError:
        return False


class ClusterScriptTest(unittest.TestCase):
    def test_start_status_stop(self):
        for count in ('0', 'two', '--servers'):
            refused = run('start', '/nowhere/cluster', count)
            self.assertEqual((refused.returncode, refused.stdout), (2, ''))
            self.assertIn('number of servers', refused.stderr)
        with tempfile.TemporaryDirectory(prefix='ems-') as parent:
            folder = os.path.join(parent, 'cluster')
            started = run('start', folder, '2')
            try:
                self.assertEqual(started.returncode, 0, started.stderr)
                pids = re.findall(r'pid (\d+)', started.stdout)
                self.assertEqual(len(pids), 3, started.stdout)
                self.assertTrue(all(is_running(pid) for pid in pids))
                status = run('status', folder).stdout
                self.assertEqual(started.stdout[:len(status)], status)
                use = re.search(r'^to use it: export EMS_CONTROLLER=(\S+) PATH=', started.stdout, re.MULTILINE)
                self.assertIn(f'data {use[1]} ', status.splitlines()[0])
                self.assertEqual(run('start', folder, '2').returncode, 2, 'a second cluster in the same folder')
            finally:
                stopped = run('stop', folder)
            self.assertEqual((stopped.returncode, stopped.stderr), (0, ''))
            self.assertFalse(any(is_running(pid) for pid in pids))
            self.assertFalse(os.path.exists(folder))
            self.assertEqual(run('stop', folder).returncode, 2)


if __name__ == '__main__':
    unittest.main()
