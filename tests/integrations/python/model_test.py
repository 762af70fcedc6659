"""ems.ModelCache against real daemons that read a folder: versions, jobs, files, memory."""
import asyncio
import functools
import http.server
import os
import subprocess
import sys
import threading
import unittest
import warnings

import numpy
from model_case import NORM, ModelCase, whole
from model_files import random_bytes, read, safetensors, write

import ems


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class ModelTest(ModelCase):
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

    def test_a_damaged_header_is_named(self):
        good = safetensors({'norm': ('F32', NORM.shape, NORM.tobytes())})
        for name, content in (('cut', good[:40]), ('text', b'x' * 100), ('hole', good[:-4]),
                              ('json', (5).to_bytes(8, 'little') + b'{{{{{' + b'0' * 8), ('gguf', None)):
            path = 'model.gguf' if content is None else 'model.safetensors'
            with self.assertRaisesRegex(ems.errors.InvalidArgument, path):
                self.add('py/bad-' + name, {path: content or b'GGUF' + b'\3\0\0\0' + b'\xff' * 16})

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


if __name__ == '__main__':
    unittest.main()
