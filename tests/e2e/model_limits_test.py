#!/usr/bin/env python3
"""Model caching end to end where it is about room, sharing and numbers: versions that share tensors, models that are
larger than the pool, pins, many clients at once, jobs that are cancelled, versions that are removed, odd names, many
blocks."""
import os
import signal
import sys
import tempfile
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

    def test_a_job_names_the_servers_that_could_not_do_their_part(self):
        self.begin()
        folder = self.enterContext(tempfile.TemporaryDirectory())  # not below models.file_root
        write_files(folder, {'w': random_bytes(2 * MiB, 1)})
        self.cluster.add('m@v1', folder, '--block', '64KiB')
        answer = self.cluster.emsctl('model', 'prefetch', 'm@v1', '--wait')
        self.assertEqual(answer.code, 1, answer)
        shown = self.cluster.emsctl('model', 'show', 'm@v1')
        for i in range(2):
            self.assertIn(f'server "server-{i}": {folder}: not below models.file_root', answer.err)
            self.assertIn(f'server "server-{i}": PERMISSION_DENIED: ', shown.out)
        job = self.cluster.emsctl('model', 'show', 'm@v1', '--json').json['job']
        self.assertEqual([one['server'] for one in job['failures']], ['server-0', 'server-1'])

    def test_a_job_ends_at_its_deadline_and_the_next_one_goes_on(self):
        self.begin()
        files = {'w': random_bytes(4 * MiB, 1)}
        self.cluster.add('m@v1', self.publish('m', files), '--file', 'w', '--block', '64KiB', '--no-verify')
        self.proxy.hold_after(MiB)
        answer = self.cluster.emsctl('model', 'prefetch', 'm@v1', '--wait', '--timeout', '2')
        self.assertEqual(answer.code, 4, answer)
        self.assertRegex(answer.err, r'DEADLINE_EXCEEDED: m@v1: server "server-\d": not ready after 2 s: \d+ blocks in DRAM')
        self.proxy.let_go()
        self.cluster.prefetch('m@v1')
        self.cluster.load('m@v1', files)
        for bad in ('0.9', '86401'):
            self.assertEqual(self.cluster.emsctl('model', 'prefetch', 'm@v1', '--timeout', bad).code, 2)

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
            wait_until(lambda: self.stats('ssd', 'dirty_bytes') == 0, 'SSD that has everything')
            used[version] = [self.stats('dram'), self.stats('ssd', 'value_bytes')]
        for first, both in zip(*used.values()):
            self.assertGreaterEqual(first, total(versions['v1']))
            self.assertLessEqual(both, 1.03 * first)
        check = self.cluster.check('m@v2')
        self.assertGreaterEqual(check['shared_bytes'], 0.97 * check['bytes'])
        self.assertIn('other versions', self.cluster.emsctl('model', 'check', 'm@v2').out)

    def stats(self, what, name=None):
        """The sum over the servers."""
        found = [self.cluster.emsctl('node', 'show', f'server-{i}', '--json').json['stats'] for i in range(2)]
        if what == 'dram':
            return sum(space['value_bytes'] for one in found for space in one['namespaces'])
        return sum(one[what][name] for one in found)

    def test_a_model_that_is_larger_than_the_pool(self):
        self.begin(**{'dram.bytes': '16MiB'})
        files = {'model.safetensors': safetensors(tensors_of(192, 256 * KiB, 8))}
        self.cluster.add('m@v1', self.publish('m', files), '--block', '256KiB', '--no-verify')  # what is read is counted
        for begin in ('nothing there', 'a part of it there', 'prefetched'):
            self.proxy.reset()
            if begin == 'prefetched':
                self.cluster.prefetch('m@v1')
            loaded = self.cluster.load('m@v1', files)
            self.assertLessEqual(loaded['jobs'], 2, (begin, loaded))
            self.assertLessEqual(self.proxy.body_bytes, (3 if begin == 'prefetched' else 2) * total(files), loaded)

    def test_a_pinned_version_stays_until_it_is_unpinned(self):
        self.begin(**{'dram.bytes': '32MiB'})
        files = {'model.safetensors': safetensors(tensors_of(40, 256 * KiB, 9))}
        self.cluster.add('pinned@v1', self.publish('pinned', files), '--block', '256KiB')
        self.assertEqual(self.cluster.emsctl('model', 'pin', 'pinned@v1').code, 0)
        self.cluster.prefetch('pinned@v1')

        def press(turn):
            """Twice what the pool has, of other models and in another namespace."""
            others = {'model.safetensors': safetensors(tensors_of(256, 256 * KiB, turn))}
            self.cluster.add(f'other@{turn}', self.publish(f'other-{turn}', others), '--block', '256KiB')
            self.cluster.prefetch(f'other@{turn}')
            value = os.path.join(self.cluster.folder, 'value')
            for i in range(16):
                write_files(self.cluster.folder, {'value': random_bytes(4 * MiB, i + 1000 * turn)})
                answer = self.cluster.emsctl('put', f'kv-{turn}-{i}', value)
                self.assertEqual(answer.code, 0, answer)
        press(1)
        self.assertEqual(self.cluster.check('pinned@v1')['dram_bytes'], total(files))
        self.proxy.reset()
        self.cluster.load('pinned@v1', files)
        self.assertEqual(self.proxy.body_bytes, 0)
        self.assertEqual(self.cluster.emsctl('model', 'unpin', 'pinned@v1').code, 0)
        press(2)
        spaces = [space for i in range(2) for space in self.cluster.emsctl('node', 'show', f'server-{i}', '--json').json['stats']['namespaces']]
        self.assertLess(self.cluster.check('pinned@v1')['dram_bytes'], total(files), spaces)

    def test_a_namespace_that_is_deleted_and_made_again(self):
        self.begin()
        files = {'model.safetensors': safetensors(tensors_of(40, 256 * KiB, 11))}
        self.cluster.add('m@v1', self.publish('m', files), '--block', '256KiB', '--into', 'mine', '--no-verify')
        self.proxy.reset()
        self.proxy.hold_after(total(files) // 2)
        job = self.cluster.call('model', 'prefetch', 'm@v1', '--wait', '--within', 50)
        self.proxy.wait_until_held()
        self.assertEqual(self.cluster.emsctl('namespace', 'delete', 'mine').code, 0)
        self.proxy.let_go()
        answer = job.wait()
        self.assertEqual(answer.code, 3, answer)
        self.assertIn('there is no namespace mine', answer.err)
        self.assertLessEqual(self.proxy.body_bytes, 1.1 * total(files), 'what cannot be stored is not read')
        self.assertEqual(self.cluster.emsctl('namespace', 'create', 'mine').code, 0)
        self.cluster.prefetch('m@v1')
        self.assertEqual(self.cluster.load('m@v1', files)['source_bytes'], 0)

    def test_a_load_that_is_interrupted_leaves_nothing_half(self):
        self.begin()
        files = {'model.safetensors': safetensors(tensors_of(40, 256 * KiB, 12)), 'config.json': b'{}'}
        self.cluster.add('m@v1', self.publish('m', files), '--block', '256KiB')
        for how in (signal.SIGINT, signal.SIGTERM):
            self.proxy.reset()
            self.proxy.hold_after(total(files) // 2)
            folder = tempfile.mkdtemp(dir=self.cluster.folder)
            load = self.cluster.call('model', 'load', 'm@v1', folder)
            self.proxy.wait_until_held()
            self.assertIn('model.safetensors.part', os.listdir(folder))
            load.process.send_signal(how)
            answer = load.wait(20)
            self.assertEqual(answer.code, 1, answer)
            self.assertIn('stopped', answer.err)
            self.assertLessEqual(set(os.listdir(folder)), {'config.json'}, 'whole files alone')
            self.assertEqual(self.cluster.emsctl('model', 'cancel', 'm@v1').code, 0)
            self.proxy.let_go()
            self.cluster.emsctl('model', 'delete', 'm@v1')
            files['model.safetensors'] = safetensors(tensors_of(40, 256 * KiB, 13))  # none of it is there
            self.cluster.add('m@v1', self.publish('m', files), '--block', '256KiB')

    def test_eight_clients_at_once(self):
        self.begin()
        files = {'config.json': b'{}', 'model.safetensors': safetensors(tensors_of(40, 256 * KiB, 10))}
        url = self.publish('m', files)
        for command in (('add', 'm@v1', url, '--block', '256KiB', '--no-verify'), ('prefetch', 'm@v1', '--wait')):
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
        folder = os.path.join(self.cluster.models, 'odd name \u00fc')
        write_files(folder, odd)
        url = self.publish('o d+d', odd).replace(' ', '%20')
        flags = [part for path in odd for part in ('--file', path)]
        for name, source, more in (('team/odd-1.0_x@v1.0-rc_1', folder, []), ('odd@v2', url, flags)):
            self.cluster.add(name, source, *more)
            self.cluster.prefetch(name)
            self.cluster.load(name, odd)
        for name in ('a b@v1', '../x@v1', 'a/../x@v1', '.@v1', 'x@../v', 'x@..', '\u00fc@v1', '@v1', 'a@', 'a@b@c',
                     'x' * 300 + '@v1', '-x@v', 'a\n@v', 'a//b@v'):
            answer = self.cluster.emsctl('model', 'add', '--', name, folder)
            self.assertEqual(answer.code, 2, (name, answer))
            self.assertIn('are allowed', answer.err)
        self.assertEqual(len(self.cluster.emsctl('model', 'list', '--json').json), 2)

    def test_the_same_files_with_other_keys_are_not_taken_silently(self):
        self.begin()
        url = self.publish('m', {'config.json': b'{}'})
        for _ in range(2):
            self.cluster.add('m@v1', url, '--credentials', 'of-yesterday')
        for more in (('--credentials', 'right'), (), ('--credentials', 'of-yesterday', '--rate', '1MiB')):
            answer = self.cluster.emsctl('model', 'add', 'm@v1', url, *more)
            self.assertEqual(answer.code, 1, answer)
            self.assertIn('credentials "of-yesterday"', answer.err)

    def test_many_small_files(self):
        self.begin()
        folder = os.path.join(self.cluster.models, 'many')
        files = {f'{i % 10}/{i}.bin': b'%d' % i for i in range(9_900)}  # a version has 10,000 at most
        write_files(folder, files)
        self.cluster.add('many@v1', folder)
        self.cluster.prefetch('many@v1', seconds=30)
        self.assertEqual(self.cluster.check('many@v1')['dram_blocks'], len(files))
        answer = self.cluster.emsctl('model', 'load', 'many@v1', '-', '--verify', '--json', seconds=30)
        self.assertEqual((answer.code, answer.json['blocks']), (0, len(files)), answer)


if __name__ == '__main__':
    unittest.main()
