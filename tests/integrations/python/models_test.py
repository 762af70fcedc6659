"""ems.ModelCache in numpy, against real daemons that read a folder: versions, jobs, files, memory, tensors."""
import asyncio
import functools
import http.server
import json
import os
import subprocess
import sys
import threading
import unittest
import warnings

import numpy
from cluster import Cluster, until
from model_files import gguf, random_bytes, read, safetensors, write

import ems

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

MATRIX = numpy.frombuffer(random_bytes(512 * 768 * 4, 1), numpy.uint32).reshape(512, 768)
NORM = numpy.arange(64, dtype=numpy.float32)
DTYPES = {'BOOL': numpy.bool_, 'U8': numpy.uint8, 'I8': numpy.int8, 'U16': numpy.uint16, 'I16': numpy.int16, 'I32': numpy.int32,
          'U32': numpy.uint32, 'I64': numpy.int64, 'U64': numpy.uint64, 'F16': numpy.float16, 'F32': numpy.float32,
          'F64': numpy.float64}
WITHOUT_NUMPY = {'BF16': ('bfloat16', numpy.uint16), 'F8_E4M3': ('float8_e4m3fn', numpy.uint8),
                 'F8_E5M2': ('float8_e5m2', numpy.uint8)}


def whole():
    """A file with a tensor of each dtype, a scalar and an empty tensor."""
    tensors = {'matrix': ('U32', MATRIX.shape, MATRIX.tobytes()), 'norm': ('F32', NORM.shape, NORM.tobytes()),
               'scalar': ('I64', (), numpy.int64(-5).tobytes()), 'empty': ('F16', (0, 3), b'')}
    for seed, (name, dtype) in enumerate(DTYPES.items()):
        content = bytes(i % 2 for i in range(24)) if name == 'BOOL' else random_bytes(24 * numpy.dtype(dtype).itemsize, seed)
        tensors['of ' + name] = (name, (4, 6), content)
    for seed, (name, (_, plain)) in enumerate(WITHOUT_NUMPY.items()):
        tensors['of ' + name] = (name, (4, 6), random_bytes(24 * numpy.dtype(plain).itemsize, 100 + seed))
    return tensors


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class ModelsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(servers=2, server_flags=['models.file_root={folder}']))
        cls.cache = cls.enterClassContext(ems.ModelCache(cls.cluster.address))

    def folder(self, name):
        return os.path.join(self.cluster.folder, name)

    def add(self, model, files, **options):
        write(self.folder(model), files)
        return self.cache.add(model, self.folder(model), 'v1', **options)

    def test_a_version_lives(self):
        added = self.add('py/life', {'model.safetensors': safetensors(whole()), 'config.json': b'{}'})
        self.assertEqual((added.name, added.files, added.pinned, added.job.state), ('py/life@v1', 2, False, 'none'))
        self.assertEqual(self.cache.files('py/life'), {'config.json': 2, 'model.safetensors': added.bytes - 2})
        self.assertIn('py/life@v1', [info.name for info in self.cache.list()])
        self.assertEqual(self.cache.check('py/life').absent_bytes, added.bytes)
        with self.assertRaises(ems.errors.FailedPrecondition):
            self.cache.wait_prefetched('py/life')
        self.cache.prefetch('py/life', 'v1', priority=5)
        seen = []
        done = self.cache.wait_prefetched('py/life@v1', on_progress=lambda *at: seen.append(at), timeout=60)
        self.assertEqual((done.job.state, done.job.source_bytes, seen[-1]), ('done', added.bytes, (added.bytes, added.bytes)))
        self.assertEqual(self.cache.check('py/life').dram_bytes, added.bytes)
        self.assertEqual(self.cache.progress('py/life').info.job.bytes_done, added.bytes)
        self.assertTrue(self.cache.pin('py/life').pinned)
        with self.assertRaises(ems.errors.FailedPrecondition):
            self.cache.remove('py/life', 'v1')
        self.assertFalse(self.cache.unpin('py/life').pinned)
        self.cache.remove('py/life', 'v1')
        for call in (lambda: self.cache.get('py/life'), lambda: self.cache.load_buffers('py/life'),
                     lambda: self.cache.safe_open('py/life'), lambda: self.cache.load_tensors('py/life'),
                     lambda: self.cache.load_files('py/life', self.folder('nowhere'))):
            with self.assertRaises(ems.errors.NotFound):
                call()

    def test_first_reads_are_verified_unless_that_is_refused(self):
        write(self.folder('py/plain'), {'config.json': b'{"plain": "http"}'})
        handler = functools.partial(QuietHandler, directory=self.folder('py/plain'))
        server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(lambda: (server.shutdown(), thread.join(), server.server_close()))
        url = f'http://127.0.0.1:{server.server_address[1]}/'
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            for verify, first_read in (('auto', 'twice unless checked'), ('always', 'twice'), (True, 'twice')):
                self.assertEqual(self.cache.add('py/plain@v1', url, verify=verify).first_read, first_read)
            self.assertEqual(self.cache.add('py/plain@v1', url).first_read, 'twice', 'a default takes nothing away')
        for verify in 'never', False:
            with self.assertWarnsRegex(RuntimeWarning, 'first read of 1 of 1 files is unprotected') as caught:
                self.assertEqual(self.cache.add('py/plain@v2', url, verify=verify).first_read, 'once')
            self.assertEqual(caught.filename, __file__)
        for verify in 'perhaps', 1, None:
            with self.assertRaisesRegex(ValueError, 'auto'):
                self.cache.add('py/plain@v3', url, verify=verify)
        self.cache.prefetch('py/plain@v1')
        self.assertEqual(self.cache.wait_prefetched('py/plain@v1').job.source_bytes, 2 * len(b'{"plain": "http"}'))

    def test_files_and_memory_hold_the_sources_bytes(self):
        files = {'model.safetensors': safetensors(whole()), 'sub/vocab.bin': random_bytes(70_000, 7), 'none': b''}
        self.add('py/files', files)
        stats = self.cache.load_files('py/files', self.folder('out'), fallback_to_source=False, timeout=60)
        self.assertEqual((stats.bytes, stats.source_bytes, stats.detour), (sum(map(len, files.values())), 0, ''))
        for path, content in files.items():
            self.assertEqual(read(self.folder('out'), path), content)
        self.cache.load_files('py/files', self.folder('one'), files=['none'], sync=False)
        self.assertEqual(os.listdir(self.folder('one')), ['none'])
        self.assertEqual({path: bytes(memory) for path, memory in self.cache.load_buffers('py/files').items()}, files)
        room = numpy.zeros(70_000, numpy.uint8)
        loaded = self.cache.load_buffers('py/files', files={'sub/vocab.bin': room, 'model.safetensors': None})
        self.assertIs(loaded['sub/vocab.bin'], room)
        self.assertEqual(room.tobytes(), files['sub/vocab.bin'])
        self.assertEqual(bytes(loaded['model.safetensors']), files['model.safetensors'])
        with self.assertRaisesRegex(ems.errors.InvalidArgument, 'room of 5 bytes'):
            self.cache.load_buffers('py/files', files={'sub/vocab.bin': bytearray(5)})
        with self.assertRaisesRegex(ems.errors.NotFound, 'no file nobody'):
            self.cache.load_buffers('py/files', files=['nobody'])
        with self.assertRaises((TypeError, BufferError)):
            self.cache.load_buffers('py/files', files={'none': b''})
        with self.assertRaisesRegex(TypeError, 'no option speed'):
            self.cache.load_files('py/files', self.folder('out'), speed=9)

    def test_tensors_of_each_dtype_are_the_files(self):
        self.add('py/dtypes', {'model.safetensors': safetensors(whole(), {'format': 'pt'})})
        with self.cache.safe_open('py/dtypes') as tensors:
            self.assertEqual(tensors.keys(), sorted(whole()))
            self.assertEqual(tensors.offset_keys()[:2], ['matrix', 'norm'])
            self.assertEqual(tensors.metadata(), {'format': 'pt'})
            self.assertTrue('norm' in tensors and 'nobody' not in tensors and len(tensors) == len(whole()))
            found = {name: tensors.get_tensor(name) for name in tensors}
            with self.assertRaisesRegex(ems.errors.NotFound, 'no tensor nobody'):
                tensors.get_tensor('nobody')
        with self.assertRaises(ems.errors.InvalidArgument):
            tensors.keys()
        streamed = dict(self.cache.load_tensors('py/dtypes'))
        self.assertEqual(set(streamed), set(whole()))
        for name, (dtype, shape, content) in whole().items():
            for tensor in (found[name], streamed[name]):
                self.assertEqual((tensor.shape, tensor.tobytes()), (tuple(shape), content), name)
                if dtype in DTYPES:
                    self.assertEqual(tensor.dtype, DTYPES[dtype], name)
                else:
                    own, plain = WITHOUT_NUMPY[dtype]
                    self.assertEqual(tensor.dtype, getattr(ml_dtypes, own) if ml_dtypes else plain)
        found['norm'][0] = 77  # its own memory, which stays
        self.assertEqual(found['norm'][0], 77)
        del streamed

    def test_slices_are_those_of_numpy(self):
        self.add('py/slices', {'model.safetensors': safetensors(whole())})
        with self.cache.safe_open('py/slices') as tensors:
            part = tensors.get_slice('matrix')
            self.assertEqual((part.get_shape(), part.get_dtype()), ([512, 768], 'U32'))
            for index in (slice(None), slice(3, 9), (slice(None), slice(100, 103)), (slice(500, None), slice(-7, None)), 5, (-1, -1),
                          (Ellipsis, 4), (7, Ellipsis), slice(9, 3), (slice(2, 300), 3), (), numpy.int64(4), slice(-900, 900)):
                wanted = MATRIX[index]
                self.assertTrue(numpy.array_equal(part[index], wanted), index)
                self.assertEqual(part[index].shape, wanted.shape, index)
            self.assertEqual(tensors.get_slice('scalar')[...], -5)
            for index, error in ((slice(None, None, 2), IndexError), ((0, 0, 0), IndexError), (512, IndexError), ('a', TypeError)):
                with self.assertRaises(error):
                    part[index]

    def test_ranks_get_what_split_gives(self):
        self.add('py/ranks', {'model.safetensors': safetensors(whole())}, block_bytes=64 << 10)
        for axis in (0, 1, -1):
            for rank in range(4):
                load = self.cache.load_tensors('py/ranks', names=['matrix', 'norm'], rank=rank, ranks=4,
                                               axis={'matrix': axis}, order='file', fallback_to_source=False)
                (first, matrix), (second, norm) = load
                self.assertEqual((first, second), ('matrix', 'norm'))
                self.assertTrue(numpy.array_equal(matrix, numpy.split(MATRIX, 4, axis)[rank]))
                self.assertTrue(numpy.array_equal(norm, NORM))
                self.assertEqual(load.stats().bytes, matrix.nbytes + norm.nbytes)
        sliced = dict(self.cache.load_tensors('py/ranks', names=['matrix', 'norm'], rank=1, ranks=2, axis=1))
        self.assertEqual((sliced['matrix'].shape, sliced['norm'].shape), ((512, 384), (64,)))  # norm has no axis 1
        by_shape = self.cache.load_tensors('py/ranks', names=['norm'], rank=1, ranks=2,
                                           axis=lambda name, shape: 0 if shape == [64] else None)
        self.assertTrue(numpy.array_equal(dict(by_shape)['norm'], NORM[32:]))
        with self.assertRaisesRegex(ems.errors.InvalidArgument, 'cannot share evenly'):
            dict(self.cache.load_tensors('py/ranks', names=['norm'], rank=0, ranks=3))
        for wrong in ({'rank': 2, 'ranks': 2}, {'order': 'size'}, {'framework': 'tf'}, {'device': 'cuda'},
                      {'ranks': 2, 'axis': {'norm': 4}, 'names': ['norm']}):
            with self.assertRaises(ems.errors.InvalidArgument):
                self.cache.load_tensors('py/ranks', **wrong)

    def test_gguf(self):
        quantised = random_bytes(4 * 2 * 34, 3)  # 2 blocks of 32 elements a row
        self.add('py/gguf', {'model.gguf': gguf({'blk.0.w': ('F32', NORM.reshape(8, 8).shape, NORM.tobytes()),
                                                 'blk.0.q': ('Q8_0', (4, 64), quantised)}, {'general.name': 'tiny'})})
        with self.cache.safe_open('py/gguf') as tensors:
            self.assertEqual(tensors.metadata()['general.name'], 'tiny')
            self.assertTrue(numpy.array_equal(tensors.get_tensor('blk.0.w'), NORM.reshape(8, 8)))
            bits = tensors.get_tensor('blk.0.q')
            self.assertEqual((bits.dtype, bits.shape, bits.tobytes()), (numpy.uint8, (4, 68), quantised))
            self.assertEqual(tensors.get_slice('blk.0.q').get_dtype(), 'Q8_0')
            with self.assertRaisesRegex(ems.errors.InvalidArgument, 'blocks of 32'):
                tensors.get_slice('blk.0.q')[0]
        half = dict(self.cache.load_tensors('py/gguf', names=['blk.0.q'], rank=1, ranks=2))['blk.0.q']
        self.assertEqual(half.tobytes(), quantised[len(quantised) // 2:])

    def test_an_index_says_which_shard_has_a_tensor(self):
        def one(value):
            return safetensors({'shared': ('U8', (4,), value * 4), 'own' + value.decode(): ('U8', (1,), value)})

        def index(**where):
            return json.dumps({'metadata': {}, 'weight_map': where}).encode()
        shards = {'a.safetensors': one(b'a'), 'b.safetensors': one(b'b')}
        self.add('py/sharded', dict(shards, **{'model.safetensors.index.json': index(
            shared='b.safetensors', owna='a.safetensors', ownb='b.safetensors')}))
        with self.cache.safe_open('py/sharded') as tensors:
            self.assertEqual(tensors.keys(), ['owna', 'ownb', 'shared'])
            self.assertEqual(tensors.get_tensor('shared').tobytes(), b'bbbb')
        with self.cache.safe_open('py/sharded', files=['a.safetensors']) as tensors:
            self.assertEqual(tensors.keys(), ['owna'])
        self.add('py/two', shards)
        with self.assertRaisesRegex(ems.errors.InvalidArgument, 'shared is in a.safetensors and in b.safetensors'):
            self.cache.safe_open('py/two')
        self.assertEqual(self.cache.safe_open('py/two', files=['a.safetensors']).get_tensor('shared').tobytes(), b'aaaa')
        self.add('py/lying', dict(shards, **{'model.safetensors.index.json': index(nobody='a.safetensors')}))
        with self.assertRaisesRegex(ems.errors.InvalidArgument, 'looks for nobody in a.safetensors'):
            self.cache.safe_open('py/lying')
        self.add('py/broken', dict(shards, **{'model.safetensors.index.json': b'{"weight_map": 5'}))
        with self.assertRaisesRegex(ems.errors.InvalidArgument, 'is no index'):
            self.cache.safe_open('py/broken')

    def test_a_damaged_header_is_named(self):
        good = safetensors({'norm': ('F32', NORM.shape, NORM.tobytes())})
        for name, content in (('cut', good[:40]), ('text', b'x' * 100), ('hole', good[:-4]),
                              ('json', (5).to_bytes(8, 'little') + b'{{{{{' + b'0' * 8), ('gguf', None)):
            path = 'model.gguf' if content is None else 'model.safetensors'
            with self.assertRaisesRegex(ems.errors.InvalidArgument, path):
                self.add('py/bad-' + name, {path: content or b'GGUF' + b'\3\0\0\0' + b'\xff' * 16})

    def test_another_version_does_not_change_what_is_open(self):
        self.add('py/versions', {'model.safetensors': safetensors({'t': ('U8', (1,), b'1')})})
        tensors = self.cache.safe_open('py/versions')
        write(self.folder('newer'), {'model.safetensors': safetensors({'t': ('U8', (1,), b'2')})})
        self.cache.add('py/versions@v2', self.folder('newer'))
        self.assertEqual((tensors.name, tensors.get_tensor('t').tobytes()), ('py/versions@v1', b'1'))
        self.assertEqual(self.cache.safe_open('py/versions').get_tensor('t').tobytes(), b'2')

    def test_threads_share_an_open_version(self):
        self.add('py/threads', {'model.safetensors': safetensors(whole())})
        tensors, wrong = self.cache.safe_open('py/threads'), []

        def look():
            for name, (_, _, content) in whole().items():
                if tensors.get_tensor(name).tobytes() != content:
                    wrong.append(name)
        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_asyncio(self):
        self.add('py/async', {'model.safetensors': safetensors(whole())})

        async def main():
            await self.cache.aprefetch('py/async')
            info = await self.cache.await_prefetched('py/async', timeout=60)
            self.assertEqual((await self.cache.acheck('py/async')).dram_bytes, info.bytes)
            loaded, stats = await asyncio.gather(self.cache.aload_buffers('py/async'),
                                                 self.cache.aload_files('py/async', self.folder('async')))
            self.assertEqual(len(loaded['model.safetensors']), stats.bytes)
            async with self.cache.load_tensors('py/async') as load:
                return {name: tensor.tobytes() async for name, tensor in load}
        self.assertEqual(asyncio.run(main()), {name: content for name, (_, _, content) in whole().items()})

    def test_a_closed_cache_and_a_forked_child_say_so(self):
        cache = ems.ModelCache(self.cluster.address)
        cache.close()
        self.assertTrue(cache.closed)
        with self.assertRaises(ems.errors.Unavailable):
            cache.list()
        child = '''
import os, sys
import ems
cache = ems.ModelCache(sys.argv[1])
cache.list()
tensors = cache.safe_open('py/fork')
pid = os.fork()
if pid == 0:
    told = 0
    for call in (cache.list, lambda: tensors.get_tensor('t'), lambda: ems.ModelCache(sys.argv[1])):
        try:
            call()
        except ems.errors.Error:
            told += 1
    os._exit(told)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), tensors.get_tensor('t'))
'''
        self.add('py/fork', {'model.safetensors': safetensors({'t': ('U8', (1,), b'\5')})})
        run = subprocess.run([sys.executable, '-c', child, self.cluster.address], capture_output=True, text=True, timeout=60,
                             check=False)
        self.assertEqual((run.returncode, run.stdout), (0, '3 [5]\n'), run.stderr)


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
