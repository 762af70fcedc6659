#!/usr/bin/env python3
"""Model caching end to end where it is about room, sharing and numbers: versions that share tensors, models that are
larger than the pool, pins, many clients at once, jobs that are cancelled, versions that are removed, odd names, many
blocks."""
import os
import shutil
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
from model_testing import (  # noqa: E402
    Cluster, Proxy, KiB, MiB, difference, nginx, random_bytes, safetensors, tensors_of, total, wait_until, write_files)


class LimitsTest(unittest.TestCase):
    def begin(self, servers=2, controller=None, **server):
        self.cluster = self.enterContext(Cluster(servers, server=server, controller=controller))
        self.www = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), 'www')
        os.mkdir(self.www)
        self.proxy = self.enterContext(Proxy(self.enterContext(nginx(self.www))))

    def publish(self, place, files):
        write_files(os.path.join(self.www, place), files)
        return f'http://127.0.0.1:{self.proxy.port}/m/{place}/'

    def test_versions_that_differ_in_one_tensor_of_a_hundred(self):
        self.begin(**{'ssd.capacity_bytes': '512MiB'})
        tensors = tensors_of(100, 192 * KiB, 5)
        versions = {'v1': {'model.safetensors': safetensors(tensors)}}
        tensors['layers.42.weight'] = random_bytes(192 * KiB, 6)
        versions['v2'] = {'model.safetensors': safetensors(tensors)}
        used = {}
        for version, files in versions.items():
            self.cluster.add(f'm@{version}', self.publish(version, files))
            self.cluster.prefetch(f'm@{version}')
            self.cluster.load(f'm@{version}', files)
            print(version, self.cluster.check(f'm@{version}'))
        for i in range(2):
            print(self.cluster.emsctl('server-stats', f'server-{i}').out)

    def test_a_model_that_is_larger_than_the_pool(self):
        self.begin(**{'dram.bytes': '16MiB'})
        files = {'model.safetensors': safetensors(tensors_of(192, 256 * KiB, 8))}
        self.cluster.add('m@v1', self.publish('m', files), '--block', '256KiB')
        self.proxy.reset()
        loaded = self.cluster.load('m@v1', files)
        print(loaded, self.proxy.body_bytes / total(files))
        self.proxy.reset()
        loaded = self.cluster.load('m@v1', files)
        print(loaded, self.proxy.body_bytes / total(files))
        self.proxy.reset()
        job = self.cluster.prefetch('m@v1')['job']
        print(job, self.proxy.body_bytes / total(files))
        print(self.cluster.check('m@v1'))
        loaded = self.cluster.load('m@v1', files)
        print(loaded, self.proxy.body_bytes / total(files))

    def test_a_pinned_version_stays_until_it_is_unpinned(self):
        self.begin(**{'dram.bytes': '32MiB'})
        files = {'model.safetensors': safetensors(tensors_of(40, 256 * KiB, 9))}
        self.cluster.add('pinned@v1', self.publish('pinned', files), '--block', '256KiB')
        self.assertEqual(self.cluster.emsctl('model', 'pin', 'pinned@v1').code, 0)
        self.cluster.prefetch('pinned@v1')
        print(self.cluster.check('pinned@v1'))

        def press(round):
            for i in range(3):
                name = f'other-{round}-{i}@v1'
                others = {'model.safetensors': safetensors(tensors_of(100, 256 * KiB, 100 * round + i))}
                self.cluster.add(name, self.publish(name, others), '--block', '256KiB')
                self.cluster.prefetch(name)
            value = os.path.join(self.cluster.folder, 'value')
            for i in range(60):
                with open(value, 'wb') as file:
                    file.write(random_bytes(MiB, i + 1000 * round))
                answer = self.cluster.emsctl('put', f'kv-{round}-{i}', value)
                self.assertEqual(answer.code, 0, answer)
        press(1)
        self.assertEqual(self.cluster.check('pinned@v1')['dram_bytes'], total(files))
        self.assertEqual(self.cluster.emsctl('model', 'unpin', 'pinned@v1').code, 0)
        press(2)
        print(self.cluster.check('pinned@v1'))
        self.assertLess(self.cluster.check('pinned@v1')['dram_bytes'], total(files))

    def test_eight_clients_at_once(self):
        self.begin()
        files = {'config.json': b'{}', 'model.safetensors': safetensors(tensors_of(40, 256 * KiB, 10))}
        url = self.publish('m', files)
        for command in (('add', 'm@v1', url, '--block', '256KiB'), ('prefetch', 'm@v1', '--wait')):
            before = self.proxy.body_bytes
            for call in [self.cluster.call('model', *command) for _ in range(8)]:
                answer = call.wait()
                self.assertEqual(answer.code, 0, answer)
        self.assertEqual(self.proxy.body_bytes - before, total(files))
        folders = [tempfile.mkdtemp(dir=self.cluster.folder) for _ in range(8)]
        for folder, call in [(f, self.cluster.call('model', 'load', 'm', f, '--verify')) for f in folders]:
            self.assertEqual(call.wait().code, 0)
            self.assertEqual(difference(folder, files), [])
        self.assertEqual(self.proxy.body_bytes - before, total(files))

    def test_odd_names(self):
        self.begin()
        odd = {'sp ace/a+b=c&d?e#f%20.bin': random_bytes(70_000, 1), 'päth/日本.bin': random_bytes(10, 2),
               'config.json': b'{}'}
        folder = os.path.join(self.cluster.models, 'odd name ü')
        write_files(folder, odd)
        url = self.publish('o d+d', odd)
        flags = [part for path in odd for part in ('--file', path)]
        for name, source, more in (('team/odd-1.0_x@v1.0-rc_1', folder, []), ('odd@v2', url, flags)):
            answer = self.cluster.emsctl('model', 'add', name, source, *more)
            print(name, answer)
            if answer.code == 0:
                self.cluster.prefetch(name)
                self.cluster.load(name, odd)
        for name in ('a b@v1', '../x@v1', 'x@../v', 'ü@v1', '@v1', 'a@', 'a@b@c', 'x' * 300 + '@v1', '-x@v', 'a\n@v'):
            answer = self.cluster.emsctl('model', 'add', '--', name, folder)
            print(repr(name), answer)

    def test_a_hundred_thousand_blocks(self):
        self.begin(servers=2)
        folder = os.path.join(self.cluster.models, 'many')
        begin = time.monotonic()
        for i in range(100):
            write_files(folder, {f'{i}/{j}.bin': b'%d/%d' % (i, j) for j in range(998)})
        steps = {'write': time.monotonic() - begin}

        def step(name, *command):
            answer = self.cluster.emsctl(*command, seconds=100)
            self.assertEqual(answer.code, 0, answer)
            steps[name] = answer.seconds
            return answer
        print(step('add', 'model', 'add', 'many@v1', folder).out)
        step('prefetch', 'model', 'prefetch', 'many@v1', '--wait')
        step('check', 'model', 'check', 'many@v1')
        step('load', 'model', 'load', 'many@v1', '-')
        step('again', 'model', 'prefetch', 'many@v1', '--wait')
        step('show', 'model', 'show', 'many@v1')
        print(steps)


if __name__ == '__main__':
    unittest.main()
