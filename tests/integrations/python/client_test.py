"""ems.Client against real daemons: calls, batches, views, threads, processes that fork and end."""
import asyncio
import os
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import numpy
from cluster import Cluster

import ems
from ems.engine_queue import EngineQueue


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2).__enter__()
        cls.client = ems.Client(cls.cluster.address)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.cluster.stop()

    def test_batches_answer_item_by_item(self):
        self.client.put('batch-taken', b'mine')
        results = self.client.multi_put([('batch-0', b'zero'), ('batch-taken', b'yours'), (b'batch-2', [b't', b'wo'])])
        self.assertIsNone(results[0])
        self.assertIsInstance(results[1], ems.errors.AlreadyExists)
        self.assertIsNone(results[2])
        room = [bytearray(4), bytearray(4), bytearray(1)]
        results = self.client.multi_get_into(zip(['batch-0', 'batch-1', 'batch-2'], room))
        self.assertEqual(results[:2], [4, None])
        self.assertIsInstance(results[2], ems.errors.OutOfRange)
        self.assertEqual(room[0], b'zero')
        self.assertEqual(self.client.multi_get(['batch-2', 'batch-3']), [b'two', None])
        self.assertEqual(self.client.multi_exists(['batch-0', 'batch-1']), [True, False])
        self.assertEqual(self.client.multi_remove(['batch-0', 'batch-1']), [True, False])

    def test_keys_are_listed(self):
        names = {f'listed/{i}'.encode() for i in range(50)}
        for name in names:
            self.client.put(name, b'value')
        found = list(self.client.scan('listed/'))
        self.assertEqual({one.key for one in found}, names)
        self.assertEqual({(one.size, one.tier) for one in found}, {(5, 'dram')})
        self.assertTrue(all(0 <= one.idle and 0 <= one.age < 600 for one in found))
        self.assertEqual(list(self.client.scan('listed/no-such')), [])
        with self.assertRaises(ems.errors.InvalidArgument):
            list(self.client.scan('p' * 513))

    def test_latencies_are_told_by_operation_and_path(self):
        self.client.put('timed', b'value')
        self.assertEqual(self.client.get('timed'), b'value')
        put = self.client.call_latencies()['put', 'socket']
        self.assertGreaterEqual(put['timed'], 1)
        self.assertLessEqual(put['p50_us'], put['p99_us'])
        text = self.client.metrics_text()
        self.assertIn('\nems_client_puts_total ', text)
        self.assertIn('\nems_client_call_seconds_count{op="put",path="socket"} ', text)

    def test_a_view_is_held_as_long_as_something_looks_into_it(self):
        self.client.put('viewed', numpy.arange(100000))
        view = self.client.view('viewed')
        array = numpy.frombuffer(view.data, numpy.int64)
        self.assertTrue((array == numpy.arange(100000)).all())
        with self.assertRaises((ValueError, TypeError)):
            array[0] = 1
        view.verify()
        with self.assertRaises(BufferError):
            view.release()
        del array
        view.release()
        self.assertEqual(len(view), 0)

    def test_a_view_is_held_while_another_thread_verifies_it(self):
        self.client.put('verified', bytes(32 << 20), timeout=10)
        for _ in range(200):
            view = self.client.view('verified', timeout=10)
            begins = threading.Event()
            thread = threading.Thread(target=lambda: (begins.set(), view.verify()))
            thread.start()
            begins.wait()
            try:
                view.release()
            except BufferError:
                thread.join()
                view.release()
                return
            thread.join()
        self.fail('it was released each time, while verify() read it')

    def test_staging_memory_can_be_put(self):
        staged = self.client.allocate(10000)
        numpy.frombuffer(staged, numpy.uint8)[:] = 9
        self.client.put('staged', staged)
        self.assertEqual(self.client.get('staged'), b'\x09' * 10000)
        staged.release()

    def test_asyncio_calls_run_beside_each_other(self):
        async def main():
            async with ems.Client(self.cluster.address) as client:
                await asyncio.gather(*(client.aput(f'aio-{i}', b'%d' % i) for i in range(50)))
                values = await asyncio.gather(*(client.aget(f'aio-{i}') for i in range(51)))
                self.assertTrue(await client.aexists('aio-7'))
                self.assertTrue(await client.aremove('aio-7'))
                room = bytearray(2)
                self.assertEqual(await client.aget_into('aio-10', room), 2)
                return values
        self.assertEqual(asyncio.run(main()), [b'%d' % i for i in range(50)] + [None])

    def test_other_threads_run_while_a_call_waits(self):
        server = self.cluster.servers[0]
        server.stand_still()
        counted = [0]
        done = threading.Event()

        def count():
            while not done.is_set():
                counted[0] += 1
        try:
            thread = threading.Thread(target=count)
            with ems.Client(self.cluster.address, transport='tcp') as client:
                thread.start()
                before = counted[0]
                begin = time.monotonic()
                self.client_waits(client)
                waited = time.monotonic() - begin
                self.assertGreater(waited, 0.2)
                self.assertGreater(counted[0] - before, 1000)
        finally:
            done.set()
            thread.join()
            server.go_on()

    def client_waits(self, client):
        with self.assertRaises((ems.errors.DeadlineExceeded, ems.errors.Unavailable)):
            for i in range(64):  # one of them belongs to the server that stands still
                client.get(f'anywhere-{i}', timeout=0.3)

    def test_closed_clients_and_namespaces_that_are_not_there(self):
        client = ems.Client(self.cluster.address)
        client.close()
        self.assertTrue(client.closed)
        with self.assertRaises(ems.errors.Unavailable):
            client.get('x')
        with self.assertRaises(ems.errors.NotFound):
            ems.Client(self.cluster.address, 'no-such-namespace')
        with self.assertRaises((ems.errors.Unavailable, ems.errors.DeadlineExceeded)):
            ems.Client('127.0.0.1:1', start_timeout=0.3)

    def test_a_controller_without_a_port_is_said_at_once_whoever_asks(self):
        with mock.patch.dict(os.environ, EMS_CONTROLLER='localhost'):
            for ask in (ems.Client, ems.ModelCache().list, lambda: EngineQueue({'model': 'm'})):
                with self.assertRaisesRegex(ems.errors.InvalidArgument, 'controller address "localhost".*localhost:PORT'):
                    ask()

    def test_a_process_ends_while_its_daemon_threads_are_inside_calls(self):
        script = ('import ems, sys, threading, time\n'
                  'client = ems.Client(sys.argv[1]); client.put("at-exit", b"x" * 100000, overwrite=True)\n'
                  'cache = ems.ContextCache(client, model="at-exit", block_tokens=16)\n'
                  'def loop(call):\n'
                  '    while True: call()\n'
                  'for call in (lambda: client.get("at-exit"), lambda: client.get_into("at-exit", bytearray(100000)),\n'
                  '             lambda: cache.lookup(list(range(32))), ems.Ems.check_health):\n'
                  '    threading.Thread(target=loop, args=(call,), daemon=True).start()\n'
                  'time.sleep(0.2)\n')
        for _ in range(5):
            run = subprocess.run([sys.executable, '-c', script, self.cluster.address],
                                 env={**os.environ, 'EMS_CONTROLLER': self.cluster.address}, capture_output=True, text=True,
                                 timeout=30, check=False)
            self.assertEqual((run.returncode, run.stderr), (0, ''))

    def test_a_child_of_fork_is_told_and_ends(self):
        script = ('import ems, os, sys\n'
                  'early = os.fork()\n'
                  'client = ems.Client(sys.argv[1]); client.put("forked", b"same")\n'
                  'if early == 0: sys.exit(0)\n'
                  'late = os.fork()\n'
                  'if late == 0:\n'
                  '    assert client.closed and not ems.Ems.check_health()\n'
                  '    try: ems.Client(sys.argv[1])\n'
                  '    except ems.errors.FailedPrecondition: sys.exit(0)\n'
                  '    sys.exit(1)\n'
                  'codes = [os.waitpid(pid, 0)[1] for pid in (early, late)]\n'
                  'sys.exit(codes != [0, 0] or client.get("forked") != b"same")\n')
        run = subprocess.run([sys.executable, '-c', script, self.cluster.address], env=os.environ, capture_output=True,
                             text=True, timeout=30, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_a_child_of_fork_leaves_the_connections_of_its_parent_alone(self):
        # The parent has taken its client's handle away: caches, views and loads have the connections still.
        script = ('import ems, os, sys\n'
                  'client = ems.Client(sys.argv[1], transport="tcp")\n'
                  'cache = ems.ContextCache(client, model="forked", block_tokens=16)\n'
                  'keys = cache.hash_tokens(range(32)); cache.save(keys, [b"1", b"2"]); view = client.view(keys[0])\n'
                  'if len(sys.argv) > 2: client.close()\n'
                  'child = os.fork()\n'
                  'if child == 0:\n'
                  '    for call in (lambda: cache.lookup(range(32)), lambda: cache.lookup_keys(keys),\n'
                  '                 lambda: cache.load(keys, [bytearray(1)] * 2), lambda: cache.save(keys, [b"1", b"2"])):\n'
                  '        try: call()\n'
                  '        except ems.errors.Unavailable: continue\n'
                  '        sys.exit(1)\n'
                  '    sys.exit(0)\n'
                  'assert os.waitpid(child, 0)[1] == 0\n'
                  'assert cache.lookup(range(32)).leading_blocks == 2\n')
        for more in ([], ['closed']):
            run = subprocess.run([sys.executable, '-c', script, self.cluster.address] + more, env=os.environ,
                                 capture_output=True, text=True, timeout=30, check=False)
            self.assertEqual((run.returncode, run.stderr), (0, ''))

    def test_connections_must_be_allowed(self):
        with self.assertRaises(ems.errors.InvalidArgument):
            ems.Client(self.cluster.address, connections_per_server=0)


if __name__ == '__main__':
    unittest.main()
