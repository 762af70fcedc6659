"""_ems.ModelJob: a long call on a thread of its own, which Python waits for, interrupts and takes back."""
import os
import subprocess
import sys
import time
import unittest

from cluster import Cluster
from model_files import safetensors, write

import ems
from ems import _ems


class ModelJobTest(unittest.TestCase):
    def job(self, timeout):
        """One that looks for a controller that is not there, for 3 s at a time, which is what a stop waits for."""
        cache = _ems.ModelCache(controller='127.0.0.1:1', namespace='models', transport='auto', connections_per_server=1,
                                start_timeout=3.0, credentials={}, ca_file='', shm_token='')
        self.addCleanup(cache.close)
        return cache.wait_prefetched('model', 'v1', timeout)

    def test_it_is_over_at_its_deadline_and_says_why(self):
        job = self.job(0.3)
        self.assertTrue(job.wait(30))
        for _ in range(2):
            with self.assertRaises((ems.errors.DeadlineExceeded, ems.errors.Unavailable)):
                job.result()
        self.assertIs(job.next(0), False, 'there will be no record')

    def test_until_then_a_wait_returns_in_time_without_a_result(self):
        job = self.job(30.0)
        begin = time.monotonic()
        self.assertFalse(job.wait(0.05))
        self.assertIsNone(job.next(0.05))
        self.assertLess(time.monotonic() - begin, 10)
        with self.assertRaisesRegex(ems.errors.FailedPrecondition, 'under way'):
            job.result()
        self.assertEqual(job.progress(), (0, 0))
        job.ask_to_stop()
        job.stop()
        self.assertTrue(job.wait(0))
        with self.assertRaises(ems.errors.Error):
            job.result()

    def test_who_drops_it_ends_it(self):
        begin = time.monotonic()
        job = self.job(60.0)
        del job
        self.assertLess(time.monotonic() - begin, 30)


class ProgramTest(unittest.TestCase):
    """Of what goes on in a process: the interpreter's signals."""

    def test_ctrl_c_ends_a_wait_a_load_and_an_iteration(self):
        program = '''
import signal, sys, threading, time
import ems
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
cache = ems.ModelCache(sys.argv[1])
def interrupted(call):
    begun = threading.Event()
    threading.Thread(target=lambda: (begun.wait(), signal.raise_signal(signal.SIGINT)) and None, daemon=True).start()
    begin = time.monotonic()
    try:
        begun.set()
        call()
        return 'went on'
    except KeyboardInterrupt:
        return 'late' if time.monotonic() - begin > 5 else 'interrupted'
cache.prefetch('py/slow')
print(interrupted(lambda: cache.wait_prefetched('py/slow')))
print(interrupted(lambda: cache.load_buffers('py/slow', fallback_to_source=False)))
print(interrupted(lambda: list(cache.load_tensors('py/slow', fallback_to_source=False))))
'''
        with Cluster(servers=1, server_flags=['models.file_root={folder}']) as cluster, ems.ModelCache(cluster.address) as cache:
            write(os.path.join(cluster.folder, 'slow'), {'model.safetensors': safetensors({'m': ('U8', (4 << 20,), bytes(4 << 20))})})
            cache.add('py/slow', os.path.join(cluster.folder, 'slow'), 'v1', bytes_per_s_max=64 << 10, block_bytes=64 << 10)
            run = subprocess.run([sys.executable, '-c', program, cluster.address], capture_output=True, text=True, timeout=60,
                                 check=False)
        self.assertEqual((run.returncode, run.stdout), (0, 'interrupted\n' * 3), run.stderr)

if __name__ == '__main__':
    unittest.main()
