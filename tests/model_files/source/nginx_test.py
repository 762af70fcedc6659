#!/usr/bin/env python3
"""HTTP sources against a real nginx: plain, TLS, with its limits and faults."""
import json
import os
import shutil
import subprocess
import tempfile
import threading
import unittest

from source_testing import digest, free_port, random_bytes, running, source_tool, wait_for_port

CONFIG = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log {folder}/access.log; default_type application/octet-stream;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  limit_req_zone $server_port zone=few:1m rate=20r/s;
  server {{
    listen 127.0.0.1:{plain};
    root {folder}/www;
    location /busy/ {{ limit_req zone=few; limit_req_status 429; alias {folder}/www/m/; }}
    location /whole/ {{ max_ranges 0; alias {folder}/www/m/; }}
    location /forbidden/ {{ return 403; }}
    location /token/ {{
      if ($http_authorization != "Bearer t0ken") {{ return 401; }}
      alias {folder}/www/m/;
    }}
    location /moved/ {{ rewrite ^/moved/(.*)$ /m/$1 redirect; }}
  }}
  server {{
    listen 127.0.0.1:{tls} ssl;
    ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
    root {folder}/www;
    location /down/ {{ return 302 http://127.0.0.1:{plain}/m/config.json; }}
  }}
}}
"""
SHARDS = ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors']
FILES = {
    'config.json': b'{}',
    SHARDS[0]: random_bytes(2_500_000, 1),
    SHARDS[1]: random_bytes(1_000_003, 2),
    'model.safetensors.index.json':
        json.dumps({'weight_map': {'a': SHARDS[0], 'b': SHARDS[1], 'c': SHARDS[0]}}).encode(),
}


class NginxTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        nginx = shutil.which('nginx', path=os.environ.get('PATH', '') + ':/usr/sbin')
        if nginx is None:
            raise AssertionError('nginx is not there; run tests/run.sh --only deps')
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        os.chmod(cls.folder, 0o755)
        cls.models = os.path.join(cls.folder, 'www', 'm')
        os.makedirs(cls.models)
        for name, data in FILES.items():
            cls.write(name, data)
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=localhost',
                        '-addext', 'subjectAltName=DNS:localhost', '-keyout', f'{cls.folder}/key.pem',
                        '-out', f'{cls.folder}/cert.pem'], check=True, stderr=subprocess.DEVNULL, timeout=60)
        cls.plain, cls.tls = free_port(), free_port()
        config = os.path.join(cls.folder, 'nginx.conf')
        with open(config, 'w', encoding='utf-8') as file:
            file.write(CONFIG.format(folder=cls.folder, plain=cls.plain, tls=cls.tls))
        server = cls.enterClassContext(running([nginx, '-c', config, '-e', f'{cls.folder}/error.log']))
        wait_for_port(cls.plain, server)

    @classmethod
    def write(cls, name, data):
        with open(os.path.join(cls.models, name), 'wb') as file:
            file.write(data)

    def url(self, location='m'):
        return f'http://127.0.0.1:{self.plain}/{location}/'

    def expect_error(self, code, text, *arguments, **options):
        answer = source_tool(*arguments, **options)
        self.assertEqual(answer.get('error'), code, answer)
        self.assertIn(text, answer['message'])
        return answer

    def test_the_shards_of_the_index(self):
        answer = source_tool('fetch', self.url(), 300_000)
        self.assertEqual(answer.get('error'), None, answer)
        self.assertEqual(answer['result'], {name: digest(data) for name, data in FILES.items()})
        self.assertEqual(answer['counters']['bytes_read'], sum(map(len, FILES.values())))

    def test_a_range(self):
        answer = source_tool('read', self.url(), SHARDS[0], 777, 99_999)
        self.assertEqual(answer['result'], digest(FILES[SHARDS[0]][777:777 + 99_999]))

    def test_what_is_not_there_or_not_allowed(self):
        self.expect_error('NOT_FOUND', 'none of the usual files', 'list', self.url('none'))
        self.expect_error('NOT_FOUND', 'HTTP 404', 'list', self.url(), files='none')
        self.expect_error('PERMISSION_DENIED', 'HTTP 403', 'list', self.url('forbidden'))

    def test_a_token(self):
        self.expect_error('UNAUTHENTICATED', 'HTTP 401', 'list', self.url('token'), bearer='wrong')
        answer = source_tool('read', self.url('token'), SHARDS[0], 0, 10, bearer='t0ken')
        self.assertEqual(answer.get('result'), digest(FILES[SHARDS[0]][:10]), answer)

    def test_a_server_that_limits_requests_is_asked_again(self):
        answer = source_tool('fetch', self.url('busy'), 1_000_000, retries=20)
        self.assertEqual(answer.get('error'), None, answer)
        self.assertEqual(answer['result'], {name: digest(data) for name, data in FILES.items()})
        self.assertGreater(answer['counters']['retries'], 0)

    def test_a_server_that_ignores_ranges(self):
        self.expect_error('INVALID_ARGUMENT', 'ignores ranges', 'read', self.url('whole'), SHARDS[0], 5, 10)

    def test_redirections(self):
        answer = source_tool('read', self.url('moved'), SHARDS[1], 3, 1000)
        self.assertEqual(answer.get('result'), digest(FILES[SHARDS[1]][3:1003]), answer)

    def test_a_change_behind_its_back(self):
        self.write('w.gguf', b'a' * 5_000_000)
        url = self.url()
        arguments = dict(files='w.gguf', bytes_per_s=2_000_000)
        # The list is taken, then reading takes 2.5 s at the cap; the file is replaced meanwhile.
        answers = []
        reader = threading.Thread(target=lambda: answers.append(source_tool('fetch', url, 100_000, **arguments)))
        log = os.path.join(self.folder, 'access.log')
        reader.start()
        while True:
            with open(log, encoding='utf-8') as file:
                if any('"GET /m/w.gguf' in line for line in file):
                    break
            reader.join(0.01)
            self.assertTrue(reader.is_alive())
        new = os.path.join(self.folder, 'new')
        with open(new, 'wb') as file:
            file.write(b'b' * 5_000_000)
        os.utime(new, (1, 1))
        os.replace(new, os.path.join(self.models, 'w.gguf'))
        reader.join()
        self.assertEqual(answers[0].get('error'), 'FAILED_PRECONDITION', answers[0])
        self.assertIn('the source changed', answers[0]['message'])
        os.remove(os.path.join(self.models, 'w.gguf'))

    def test_tls(self):
        url = f'https://localhost:{self.tls}/m/'
        answer = source_tool('read', url, SHARDS[0], 1, 100, ca_file=f'{self.folder}/cert.pem')
        self.assertEqual(answer.get('result'), digest(FILES[SHARDS[0]][1:101]), answer)

    def test_tls_with_somebody_else(self):
        # Not signed by anyone who is trusted; and for another name.
        self.expect_error('UNAVAILABLE', 'certificate', 'list', f'https://localhost:{self.tls}/m/')
        answer = self.expect_error('UNAVAILABLE', '', 'list', f'https://127.0.0.1:{self.tls}/m/',
                                   ca_file=f'{self.folder}/cert.pem')
        self.assertEqual(answer['counters']['requests'], 1)

    def test_no_way_back_from_tls(self):
        self.expect_error('INVALID_ARGUMENT', 'from https to http', 'list', f'https://localhost:{self.tls}/down/',
                          files='config.json', ca_file=f'{self.folder}/cert.pem')

    def test_proxies_of_the_environment_are_not_used(self):
        os.environ['http_proxy'] = 'http://127.0.0.1:1'
        self.addCleanup(os.environ.pop, 'http_proxy')
        self.assertEqual(source_tool('list', self.url()).get('error'), None)


if __name__ == '__main__':
    unittest.main()
