#!/usr/bin/env python3
"""Model caching end to end over real sources, an nginx and an object store that checks signatures, and what is left
of it when they fail: success, or an error that names the source; never a wrong byte."""
import hashlib
import json
import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
from model_testing import (  # noqa: E402
    NO_KEYS, S3_KEYS, Cluster, Proxy, KiB, certificate, difference, free_port, nginx, nginx_bytes, random_bytes, s3, s3_put,
    safetensors, tensors_of, total, wait_until, write_files)

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'docs', 'MODEL_CACHING.md')
FILES = {
    'config.json': b'{"hidden_size": 64}',
    'model.safetensors': safetensors(tensors_of(12, 300 * KiB + 7, 1)),
    'tokenizer.json': random_bytes(200_003, 2),
}
S3_FILES = {**FILES, 'sub/a b+c=d~.bin': random_bytes(70_000, 3), 'empty': b''}


class SourcesTest(unittest.TestCase):
    """One cluster and one pair of sources for all; each test has versions of its own, of files of its own."""

    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.authority, key = certificate(cls.folder)
        cls.cluster = cls.enterClassContext(Cluster(servers=2, server={'models.ca_file': cls.authority}))
        cls.https_port = free_port()
        cls.www = os.path.join(cls.folder, 'www')
        cls.store = os.path.join(cls.folder, 's3')
        os.mkdir(cls.www)
        os.mkdir(cls.store)
        cls.nginx_port = cls.enterClassContext(nginx(cls.www, """
          location /token/ { if ($http_authorization != "Bearer t0ken") { return 401; } alias %s/; }
          location /sick/ { if (-f %s/sick) { return 500; } alias %s/; }
          listen 127.0.0.1:%d ssl; ssl_certificate %s; ssl_certificate_key %s;""" % (
              cls.www, cls.folder, cls.www, cls.https_port, cls.authority, key)))
        cls.s3_port = cls.enterClassContext(s3(cls.store))

    def setUp(self):
        self.name = f'{self._testMethodName}@v1'
        # Blocks are named by what is in them: other bytes for each test.
        salt = random_bytes(64 * KiB, self._testMethodName)
        self.files = {**FILES, 'model.safetensors': safetensors({'salt': salt, **tensors_of(12, 300 * KiB + 7, 1)})}
        self.place = self._testMethodName
        write_files(os.path.join(self.www, self.place), self.files)

    def proxy(self, port):
        return self.enterContext(Proxy(port))

    def http(self, port, location='m'):
        return f'http://127.0.0.1:{port}/{location}/{self.place}/'

    def s3_url(self, port, prefix=None):
        return f's3://models/{prefix or self.place}?endpoint=http://127.0.0.1:{port}'

    def put(self, files):
        for path, data in files.items():
            s3_put(self.s3_port, f'{self.place}/{path}'.replace(' ', '%20').replace('+', '%2B').replace('=', '%3D'), data)

    def expect_failed(self, answer, *texts, seconds=30):
        self.assertIn(answer.code, (1, 3, 4), answer)
        for text in texts:
            self.assertIn(text, answer.err, answer)
        self.assertNotIn('hunter2', answer.err)
        self.assertLess(answer.seconds, seconds, answer)

    def test_nginx_is_read_once(self):
        before = nginx_bytes(self.www)
        added = self.cluster.add(self.name, self.http(self.nginx_port), '--block', '256KiB', '--no-verify')
        self.assertEqual(added['bytes'], total(self.files))
        job = self.cluster.prefetch(self.name)['job']
        self.assertEqual(job['source_bytes'], total(self.files))
        self.assertEqual(self.cluster.load(self.name, self.files)['source_bytes'], 0)
        self.cluster.load(self.name, self.files)
        wait_until(lambda: nginx_bytes(self.www) - before >= total(self.files), 'log of all reads')
        # Headers are read twice: first to see where tensors begin.
        self.assertLessEqual(nginx_bytes(self.www) - before, total(self.files) + 128 * KiB)

    def test_https_with_an_authority_of_ones_own(self):
        url = self.http(self.https_port).replace('http:', 'https:')
        self.expect_failed(self.cluster.emsctl('model', 'add', self.name, url), 'certificate', f':{self.https_port}')
        before = nginx_bytes(self.www)
        self.cluster.add(self.name, url, '--ca-file', self.authority)
        job = self.cluster.prefetch(self.name)['job']
        self.assertEqual(job['source_bytes'], total(self.files), 'what comes over TLS is read once')
        self.assertEqual(self.cluster.load(self.name, self.files)['source_bytes'], 0)
        self.assertGreater(nginx_bytes(self.www), before)

    def test_an_object_store_with_signed_ranges(self):
        files = {**S3_FILES, **self.files}
        self.put(files)
        proxy = self.proxy(self.s3_port)
        self.cluster.add(self.name, self.s3_url(proxy.port), '--block', '128KiB', '--credentials', 'right', env=S3_KEYS)
        proxy.reset()
        self.cluster.prefetch(self.name)
        self.cluster.load(self.name, files, env=NO_KEYS)
        self.assertEqual(proxy.body_bytes, total(files))
        self.assertTrue(all(span for _, span in proxy.gets), proxy.gets)

    def test_wrong_keys_and_none(self):
        self.put(self.files)
        url = self.s3_url(self.s3_port)
        for keys in ({**S3_KEYS, 'AWS_SECRET_ACCESS_KEY': 'hunter2'}, NO_KEYS):
            answer = self.cluster.emsctl('model', 'add', self.name, url, env=keys)
            if answer.code == 0:  # anonymous reads are allowed by this store
                self.assertIs(keys, NO_KEYS)
                self.cluster.emsctl('model', 'delete', self.name)
                continue
            self.expect_failed(answer, f'127.0.0.1:{self.s3_port}/models', 'HTTP 403')
        for version, credentials, text in (('v2', 'wrong', 'HTTP 403'), ('v3', 'none', 'none')):
            name = self.name.replace('v1', version)
            self.cluster.add(name, url, '--credentials', credentials, env=S3_KEYS)
            self.expect_failed(self.cluster.emsctl('model', 'prefetch', name, '--wait', '--within', 20), text)
            self.assertEqual(self.cluster.check(name)['dram_bytes'], 0)
            # The servers' keys are wrong; who loads has the right ones.
            loaded = self.cluster.load(name, self.files, env=S3_KEYS)
            self.assertIn(text, loaded.get('why_source', ''), loaded)
            self.expect_failed(self.cluster.emsctl('model', 'load', name, '-', '--no-source', '--within', 20), text)

    def test_a_token_that_servers_have_and_who_adds_has_not(self):
        url = self.http(self.nginx_port, 'token')
        keys = ('--credentials-file', self.cluster.credentials, '--credentials', 'token')
        self.expect_failed(self.cluster.emsctl('model', 'add', self.name, url), 'HTTP 401', f':{self.nginx_port}/token')
        self.cluster.add(self.name, url, *keys)
        self.cluster.prefetch(self.name)
        self.cluster.load(self.name, self.files)

    def test_keys_that_are_replaced_while_a_version_is_pinned(self):
        """What has failed is tried with the keys that are in the file by then."""
        def servers_have(token):
            with open(self.cluster.credentials, 'a', encoding='ascii') as file:
                file.write(f'[late]\nbearer_token = {token}\n')
        with open(self.cluster.credentials, encoding='ascii') as file:
            before = file.read()
        mine = os.path.join(self.cluster.folder, 'mine')
        with open(os.open(mine, os.O_CREAT | os.O_WRONLY, 0o600), 'w', encoding='ascii') as file:
            file.write('[late]\nbearer_token = t0ken\n')
        servers_have('of-yesterday')
        self.cluster.add(self.name, self.http(self.nginx_port, 'token'), '--credentials-file', mine, '--credentials', 'late')
        self.assertEqual(self.cluster.emsctl('model', 'pin', self.name).code, 0)
        wait_until(lambda: 'HTTP 401' in self.cluster.log('server-0') + self.cluster.log('server-1'), 'refused reads')
        with open(self.cluster.credentials, 'w', encoding='ascii') as file:
            file.write(before)
        servers_have('t0ken')
        wait_until(lambda: self.cluster.check(self.name)['dram_bytes'] == total(self.files), 'all of it', 60)
        self.assertEqual(self.cluster.emsctl('model', 'unpin', self.name).code, 0)

    def test_a_file_that_is_gone(self):
        self.cluster.add(self.name, self.http(self.nginx_port), '--block', '256KiB')
        os.remove(os.path.join(self.www, self.place, 'tokenizer.json'))
        texts = ('HTTP 404', f'127.0.0.1:{self.nginx_port}/m/{self.place}/tokenizer.json')
        self.expect_failed(self.cluster.emsctl('model', 'prefetch', self.name, '--wait', '--within', 20), *texts)
        self.expect_failed(self.cluster.emsctl('model', 'load', self.name, '-', '--within', 20), *texts)
        write_files(os.path.join(self.www, self.place), {'tokenizer.json': b'x' * len(self.files['tokenizer.json'])})
        # nginx makes its tags of size and time to the second.
        os.utime(os.path.join(self.www, self.place, 'tokenizer.json'), (1, 1))
        self.expect_failed(self.cluster.emsctl('model', 'load', self.name, '-', '--within', 20), 'changed', 'tokenizer')

    def test_500_for_some_time(self):
        self.cluster.add(self.name, self.http(self.nginx_port, 'sick'), '--block', '256KiB')
        sick = os.path.join(self.folder, 'sick')
        write_files(self.folder, {'sick': b''})
        job = self.cluster.call('model', 'prefetch', self.name, '--wait', '--json')
        log = os.path.join(self.folder, 'access.log')

        def refused():
            with open(log, encoding='utf-8') as file:
                return sum(' 500 ' in line and self.place in line for line in file) >= 3
        wait_until(refused, 'request that is refused')
        os.remove(sick)
        answer = job.wait()
        self.assertEqual(answer.code, 0, answer)
        self.cluster.load(self.name, self.files)

    def test_500_for_good(self):
        proxy = self.proxy(self.nginx_port)
        self.cluster.add(self.name, self.http(proxy.port), '--block', '256KiB')
        proxy.fault = lambda path, number: ('status', 500)
        texts = ('HTTP 500', f'127.0.0.1:{proxy.port}/m/')
        self.expect_failed(self.cluster.emsctl('model', 'prefetch', self.name, '--wait', '--within', 30), *texts)
        self.expect_failed(self.cluster.emsctl('model', 'load', self.name, '-', '--within', 20), *texts)
        proxy.reset()
        self.cluster.load(self.name, self.files)

    def test_bodies_that_break_off(self):
        proxy = self.proxy(self.nginx_port)
        self.cluster.add(self.name, self.http(proxy.port), '--block', '256KiB', '--no-verify')
        proxy.reset()
        proxy.fault = lambda path, number: ('cut', 50_000) if number % 3 == 0 else None
        self.cluster.prefetch(self.name)
        self.cluster.load(self.name, self.files)
        self.assertEqual(proxy.body_bytes, total(self.files), 'taken up where they broke off')

    def test_a_source_that_stalls(self):
        proxy = self.proxy(self.nginx_port)
        url = self.http(proxy.port)
        self.cluster.add(self.name, url, '--block', '256KiB')
        proxy.reset()
        proxy.fault = lambda path, number: ('stall',)
        prefetch = ('model', 'prefetch', self.name, '--wait')
        self.expect_failed(self.cluster.emsctl(*prefetch, '--within', 1), '0 B of', url, seconds=4)
        self.expect_failed(self.cluster.emsctl('model', 'load', self.name, '-', '--within', 1), url, seconds=4)
        # Others do not wait for it, while its job is running and after.
        for version, place in (('v2', 'm'), ('v3', 'sick')):
            other = self.name.replace('v1', version)
            self.cluster.add(other, self.http(self.nginx_port, place), '--block', '256KiB')
            self.cluster.prefetch(other, '--within', 10)
            self.cluster.load(other, self.files)
            self.assertEqual(self.cluster.emsctl('model', 'cancel', self.name).code, 0)
        # A stalled read is abandoned at once: no reader waits for its end.
        proxy.reset()
        self.cluster.prefetch(self.name, '--within', 10)
        self.cluster.load(self.name, self.files)

    def test_small_objects_that_are_damaged_on_the_way(self):
        # The tag of an object that was put whole is its MD5; read in one piece, it is compared.
        files = {f'{i}.json': random_bytes(50_000 + i, i) for i in range(20)}
        self.put(files)
        proxy = self.proxy(self.s3_port)
        self.cluster.add(self.name, self.s3_url(proxy.port), env=S3_KEYS)
        proxy.reset()
        proxy.fault = lambda path, number: ('flip', number) if number % 3 == 0 else None
        self.cluster.prefetch(self.name)
        proxy.reset()
        self.cluster.load(self.name, files)
        self.assertEqual(proxy.body_bytes, 0)

    def test_large_objects_that_are_damaged_on_the_way(self):
        """Ranges have no checksum. The whole file has: nobody is given a byte of it before that has been compared."""
        self.put(self.files)
        proxy = self.proxy(self.s3_port)
        self.cluster.add(self.name, self.s3_url(proxy.port), '--block', '128KiB', env=S3_KEYS)
        proxy.reset()
        # Each range, the first time that it is read: single blocks are put right by their reader, too.
        damaged = set()

        def fault(path, number):
            span = proxy.gets[number][1]
            if 'model.safetensors' in path and (path, span) not in damaged and len(damaged) < 5:
                damaged.add((path, span))
                return ('flip', 77)
            return None
        proxy.fault = fault
        loaders = [self.cluster.call('model', 'load', self.name, tempfile.mkdtemp(dir=self.cluster.folder), '--verify')
                   for _ in range(4)]
        folder = tempfile.mkdtemp(dir=self.cluster.folder)
        answer = self.cluster.emsctl('model', 'load', self.name, folder, '--verify', '--json', env=S3_KEYS)
        self.assertEqual(answer.code, 0, answer)
        self.assertEqual(difference(folder, self.files), [], answer)
        for loader in loaders:
            answer = loader.wait()
            self.assertEqual(answer.code, 0, answer)
            self.assertEqual(difference(loader.process.args[9], self.files), [], answer)
        self.assertEqual(len(damaged), 5)
        # The damaged file is read twice, the others once.
        large = len(self.files['model.safetensors'])
        self.assertEqual(proxy.body_bytes, total(self.files) + large)
        self.assertIn('model.safetensors: damaged at the source or on the way', self.cluster.log('controller'))
        proxy.reset()
        self.cluster.load(self.name, self.files, '--no-source')
        self.assertEqual(proxy.body_bytes, 0)

    def test_a_large_object_that_is_damaged_for_good(self):
        self.put(self.files)
        proxy = self.proxy(self.s3_port)
        self.cluster.add(self.name, self.s3_url(proxy.port), '--block', '128KiB', env=S3_KEYS)
        proxy.reset()
        proxy.fault = lambda path, number: ('flip', 77) if 'model.safetensors' in path else None
        texts = ('DATA_LOSS', 'model.safetensors', 'damaged', hashlib.md5(self.files['model.safetensors']).hexdigest())
        self.expect_failed(self.cluster.emsctl('model', 'prefetch', self.name, '--wait', '--within', 30), *texts)
        known = sum(len(data) for path, data in self.files.items() if path != 'model.safetensors')
        self.assertEqual(self.cluster.check(self.name)['dram_bytes'], known)
        folder = tempfile.mkdtemp(dir=self.cluster.folder)
        self.expect_failed(self.cluster.emsctl('model', 'load', self.name, folder, '--within', 30, env=S3_KEYS), *texts)
        self.assertNotIn('model.safetensors', os.listdir(folder))
        self.expect_failed(self.cluster.emsctl('model', 'load', self.name, '-', '--no-source', '--within', 30), *texts)
        # Once it is put right, the next job is.
        proxy.reset()
        self.cluster.load(self.name, self.files, env=S3_KEYS)
        self.assertEqual(self.cluster.check(self.name)['dram_bytes'], total(self.files))

    def test_a_large_object_that_a_load_reads_itself(self):
        self.put(self.files)
        proxy = self.proxy(self.s3_port)
        # The servers' keys are wrong.
        self.cluster.add(self.name, self.s3_url(proxy.port), '--block', '128KiB', '--credentials', 'wrong', env=S3_KEYS)
        proxy.reset()
        seen = set()

        def fault(path, number):
            first = proxy.gets[number] not in seen
            seen.add(proxy.gets[number])
            return ('flip', 99) if first else None
        proxy.fault = fault
        self.cluster.load(self.name, self.files, env=S3_KEYS)
        proxy.fault = lambda path, number: ('flip', 99) if 'model.safetensors' in path else None
        self.expect_failed(self.cluster.emsctl('model', 'load', self.name, '-', '--within', 30, env=S3_KEYS), 'DATA_LOSS',
                           'model.safetensors', hashlib.md5(self.files['model.safetensors']).hexdigest())

    def test_plain_http_is_read_twice_by_default(self):
        proxy = self.proxy(self.nginx_port)
        answer = self.cluster.emsctl('model', 'add', self.name, self.http(proxy.port), '--block', '256KiB')
        self.assertEqual(answer.code, 0, answer)
        self.assertRegex(answer.err, r'\Anote: each block of 3 of 3 files will be read twice.*no checksum.*--no-verify.*\n\Z')
        self.assertIn('twice unless checked', self.cluster.emsctl('model', 'list').out)
        proxy.reset()
        # By block and by which read of it: of none so many that it is given up. One is damaged twice, and differently.
        weights = 'model.safetensors'
        plan = {(weights, 0, 1), (weights, 1, 2), (weights, 2, 1), (weights, 3, 1), (weights, 3, 2), ('tokenizer.json', 0, 2)}
        damaged = set()

        def fault(path, number):
            read = proxy.gets[number]
            begin = int((read[1] or 'bytes=0-').removeprefix('bytes=').partition('-')[0])
            name = os.path.basename(path.partition('?')[0])
            which = (name, begin // (256 * KiB), proxy.gets[:number + 1].count(read))
            if which not in plan:
                return None
            damaged.add(which)
            return ('flip', 1000 + number)
        proxy.fault = fault
        self.cluster.prefetch(self.name)
        self.assertEqual(damaged, plan)
        self.assertGreaterEqual(proxy.body_bytes, 2 * total(self.files))
        self.assertLessEqual(proxy.body_bytes, 2 * total(self.files) + 2 * len(damaged) * 256 * KiB)
        proxy.reset()
        self.cluster.load(self.name, self.files, '--no-source')
        self.assertEqual(proxy.body_bytes, 0)
        # What is lost later is compared with what is known, and read once.
        self.assertEqual(self.cluster.emsctl('namespace', 'delete', 'models').code, 0)
        self.assertEqual(self.cluster.emsctl('namespace', 'create', 'models').code, 0)
        self.cluster.prefetch(self.name)
        self.assertEqual(proxy.body_bytes, total(self.files))

    def test_plain_http_that_is_not_verified_is_warned_of(self):
        proxy = self.proxy(self.nginx_port)
        answer = self.cluster.emsctl('model', 'add', self.name, self.http(proxy.port), '--block', '256KiB', '--no-verify')
        self.assertEqual(answer.code, 0, answer)
        self.assertRegex(answer.err, r'\Awarning: the first read of 3 of 3 files is unprotected.*as if it were right.*\n\Z')
        proxy.reset()
        proxy.fault = lambda path, number: ('flip', 1000) if number == 0 else None
        self.cluster.prefetch(self.name)
        self.assertEqual(proxy.body_bytes, total(self.files))
        self.assertIn('unprotected', self.cluster.emsctl('model', 'check', self.name).out)
        # It is as the warning says; and what other tests do to answers does damage.
        folder = tempfile.mkdtemp(dir=self.cluster.folder)
        self.assertEqual(self.cluster.emsctl('model', 'load', self.name, folder, '--verify').code, 0)
        self.assertEqual(len(difference(folder, self.files)), 1)

    def test_a_server_that_sends_digests_is_read_once(self):
        proxy = self.proxy(self.nginx_port)
        proxy.digests = True
        self.cluster.add(self.name, self.http(proxy.port), '--block', '256KiB')
        proxy.reset()
        self.cluster.prefetch(self.name)
        self.assertEqual(proxy.body_bytes, total(self.files))
        self.cluster.load(self.name, self.files, '--no-source')
        self.assertEqual(self.cluster.emsctl('model', 'delete', self.name).code, 0)
        self.cluster.add(self.name, self.http(proxy.port), '--block', '256KiB', '--verify')
        proxy.reset()
        self.cluster.prefetch(self.name)
        self.assertEqual(proxy.body_bytes, 2 * total(self.files), 'it was asked for')

    def test_a_store_whose_tags_are_no_sums_is_read_twice(self):
        self.put(self.files)
        proxy = self.proxy(self.s3_port)
        self.cluster.add(self.name, self.s3_url(proxy.port), '--block', '128KiB', '--ignore-etags', env=S3_KEYS)
        proxy.reset()
        proxy.fault = lambda path, number: ('flip', number) if proxy.gets.count(proxy.gets[number]) == 1 else None
        self.cluster.prefetch(self.name)
        self.assertGreaterEqual(proxy.body_bytes, 1.9 * total(self.files))
        self.cluster.load(self.name, self.files, '--no-source')

    def test_adding_again_with_another_choice(self):
        url = self.http(self.nginx_port)

        def add(*flags, name=self.name):
            answer = self.cluster.emsctl('model', 'add', name, url, '--json', *flags)
            said = [next(iter(json.loads(line).items())) for line in answer.err.splitlines()]
            err = ''.join(f'{kind}: {text}\n' for kind, text in said)
            return answer.json['first_read'] if answer.code == 0 else answer.code, err
        # Nobody has used it yet: the last one decides.
        for flags, kept, said in [((), 'twice unless checked', 'note: each'),
                                  (('--no-verify',), 'once', 'warning: first reads of it were "twice unless'),
                                  (('--verify',), 'twice', 'note: first reads of it were "once"'),
                                  ((), 'twice', 'note: it was added with --verify before'),
                                  (('--no-verify',), 'once', 'warning: first reads of it were "twice"'),
                                  ((), 'twice unless checked', 'note: first reads of it were "once"')]:
            first_read, err = add(*flags)
            self.assertEqual((first_read, err.startswith(said)), (kept, True), err)
        # Who is refused has changed nothing, and is told nothing else.
        for flags in ('--rate', '5MB'), ('--credentials', 'other'), ('--into', 'other'):
            code, err = add('--no-verify', *flags)
            self.assertEqual((code, err.count('\n')), (1, 1), err)
            self.assertIn('it exists already', err)
            self.assertEqual(add()[0], 'twice unless checked')
        code, err = add('--block', '64KiB')
        self.assertIn('cut into other blocks', err)
        self.cluster.prefetch(self.name)
        for flags in (), ('--no-verify',), ('--verify',):
            first_read, err = add(*flags)
            self.assertEqual((first_read, err.startswith('note: ')), ('twice unless checked', True), err)
        once = self.name.replace('v1', 'once')
        self.assertEqual(add('--no-verify', name=once)[0], 'once')
        self.cluster.prefetch(once)
        first_read, err = add(name=once)
        self.assertEqual(first_read, 'once', 'adding again does not fail by default')
        self.assertRegex(err, r'\Awarning: .*added with --no-verify before.*model delete')
        code, err = add('--verify', name=once)
        self.assertEqual(code, 1, 'what was read once is not taken for verified')
        self.assertIn('unverified', err)
        self.assertEqual(self.cluster.emsctl('model', 'add', once, url, '--verify', '--no-verify').code, 2)

    def test_an_index_that_is_damaged_once_loses_no_shard(self):
        shards = {f'model-{i}.safetensors': safetensors(tensors_of(1, 5000, ord(i))) for i in 'aq'}
        index = '{"weight_map": {"a": "%s", "b": "%s"}}' % tuple(shards)
        files = {**shards, 'model.safetensors.index.json': index.encode()}
        self.place += '/shards'
        write_files(os.path.join(self.www, self.place), files)
        proxy = self.proxy(self.nginx_port)
        name = self.name.replace('v1', 'shards')
        # The second name becomes the first; one that is not there; no JSON.
        for at in index.rindex('q.safe'), index.rindex('model'), 0:
            proxy.reset()
            proxy.fault = lambda path, number, at=at: ('flip', at) if number == 0 else None
            added = self.cluster.add(f'{name}-{at}', self.http(proxy.port), '--block', '256KiB')
            self.assertEqual(added['files'], 3)

    def test_a_failed_load_does_not_wait_for_a_source_that_stalls(self):
        proxy = self.proxy(self.nginx_port)
        self.cluster.add(self.name, self.http(proxy.port), '--block', '256KiB', '--no-verify')
        self.assertEqual(self.cluster.emsctl('namespace', 'delete', 'models').code, 0)
        proxy.reset()
        faults = {'tokenizer.json': ('stall',), 'config.json': ('status', 404)}
        proxy.fault = lambda path, number: faults.get(os.path.basename(path.partition('?')[0]))
        answer = self.cluster.emsctl('model', 'load', self.name, '-', '--within', 100, '--threads', 8)
        self.assertEqual(self.cluster.emsctl('namespace', 'create', 'models').code, 0)
        self.expect_failed(answer, 'NOT_FOUND', seconds=40)

    def test_a_load_reads_plain_http_twice_as_well(self):
        proxy = self.proxy(self.nginx_port)
        self.cluster.add(self.name, self.http(proxy.port, 'token'), '--block', '256KiB', '--credentials-file',
                         self.cluster.credentials, '--credentials', 'token')
        proxy.reset()
        proxy.fault = lambda path, number: ('flip', 5 * number) if proxy.gets.count(proxy.gets[number]) == 1 else None
        self.assertEqual(self.cluster.emsctl('namespace', 'delete', 'models').code, 0)
        keys = ('--credentials-file', self.cluster.credentials, '--credentials', 'token')
        loaded = self.cluster.load(self.name, self.files, *keys)
        self.assertGreaterEqual(loaded['source_bytes'], 2 * total(self.files))
        self.assertEqual(self.cluster.emsctl('namespace', 'create', 'models').code, 0)

    def test_plain_http_that_is_never_the_same_twice(self):
        proxy = self.proxy(self.nginx_port)
        self.cluster.add(self.name, self.http(proxy.port), '--block', '256KiB')
        proxy.reset()
        proxy.fault = lambda path, number: ('flip', number) if 'tokenizer' in path else None
        texts = ('DATA_LOSS', 'tokenizer.json', 'differ between reads')
        self.expect_failed(self.cluster.emsctl('model', 'prefetch', self.name, '--wait', '--within', 30), *texts)
        self.expect_failed(self.cluster.emsctl('model', 'load', self.name, '-', '--within', 30), *texts)

    def test_known_bytes_that_are_damaged_on_the_way(self):
        proxy = self.proxy(self.nginx_port)
        self.cluster.add(self.name, self.http(proxy.port), '--block', '256KiB')
        self.cluster.prefetch(self.name)
        # The blocks are lost, what they were is known.
        self.assertEqual(self.cluster.emsctl('namespace', 'delete', 'models').code, 0)
        self.assertEqual(self.cluster.emsctl('namespace', 'create', 'models').code, 0)
        proxy.reset()
        # Each range once.
        proxy.fault = lambda path, number: ('flip', number) if proxy.gets.count(proxy.gets[number]) == 1 else None
        self.cluster.load(self.name, self.files)
        self.cluster.prefetch(self.name)
        proxy.reset()
        self.cluster.load(self.name, self.files)

    def test_the_commands_of_the_page_for_operators(self):
        for path, data in self.files.items():
            s3_put(self.s3_port, f'qwen-7b/{path}', data)
        weights = os.path.join(self.folder, 'weights')
        here = {'s3://models/qwen-7b': self.s3_url(self.s3_port, 'qwen-7b'), 'team': 'right', '/mnt/weights': weights}
        with open(PAGE, encoding='utf-8') as page:
            rows = [line.split('|')[1] for line in page if line.startswith('| `emsctl model ')]
        commands = [command.split() for row in rows for command in re.findall('`emsctl ([^`]*)`', row)]
        self.assertGreaterEqual(len(commands), 9)
        for command in commands:
            answer = self.cluster.emsctl(*[here.get(word, word) for word in command], env=S3_KEYS)
            if command[1] == 'delete':
                self.expect_failed(answer, 'pinned')
            else:
                self.assertEqual(answer.code, 0, (command, answer))
        self.assertEqual(difference(weights, self.files), [])
        self.assertEqual(self.cluster.emsctl('model', 'unpin', 'qwen/7b@v1').code, 0)
        self.assertEqual(self.cluster.emsctl('model', 'delete', 'qwen/7b@v1').code, 0)
        self.assertNotIn('qwen', self.cluster.emsctl('model', 'list').out)


if __name__ == '__main__':
    unittest.main()
