"""A cancelled await ends when nothing touches its memory any more, and not before."""
import asyncio
import gc
import threading
import time
import unittest

import ems
from cluster import Cluster

TIMEOUT = 0.6


def run(main):
    """asyncio.run; returns what the loop had to complain of."""
    complaints = []

    async def watched():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        await main()
        gc.collect()
    asyncio.run(watched())
    return complaints


class CancelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=1).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    def setUp(self):
        self.client = ems.Client(self.cluster.address, transport='tcp', executor_threads=1)
        self.addCleanup(self.client.close)
        self.client.put('key', b'x' * 1000, overwrite=True)

    def watched(self, method):
        """Has `method` of the client tell when a call begins and ends; (began, ended, calls)."""
        began, ended, calls = threading.Event(), threading.Event(), []
        original = getattr(self.client, method)

        def call(*args, **options):
            calls.append(args)
            began.set()
            try:
                return original(*args, **options)
            finally:
                ended.set()
        setattr(self.client, method, call)
        return began, ended, calls

    def test_a_call_that_runs_is_waited_for(self):
        began, ended, _ = self.watched('get_into')
        room = bytearray(1000)

        async def main():
            task = asyncio.create_task(self.client.aget_into('key', room, timeout=TIMEOUT))
            await asyncio.to_thread(began.wait)
            for _ in range(3):  # a second cancel does not get through either
                task.cancel()
                await asyncio.sleep(0)
                self.assertFalse(task.done())
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertTrue(ended.is_set(), 'the call still runs')
            self.assertTrue(task.cancelled())
        self.cluster.stand_still()
        try:
            begin = time.monotonic()
            self.assertEqual(run(main), [])
            self.assertLess(time.monotonic() - begin, TIMEOUT + 0.3)
        finally:
            self.cluster.go_on()
        self.assertEqual(room, bytearray(1000))

    def test_a_call_that_has_not_begun_never_does(self):
        began, _, calls = self.watched('get_into')
        rooms = [bytearray(1000), bytearray(1000)]

        async def main():
            first = asyncio.create_task(self.client.aget_into('key', rooms[0], timeout=TIMEOUT))
            await asyncio.to_thread(began.wait)
            second = asyncio.create_task(self.client.aget_into('key', rooms[1], timeout=TIMEOUT))
            await asyncio.sleep(0)  # it is queued behind the first
            second.cancel()
            begin = time.monotonic()
            with self.assertRaises(asyncio.CancelledError):
                await second
            self.assertLess(time.monotonic() - begin, TIMEOUT / 2)
            self.assertFalse(first.done())
            self.cluster.go_on()
            self.assertEqual(await first, 1000)
        self.cluster.stand_still()
        try:
            self.assertEqual(run(main), [])
        finally:
            self.cluster.go_on()
        self.client.close()  # runs what is queued
        self.assertEqual(len(calls), 1)
        self.assertEqual(rooms, [bytearray(b'x' * 1000), bytearray(1000)])

    def test_a_timeout_of_asyncio_waits_as_well(self):
        _, ended, _ = self.watched('put')

        async def main():
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(self.client.aput('other', b'y' * 1000, timeout=TIMEOUT), 0.1)
            self.assertTrue(ended.is_set())
        self.cluster.stand_still()
        try:
            self.assertEqual(run(main), [])
        finally:
            self.cluster.go_on()


if __name__ == '__main__':
    unittest.main()
