"""ems.Client, ems.ContextCache and ems.KvLayout against real daemons."""
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
from npu_tensor import NpuTensor

import ems
from ems.engine_queue import EngineQueue

try:
    import torch
except ImportError:
    torch = None


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2).__enter__()
        cls.client = ems.Client(cls.cluster.address)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.cluster.stop()

    def test_values_come_from_and_go_to_whatever_is_memory(self):
        array = numpy.arange(30000, dtype=numpy.float64).reshape(100, 300)
        tensor = NpuTensor((4, 1000))
        tensor.host()[:] = 513
        for name, value, want in (('bytes', b'abc', b'abc'), ('bytearray', bytearray(b'abd'), b'abd'),
                                  ('view', memoryview(b'xabe')[1:], b'abe'), ('array', array, array.tobytes()),
                                  ('tensor', tensor, b'\x01\x02' * 4000), ('list', [b'ab', array[0]], b'ab' + array[0].tobytes()),
                                  ('empty', b'', b'')):
            with self.subTest(name):
                self.client.put('value-' + name, value)
                self.assertEqual(self.client.get('value-' + name), want)
                self.assertEqual(self.client.stat('value-' + name), len(want))
        into = numpy.zeros_like(array)
        self.assertEqual(self.client.get_into('value-array', into), array.nbytes)
        self.assertTrue((into == array).all())
        halves = [bytearray(120000), numpy.zeros(15000)]
        self.assertEqual(self.client.get_into('value-array', halves), array.nbytes)
        self.assertEqual(bytes(halves[0]) + halves[1].tobytes(), array.tobytes())
        part = bytearray(800)
        self.assertTrue(self.client.get_range('value-array', 2400, part))
        self.assertEqual(part, array[1, :100].tobytes())

    def test_what_is_no_memory_is_refused(self):
        for value in ('text', 5, None, numpy.zeros((4, 4))[:, 1]):
            with self.assertRaises((TypeError, BufferError, ValueError)):
                self.client.put('refused', value)
        with self.assertRaises((TypeError, BufferError)):
            self.client.get_into('refused', b'read-only')
        self.assertIsNone(self.client.get('refused'))

    def test_names_that_no_utf8_holds_are_refused_in_our_own_words(self):
        bad = 'a\ud800b'
        for call in (lambda: self.client.put(bad, b'x'), lambda: self.client.get(bad), lambda: self.client.exists(bad),
                     lambda: self.client.get('key', route_key=bad), lambda: self.client.multi_exists(['key', bad]),
                     lambda: self.client.multi_put({bad: b'x'}), lambda: ems.Client(bad), lambda: ems.Client(namespace=bad),
                     lambda: ems.ContextCache(self.client, model=bad), lambda: ems.ContextCache(self.client, model='m', lora=bad),
                     lambda: ems.ContextCache(self.client, model='m', custom={'name': bad}),
                     lambda: ems.ContextCache(self.client, model='m').own_key(bad)):
            with self.assertRaisesRegex(ems.errors.InvalidArgument, 'surrogates'):
                call()
        with self.assertRaisesRegex(ems.errors.InvalidArgument, 'tp_rank is -1'):
            ems.ContextCache(self.client, model='m', tp_rank=-1)
        with self.assertRaisesRegex(TypeError, 'str or bytes, not int'):
            self.client.get(5)

    def test_memory_of_python_objects_is_refused(self):
        objects = numpy.array(['a', None], dtype=object)
        fields = numpy.zeros(2, dtype=[('n', numpy.int32), ('any', object)])
        mixed = numpy.zeros(2, dtype=[('when', 'M8[s]'), ('any', object)])  # without a format
        for array in (objects, memoryview(objects), fields, mixed, [b'bytes', objects]):
            with self.assertRaises(TypeError):
                self.client.put('objects', array)
        with self.assertRaises(TypeError):
            self.client.get_into('objects', objects)
        self.assertFalse(self.client.exists('objects'))
        for name, array in (('times', numpy.array([5, 6], dtype='M8[s]')),
                            ('names', numpy.zeros(3, dtype=[('O', numpy.int8)]))):
            self.client.put(name, array)
            self.assertEqual(self.client.get(name), array.tobytes())

    @unittest.skipIf(torch is None, 'torch is not installed')
    def test_torch_tensors_on_the_cpu(self):
        tensor = torch.arange(1000, dtype=torch.bfloat16)
        self.client.put('torch', tensor)
        into = torch.zeros(1000, dtype=torch.bfloat16)
        self.assertEqual(self.client.get_into('torch', into), 2000)
        self.assertTrue(torch.equal(into, tensor))
        with self.assertRaises(BufferError):
            self.client.put('torch-strided', torch.zeros(4, 4)[:, 1])

    def test_misses_are_no_errors_and_errors_have_codes(self):
        self.assertIsNone(self.client.get('nobody'))
        self.assertIsNone(self.client.get_into('nobody', bytearray(1)))
        self.assertIsNone(self.client.view('nobody'))
        self.assertFalse(self.client.get_range('nobody', 0, bytearray(1)))
        self.assertFalse(self.client.exists('nobody'))
        self.assertFalse(self.client.remove('nobody'))
        self.client.put('coded', b'one')
        with self.assertRaises(ems.errors.AlreadyExists) as caught:
            self.client.put('coded', b'two')
        self.assertEqual(caught.exception.code, 'ALREADY_EXISTS')
        self.client.put('coded', b'two', overwrite=True)
        with self.assertRaises(ems.errors.OutOfRange):
            self.client.get_into('coded', bytearray(2))
        with self.assertRaises(ems.errors.InvalidArgument):
            self.client.put('', b'x')
        with self.assertRaises(ValueError):
            self.client.get('coded', timeout=-1)
        with self.assertRaises(ValueError):
            self.client.get('coded', verify='perhaps')
        self.assertTrue(self.client.remove('coded'))

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
        self.fail('it was let go each time, under the eyes of verify()')

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

    def test_a_list_that_changes_while_it_is_read(self):
        values = []

        class Tensor(NpuTensor):
            def data_ptr(self):
                values[1:] = ['no memory']
                return super().data_ptr()

        values += [Tensor((4,), 'int8'), b'rest']
        self.client.put('changing', values)
        self.assertEqual(self.client.get('changing'), bytes(4) + b'rest')


class ContextCacheTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2).__enter__()
        cls.client = ems.Client(cls.cluster.address)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.cluster.stop()

    def test_keys_are_chained_and_of_their_domain(self):
        cache = ems.ContextCache(self.client, model='chained', block_tokens=16)
        keys = cache.hash_tokens(range(40))
        self.assertEqual(len(keys), 2)
        self.assertEqual(cache.hash_tokens(numpy.arange(40)), keys)
        self.assertEqual(cache.hash_tokens(list(range(16, 32)), keys[0]), keys[1:])
        other = ems.ContextCache(self.client, model='chained', block_tokens=16, tp_rank=1, tp_size=2)
        self.assertFalse(set(keys) & set(other.hash_tokens(range(40))))
        with self.assertRaises(ems.errors.InvalidArgument):
            ems.ContextCache(self.client, model='m', tp_rank=2, tp_size=2)

    def test_save_then_lookup_then_load(self):
        cache = ems.ContextCache(self.client, model='saved', block_tokens=16)
        tokens = list(range(100, 180))
        keys = cache.hash_tokens(tokens)
        self.assertEqual(cache.lookup(tokens).leading_blocks, 0)
        blocks = [[bytes([i]) * 500, numpy.full(125, i, numpy.int32)] for i in range(5)]
        saved = cache.save(keys[:3], blocks[:3])
        self.assertEqual((saved.stored, saved.existing), (3, 0))
        saved = asyncio.run(cache.asave(keys[:4], blocks[:4]))
        self.assertEqual((saved.stored, saved.existing), (1, 3))
        self.client.remove(keys[1])
        self.assertEqual(cache.lookup(tokens).leading_blocks, 1)
        into = [bytearray(1000) for _ in keys]
        loaded = cache.load(keys, into)
        self.assertEqual(loaded.leading_blocks, 1)
        self.assertEqual(loaded.blocks, [1000, None, 1000, 1000, None])
        self.assertEqual(into[3], b''.join(bytes(part) for part in blocks[3]))
        self.assertEqual(asyncio.run(cache.alookup(tokens)).keys, keys)

    def test_paged_blocks_move_between_layouts_with_other_pages(self):
        def layers(blocks):
            return [[NpuTensor((blocks, 16, 2, 8)), NpuTensor((blocks, 16, 1, 4))] for _ in range(3)]
        mine, yours = layers(6), layers(4)
        for n, layer in enumerate(mine):
            for t, tensor in enumerate(layer):
                flat = tensor.host().reshape(-1)
                flat[:] = numpy.arange(flat.size) + 10000 * n + 3000 * t
        source, target = ems.KvLayout(mine), ems.KvLayout(yours)
        self.assertEqual(source.fingerprint, target.fingerprint)
        self.assertEqual(source.block_bytes(16), 3 * 16 * (2 * 8 + 4) * 2)
        cache = ems.ContextCache(self.client, model='paged', kv_layout=source.fingerprint, block_tokens=16)
        keys = cache.hash_tokens(range(32))
        slots = list(range(64, 80)) + list(range(32, 48))
        self.assertEqual(cache.save_paged(source, keys, slot_mapping=slots).stored, 2)
        loaded = cache.load_paged(target, keys, runs=[[(16, 16)], [(0, 8), (40, 8)]])
        self.assertEqual(loaded.leading_blocks, 2)
        for layer, other in zip(mine, yours):
            for tensor, copy in zip(layer, other):
                self.assertTrue((copy.host()[1] == tensor.host()[4]).all())
                self.assertTrue((copy.host()[0, :8] == tensor.host()[2, :8]).all())
                self.assertTrue((copy.host()[2, 8:] == tensor.host()[2, 8:]).all())
                self.assertFalse(copy.host()[3].any())
        with self.assertRaises(ems.errors.OutOfRange):
            cache.load_paged(target, keys[:1], runs=[[(63, 16)]])
        with self.assertRaises(ValueError):
            cache.load_paged(target, keys, slot_mapping=[1, 2, 3])

    def test_layer_groups_have_pages_of_their_own(self):
        layers = [[numpy.arange(4 * 16 * 8, dtype=numpy.float32).reshape(4, 16, 1, 8)],
                  [numpy.arange(8 * 8 * 4, dtype=numpy.float32).reshape(8, 8, 1, 4)]]
        layout = ems.KvLayout(layers, groups=[0, 1])
        cache = ems.ContextCache(self.client, model='grouped', kv_layout=layout.fingerprint)
        key = cache.own_key('block')
        self.assertEqual(cache.save_paged(layout, [key], runs=[[[(0, 16)], [(8, 8)]]]).stored, 1)
        self.assertEqual(self.client.get(key), layers[0][0][0].tobytes() + layers[1][0][1].tobytes())

    def test_a_slot_is_written_once_and_read_as_often_as_one_likes(self):
        tensor = numpy.arange(4 * 16 * 8, dtype=numpy.float32).reshape(4, 16, 1, 8)
        layout = ems.KvLayout([[tensor]])
        cache = ems.ContextCache(self.client, model='twice', kv_layout=layout.fingerprint, block_tokens=16)
        keys = cache.hash_tokens(range(32))
        self.assertEqual(cache.save_paged(layout, keys, runs=[[(0, 16)], [(0, 16)]]).stored, 2)
        before = tensor.copy()
        for where in ({'runs': [[(16, 16)], [(31, 16)]]}, {'runs': [[(0, 8), (0, 8)], [(16, 16)]]},
                      {'slot_mapping': list(range(16)) * 2}):
            with self.assertRaisesRegex(ems.errors.InvalidArgument, 'slot'):
                cache.load_paged(layout, keys, **where)
        self.assertTrue((tensor == before).all())
        self.assertEqual(cache.load_paged(layout, keys, runs=[[(16, 16)], [(32, 16)]]).leading_blocks, 2)

    def test_runs_that_change_while_they_are_read(self):
        layout = ems.KvLayout([[numpy.zeros((4, 16, 1, 8), numpy.float32)]])
        cache = ems.ContextCache(self.client, model='changing', kv_layout=layout.fingerprint, block_tokens=16)

        class Slot:
            def __index__(self):
                runs[1:] = groups[1:] = ['no run']
                return 0

        runs = [(Slot(), 8), (8, 8)]
        groups = [runs]
        self.assertEqual(cache.save_paged(layout, cache.hash_tokens(range(16)), runs=[groups]).stored, 1)

    def test_a_cache_of_another_layout_is_refused(self):
        layout = ems.KvLayout([[numpy.zeros((2, 16, 1, 8), numpy.float32)]])
        for kv_layout in ('', 'another'):
            cache = ems.ContextCache(self.client, model='unlike', kv_layout=kv_layout, block_tokens=16)
            for call in (cache.load_paged, cache.save_paged):
                with self.assertRaises(ems.errors.InvalidArgument) as caught:
                    call(layout, cache.hash_tokens(range(16)), runs=[[(0, 16)]])
                self.assertIn(f'"{kv_layout}"', str(caught.exception))
                self.assertIn(layout.fingerprint, str(caught.exception))

    def test_tensors_that_are_no_kv_are_refused(self):
        for dtype in (object, 'float64', 'int64', 'uint16', 'bool', 'complex64', '>f4', 'M8[s]', [('n', 'f4')]):
            with self.assertRaises(ems.errors.InvalidArgument):
                ems.KvLayout([[numpy.zeros((2, 16, 1, 8), dtype)]])
        for dtype in ('float32', 'float16', 'int8', 'uint8'):
            self.assertEqual(ems.KvLayout([[numpy.zeros((2, 16, 1, 8), dtype)]]).layers, 1)
        array = numpy.zeros((2, 16, 1, 8), numpy.float32)
        array.flags.writeable = False
        with self.assertRaisesRegex(ems.errors.InvalidArgument, 'read-only'):
            ems.KvLayout([[array]])

    def test_layouts_that_make_no_sense_are_refused(self):
        for layers in ([], [[]], [[numpy.zeros((2, 16, 4))[:, :, ::2]]], [[numpy.zeros(5)]], [['tensor']]):
            with self.assertRaises((ValueError, TypeError)):
                ems.KvLayout(layers)

    def test_groups_that_are_not_there_are_refused(self):
        tensors = [[numpy.zeros((2, 16, 1, 4), numpy.float32)]]
        layout = ems.KvLayout(tensors)
        self.assertEqual((layout.slots(), layout.block_tokens(), layout.block_bytes(16)), (32, 16, 256))
        for group in (1, -1, 10 ** 9, 2 ** 40):
            for call in (layout.slots, layout.block_tokens, lambda group: layout.block_bytes(16, group),
                         lambda group: ems.KvLayout(tensors, groups=[group])):
                with self.assertRaises(ems.errors.InvalidArgument):
                    call(group)

    def test_arrays_without_bytes_are_no_ints(self):
        cache = ems.ContextCache(self.client, model='void')
        for dtype in ('V0', []):
            with self.assertRaises(TypeError):
                cache.hash_tokens(numpy.empty(3, dtype))


if __name__ == '__main__':
    unittest.main()
