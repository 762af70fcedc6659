#!/usr/bin/env python3
"""S3 sources against a real object store that checks signatures (s3rver, tests/package.json)."""
import os
import shutil
import subprocess
import tempfile
import unittest
from json import loads
from urllib.parse import quote

from source_testing import HERE, digest, random_bytes, running, source_tool

KEYS = {'access_key': 'S3RVER', 'secret_key': 'S3RVER'}  # those that s3rver knows
NODE_MODULES = os.path.join(HERE, '..', '..', 'node_modules')
OBJECTS = {
    'm/config.json': b'{}',
    'm/model-1.safetensors': random_bytes(3_000_001, 1),
    'm/sub/a b+c=d~\u00e9.bin': random_bytes(70_000, 2),
    'm/empty': b'',
    'other/x': b'not of this model',
}


class S3Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.path.isdir(NODE_MODULES):
            raise AssertionError('tests/node_modules is not there; run tests/run.sh --only deps')
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        # It makes its continuation tokens with DES.
        command = ['node', '--openssl-legacy-provider', os.path.join(HERE, 's3_server.js'), cls.folder]
        cls.server = cls.enterClassContext(running(command, stdout=subprocess.PIPE, text=True))
        cls.port = loads(cls.server.stdout.readline())['port']
        for key, data in OBJECTS.items():
            cls.put(key, data)

    @classmethod
    def put(cls, key, data):
        """By curl, whose signatures are its own."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            subprocess.run(
                ['curl', '-sSf', '--noproxy', '*', '--aws-sigv4', 'aws:amz:us-east-1:s3', '-u', 'S3RVER:S3RVER',
                 '-H', 'x-amz-content-sha256: UNSIGNED-PAYLOAD', '-T', file.name, '-o', os.devnull,
                 f'http://127.0.0.1:{cls.port}/models/{quote(key)}'], check=True, timeout=30)

    def url(self, prefix, **parameters):
        parameters = {'endpoint': f'http://127.0.0.1:{self.port}', **parameters}
        return f's3://models/{prefix}?' + '&'.join(f'{name}={value}' for name, value in parameters.items())

    def test_signed_listing_and_reads(self):
        answer = source_tool('fetch', self.url('m'), 100_000, **KEYS)
        self.assertEqual(answer.get('error'), None, answer)
        wanted = {key[2:]: digest(data) for key, data in OBJECTS.items() if key.startswith('m/')}
        self.assertEqual(answer['result'], wanted)
        self.assertEqual(answer['counters']['bytes_read'], 3_070_003)
        self.assertEqual(answer['counters']['retries'], 0)

    def test_a_range(self):
        answer = source_tool('read', self.url('m/'), 'model-1.safetensors', 1234, 5678, **KEYS)
        self.assertEqual(answer['result'], digest(OBJECTS['m/model-1.safetensors'][1234:1234 + 5678]))
        self.assertEqual(answer['counters']['bytes_read'], 5678)

    def test_virtual_host_style(self):
        # Anonymous: s3rver signs a path with the bucket in it, AWS does not (sigv4_test.cc has AWS's examples).
        url = self.url('m', endpoint=f'http://s3.localhost:{self.port}', style='virtual')
        answer = source_tool('read', url, 'sub/a b+c=d~\u00e9.bin', 1, 10)
        self.assertEqual(answer.get('result'), digest(OBJECTS['m/sub/a b+c=d~\u00e9.bin'][1:11]), answer)

    def test_named_files_need_no_listing(self):
        answer = source_tool('list', self.url('m'), files='config.json', **KEYS)
        self.assertEqual([file['path'] for file in answer['result']], ['config.json'])
        answer = source_tool('list', self.url('m'), files='none', **KEYS)
        self.assertEqual(answer['error'], 'NOT_FOUND')

    def test_the_tags_of_listing_and_head_agree(self):
        listed = source_tool('list', self.url('m'), **KEYS)['result']
        headed = source_tool('list', self.url('m'), files='config.json', **KEYS)['result']
        self.assertIn(headed[0], listed)

    def test_wrong_credentials(self):
        for keys in ({'access_key': 'S3RVER', 'secret_key': 'hunter2'},
                     {'access_key': 'NOBODY', 'secret_key': 'hunter2'}):
            answer = source_tool('list', self.url('m'), **keys)
            self.assertEqual(answer['error'], 'UNAUTHENTICATED', answer)
            self.assertIn('HTTP 403', answer['message'])
            self.assertNotIn('hunter2', answer['message'])
            self.assertNotIn(keys['access_key'], answer['message'])
            self.assertEqual(answer['counters']['requests'], 1)

    def test_what_is_not_there(self):
        answer = source_tool('list', self.url('nothing'), **KEYS)
        self.assertEqual(answer['error'], 'NOT_FOUND', answer)
        answer = source_tool('list', self.url('m').replace('models', 'nobucket'), **KEYS)
        self.assertEqual(answer['error'], 'NOT_FOUND', answer)
        self.assertIn('NoSuchBucket', answer['message'])

    def test_a_listing_of_many_pages(self):
        count = 1500  # s3rver gives 1000 a page
        folder = os.path.join(self.folder, 'models', 'many')
        os.mkdir(folder)
        # As s3rver keeps objects: 1500 uploads take a minute.
        for number in range(count):
            name = os.path.join(folder, f'f{number:05}._S3rver_')
            for ending, text in (('object', 'x'), ('metadata.json', '{}'),
                                 ('object.md5', '9dd4e461268c8034f5c8564e155c67a6')):
                with open(name + ending, 'w', encoding='ascii') as file:
                    file.write(text)
        answer = source_tool('list', self.url('many'), **KEYS)
        self.assertEqual(answer.get('error'), None, answer)
        self.assertEqual([file['path'] for file in answer['result']], [f'f{number:05}' for number in range(count)])
        self.assertEqual(answer['counters']['requests'], 2)


if __name__ == '__main__':
    unittest.main()
