"""What the tests of all connectors share: the cluster, memory that checks itself, and how long a submission takes."""
import collections
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'python'))

# pylint: disable=wrong-import-position,unused-import
from cluster import SOURCE_DIR, Cluster, until

SUBMIT_SECONDS = 0.001


def filled(name, size):
    """Bytes that only this name has."""
    seed = str(name).encode() + b'|'
    return bytearray((seed * (size // len(seed) + 1))[:size])


class Stopwatch:
    """Calls that wait for nothing: of each kind the usual one takes no millisecond, on the clock or of its thread.

    A single one may: another process had the core, or the kernel gave the thread memory. One that waits for a daemon that
    stands still takes its whole timeout, every time.
    """

    def __init__(self):
        self._kinds = collections.defaultdict(list)

    def time(self, call, *args):
        wall, cpu = time.perf_counter(), time.thread_time()
        result = call(*args)
        spent = (time.perf_counter() - wall, time.thread_time() - cpu)
        kind = args[0] if args and callable(args[0]) else call
        self._kinds[kind.__name__].append(spent)
        return result

    def check(self, test):
        for kind, spent in self._kinds.items():
            with test.subTest(kind):
                test.assertGreaterEqual(len(spent), 5, 'too few to tell the usual one')
                for clock, times in zip(('wall', 'cpu'), zip(*spent)):
                    test.assertLess(statistics.median(times), SUBMIT_SECONDS, clock)
