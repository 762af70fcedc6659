#!/usr/bin/env python3
"""The serving API from outside: curl, the official openai client from npm, and the commands of docs/SERVING_API.md.
tests/support/serving_api_server.cc generates; it says what each prompt makes it do."""
import contextlib
import json
import os
import re
import subprocess
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SERVER = os.environ.get('EMS_SERVING_API_SERVER',
                        os.path.join(HERE, '..', '..', 'build', 'release', 'tests', 'bin', 'serving_api_server'))
DOCUMENT = os.path.join(HERE, '..', '..', 'docs', 'SERVING_API.md')


class Server:
    """Ends with its standard input; its lines are read as they come."""

    def __init__(self, *options):
        self.process = subprocess.Popen(['setpriv', '--pdeathsig', 'KILL', SERVER, *options], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.origin = 'http://' + self.process.stdout.readline().split()[1]
        self.lines, self.changed = [], threading.Condition()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.strip())
                self.changed.notify_all()

    def wait_cancelled(self, count):
        with self.changed:
            ok = self.changed.wait_for(lambda: sum(one.startswith('cancelled ') for one in self.lines) >= count, 20)
            assert ok, f'{count} cancelled generations are not there: {self.lines}'

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            code = self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.reader.join()
            self.process.stdout.close()
        assert code == 0, f'the server ended with {code}'


def curl(*arguments, timeout=30, check=True):
    done = subprocess.run(['curl', '-sS', '--noproxy', '*', *arguments], capture_output=True, text=True, timeout=timeout,
                          check=False)
    if check:
        assert done.returncode == 0, done
    return done


class ServingApiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server('--body-bytes-max', '100000'))

    def ask(self, path, body=None, *arguments):
        """(status, headers, body) by curl."""
        more = [] if body is None else ['--data-binary', body]
        if body is not None and not any('Content-Type' in one for one in arguments):
            more += ['-H', 'Content-Type: application/json']
        text = curl('-i', *more, *arguments, self.server.origin + path).stdout
        while text.startswith('HTTP/1.1 100'):
            text = text.split('\n\n', 1)[1]
        head, _, rest = text.partition('\n\n')
        return int(head.split()[1]), head.lower(), rest

    def complete(self, prompt, **fields):
        return self.ask('/v1/completions', json.dumps({'model': 'repeat', 'prompt': prompt, 'max_tokens': 100, **fields}))

    def test_a_completion(self):
        status, head, body = self.complete('hello')
        self.assertEqual(status, 200)
        self.assertIn('content-type: application/json', head)
        answer = json.loads(body)
        self.assertEqual(answer['choices'][0]['text'], 'You said: hello')
        self.assertEqual(answer['usage'], {'prompt_tokens': 5, 'completion_tokens': 15, 'total_tokens': 20,
                                           'prompt_tokens_details': {'cached_tokens': 2}})

    def test_a_stream_ends_with_done(self):
        status, head, body = self.complete('hi', stream=True)
        self.assertEqual(status, 200)
        self.assertIn('content-type: text/event-stream', head)
        events = body.strip().split('\n\n')
        self.assertEqual(events[-1], 'data: [DONE]')
        texts = [json.loads(event.removeprefix('data: '))['choices'][0]['text'] for event in events[:-1]]
        self.assertEqual(''.join(texts), 'You said: hi')

    def test_http_1_0_and_keep_alive(self):
        body = '{"model": "repeat", "prompt": "hi", "stream": true}'
        status, _, text = self.ask('/v1/completions', body, '--http1.0')
        self.assertEqual(status, 200)
        self.assertTrue(text.rstrip().endswith('data: [DONE]'), text)
        # Two requests on one connection.
        url = self.server.origin + '/healthz'
        self.assertEqual(curl('-w', '%{num_connects} ', url, url).stdout, 'ok\n1 ok\n0 ')

    def test_a_chunked_body_and_a_long_one_that_asks_first(self):
        body = json.dumps({'model': 'repeat', 'prompt': 'hi', 'x': 'y' * 50_000})
        for extra in (['-H', 'Transfer-Encoding: chunked'], ['-H', 'Expect: 100-continue']):
            status, _, text = self.ask('/v1/completions', body, *extra)
            self.assertEqual(status, 200, text)

    def test_refusals(self):
        def error(path, body=None, *arguments):
            status, head, text = self.ask(path, body, *arguments)
            return status, head, json.loads(text)['error']
        status, _, found = error('/v1/completions', '{"model": "repeat"')
        self.assertEqual((status, found['code'], found['type']), (400, 'invalid_json', 'invalid_request_error'))
        status, _, found = error('/v1/completions', '{"model": "other", "prompt": "x"}')
        self.assertEqual((status, found['code'], found['param']), (404, 'model_not_found', 'model'))
        status, head, found = error('/v1/completions')
        self.assertEqual(status, 405)
        self.assertIn('allow: post', head)
        self.assertEqual(error('/v1/nothing')[0], 404)
        self.assertEqual(error('/v1/completions', 'x' * 100_001)[0], 413)
        self.assertEqual(error('/v1/completions', '{}', '-H', 'Content-Type: text/plain')[0], 415)
        status, head, found = error('/v1/completions', '{"model": "repeat", "prompt": "full"}')
        self.assertEqual((status, found['type']), (429, 'rate_limit_error'))
        self.assertIn('retry-after: 1', head)
        self.assertEqual(error('/v1/completions', '{"model": "repeat", "prompt": "lost"}')[0], 503)
        self.assertEqual(error('/healthz', None, '-H', 'X: ' + 'x' * 20_000)[0], 431)

    def test_clients_that_give_up_cancel(self):
        with Server() as server:
            for number, stream in enumerate(('false', 'true'), 1):
                body = '{"model": "repeat", "prompt": "hold abc", "stream": %s}' % stream
                done = curl('-N', '--max-time', '0.5', '-H', 'Content-Type: application/json', '-d', body,
                            server.origin + '/v1/completions', check=False)
                self.assertEqual(done.returncode, 28, done)  # curl's own timeout
                server.wait_cancelled(number)

    def test_too_many_at_a_time(self):
        with Server('--requests-max', '1') as server, contextlib.ExitStack() as stack:
            command = ['curl', '-sSN', '--noproxy', '*', '-H', 'Content-Type: application/json', '-d',
                       '{"model": "repeat", "prompt": "hold abc", "stream": true}', server.origin + '/v1/completions']
            held = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            self.assertIn(b'"a"', held.stdout.readline())
            answer = curl('-o', os.devnull, '-w', '%{http_code}', '-H', 'Content-Type: application/json', '-d',
                          '{"model": "repeat", "prompt": "x"}', server.origin + '/v1/completions')
            self.assertEqual(answer.stdout, '429')
            held.kill()
            server.wait_cancelled(1)

    def test_the_official_client(self):
        self.assertTrue(os.path.isdir(os.path.join(HERE, '..', 'node_modules', 'openai')),
                        'tests/node_modules/openai is not there; run tests/run.sh --only deps')
        script = os.path.join(HERE, 'openai_client_test.mjs')
        done = subprocess.run(['node', script, self.server.origin], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r'# pass 1[0-9]\n')

    def test_the_commands_of_the_manual(self):
        with open(DOCUMENT, encoding='utf-8') as file:
            text = file.read()
        commands = re.findall(r'```sh\n(.*?)```', text, flags=re.S)
        self.assertGreaterEqual(len(commands), 5)
        for command in commands:
            script = command.replace('http://127.0.0.1:8000', self.server.origin).replace('MODEL', 'repeat')
            done = subprocess.run(['bash', '-euo', 'pipefail', '-c', script], capture_output=True, text=True, timeout=30,
                                  check=False, env={**os.environ, 'no_proxy': '*'})
            self.assertEqual(done.returncode, 0, f'{script}\n{done.stdout}{done.stderr}')
            self.assertNotIn('"error"', done.stdout, script)
        program, = re.findall(r'```js\n(.*?)```', text, flags=re.S)
        program = program.replace('http://127.0.0.1:8000', self.server.origin).replace('MODEL', 'repeat')
        # Packages are looked for from the working directory on.
        done = subprocess.run(['node', '--input-type=module', '-e', program], capture_output=True, text=True, timeout=30,
                              check=False, cwd=os.path.join(HERE, '..'))
        self.assertRegex(done.stdout, r'^You said: Tell me of the sea\. \d+\n$', done.stderr)
        tables = re.findall(r'\| `(ems_pdc_\w+)`', text)
        self.assertGreater(len(tables), 15)
        shown = curl(self.server.origin + '/metrics').stdout
        for name in tables:
            self.assertIn(f'# HELP {name} ', shown)


if __name__ == '__main__':
    unittest.main()
