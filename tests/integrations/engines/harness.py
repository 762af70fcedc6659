"""What the tests of all seats share: the cluster, memory that checks itself, and how long a submission takes."""
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'python'))

# pylint: disable=wrong-import-position,unused-import
from cluster import Cluster, until

SUBMIT_SECONDS = 0.001


def filled(name, size):
    """Bytes that only this name has."""
    seed = str(name).encode() + b'|'
    return bytearray((seed * (size // len(seed) + 1))[:size])


class Stopwatch:
    """Submissions: none may take a millisecond of its thread, nor the usual one a millisecond on the clock.

    On the clock a single one may: another process may have had the core.
    """

    def __init__(self):
        self._wall, self._cpu = [], []

    def time(self, call, *args):
        wall, cpu = time.perf_counter(), time.thread_time()
        result = call(*args)
        self._cpu.append(time.thread_time() - cpu)
        self._wall.append(time.perf_counter() - wall)
        return result

    def check(self, test):
        test.assertLess(max(self._cpu), SUBMIT_SECONDS)
        test.assertLess(statistics.median(self._wall), SUBMIT_SECONDS)
