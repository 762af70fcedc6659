#!/usr/bin/env python3
"""ems-pdc from outside, whole and with a pool of real daemons: the official openai client from npm, curl, its pages, its
signals, its command line."""
import json
import os
import signal
import subprocess
import sys
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'support'))
from loop_testing import BIN, Client, Loop  # noqa: E402
from model_testing import Cluster, wait_until  # noqa: E402

MODEL = 'ems-small'
OPTIONS = {'role': 'all', 'model.preset': 'small', 'kv.bytes': '64MiB', 'kv.block_tokens': 32}
STOP_PATIENCE_S = 10  # as ems-pdc --help says


def curl(*arguments, timeout=30):
    return subprocess.run(['curl', '-sS', '--noproxy', '*', *arguments], capture_output=True, text=True, timeout=timeout,
                          check=True).stdout


def ems_pdc(*arguments):
    return subprocess.run([os.path.join(BIN, 'ems-pdc'), *arguments], capture_output=True, text=True, timeout=60, check=False)


class ServingLoopTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(servers=1, server={'dram.bytes': '64MiB'}))
        cls.loop = cls.enterClassContext(Loop(**OPTIONS))
        cls.pdc = cls.loop.add('whole', **{'pool.controller': cls.cluster.address}).start()
        cls.pdc.wait_ready()
        wait_until(lambda: cls.pdc.metric('pool_connected') == 1, 'connection to the pool')
        cls.origin = 'http://' + cls.pdc.http
        cls.client = Client(cls.pdc.http, MODEL)

    @classmethod
    def tearDownClass(cls):
        cls.pdc.stop()

    def post(self, path, **fields):
        return curl('-N', '-H', 'Content-Type: application/json', '-d', json.dumps({'model': MODEL, **fields}), self.origin + path)

    def test_the_official_client(self):
        self.assertTrue(os.path.isdir(os.path.join(HERE, '..', 'node_modules', 'openai')),
                        'tests/node_modules/openai is not there; run tests/run.sh --only deps')
        script = os.path.join(HERE, 'serving_loop_client_test.mjs')
        done = subprocess.run(['node', script, self.origin, MODEL], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn('# pass 9\n', done.stdout)

    def test_curl_reads_whole_answers_and_streams(self):
        asked = {'prompt': 'By hand', 'max_tokens': 50, 'temperature': 0, 'ignore_eos': True}
        whole = json.loads(self.post('/v1/completions', **asked))['choices'][0]['text']
        self.assertEqual(json.loads(self.post('/v1/completions', **asked))['choices'][0]['text'], whole)
        events = self.post('/v1/completions', stream=True, **asked).strip().split('\n\n')
        self.assertEqual(events[-1], 'data: [DONE]')
        texts = [json.loads(event.removeprefix('data: '))['choices'][0]['text'] for event in events[:-1]]
        self.assertEqual(''.join(texts), whole)

    def test_a_client_that_hangs_up_stops_its_answer(self):
        before = self.pdc.metrics()
        answer = self.client.ask(lambda text: len(text) > 20, prompt='Go on', max_tokens=6000, ignore_eos=True, stream=True)
        self.assertFalse(answer.whole)

        def look():
            now = self.pdc.metrics()
            return (now['decode_cancelled_total{worker="decode-0"}'] > before['decode_cancelled_total{worker="decode-0"}']
                    and now['decode_admitted{worker="decode-0"}'] == 0
                    and now['decode_free_blocks{worker="decode-0"}'] == before['decode_free_blocks{worker="decode-0"}'])
        wait_until(look, 'decode worker that has stopped and given its blocks back')

    def test_errors_in_openais_shape(self):
        for path, fields, code in (('/v1/completions', {'prompt': 'x', 'model': 'other'}, 'model_not_found'),
                                   ('/v1/completions', {}, 'missing_parameter'),
                                   ('/v1/chat/completions', {'messages': 'x'}, 'invalid_type'),
                                   ('/v1/completions', {'prompt': 'x', 'max_tokens': 10 ** 6}, 'context_length_exceeded')):
            error = json.loads(self.post(path, **fields))['error']
            self.assertEqual((error['type'], error['code']), ('invalid_request_error', code), error)

    def test_pages(self):
        self.assertEqual(self.pdc.get('/healthz')[0], 200)
        self.assertEqual(self.pdc.get('/readyz')[0], 200)
        found = self.pdc.metrics()
        for name in ('prefill_free_blocks{worker="prefill-0"}', 'decode_free_blocks{worker="decode-0"}',
                     'handovers_total{link="prefill-0:decode-0"}', 'pool_connected', 'router_running'):
            self.assertIn(name, found)

    def interrupt(self, how, tokens, **options):
        """(what came of a stream in whose midst the process was told to stop, the process)"""
        pdc = self.loop.add(f'{how.name}-{tokens}', **options).start()
        client, begun, answers = Client(pdc.http, 'ems-' + options.get('model.preset', 'small')), threading.Event(), []

        def on_text(_):
            begun.set()
        fields = {'prompt': 'On and on', 'max_tokens': tokens, 'ignore_eos': True, 'seed': 1, 'stream': True}
        thread = threading.Thread(target=lambda: answers.append(client.ask(on_text, **fields)))
        thread.start()
        self.assertTrue(begun.wait(20))
        pdc.process.send_signal(how)
        self.assertEqual(pdc.process.wait(timeout=STOP_PATIENCE_S + 5), 0, pdc.log()[-2000:])
        thread.join()
        self.assertIn('stopped', pdc.log())
        return answers[0]

    def test_a_signal_lets_an_answer_end(self):
        for how in (signal.SIGINT, signal.SIGTERM):
            answer = self.interrupt(how, 600)
            self.assertTrue(answer.whole, answer)
            self.assertIsNone(answer.error)

    def test_a_signal_ends_an_answer_that_takes_too_long(self):
        answer = self.interrupt(signal.SIGINT, 8000, **{'model.preset': 'large', 'kv.bytes': '512MiB'})
        self.assertFalse(answer.whole, answer)
        self.assertEqual(answer.error['code'], 'unavailable')

    def test_without_its_pool_it_computes(self):
        pdc = self.loop.add('alone', **{'pool.controller': '127.0.0.1:1'}).start()
        pdc.wait_ready()
        asked = {'prompt': 'Alone ' * 40, 'max_tokens': 40, 'temperature': 0, 'ignore_eos': True}
        first = Client(pdc.http, MODEL).ask(**asked)
        self.assertEqual(first.text, self.client.ask(**asked).text)
        self.assertEqual(first.usage['prompt_tokens_details']['cached_tokens'], 0)
        self.assertEqual(pdc.metric('pool_connected'), 0)
        pdc.stop()

    def test_the_command_line(self):
        done = ems_pdc('--help')
        self.assertEqual(done.returncode, 0)
        self.assertIn('SIGTERM, SIGINT', done.stdout)
        self.assertIn('decode_peers', ems_pdc('--help-config').stdout)
        for arguments, says in ((['--set', 'role=router'], 'decode_peers'), (['--set', 'role=nobody'], 'role'),
                                (['--set', 'kv.bytes=1'], 'kv.bytes'), (['--set', 'no.such=1'], 'no'),
                                (['--set', 'kv.bytes=65536', '--set', 'model.preset=large'], 'kv.bytes')):
            done = ems_pdc(*arguments)
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(says, done.stderr)
        taken = ems_pdc('--set', f'http_listen={self.pdc.http}', '--set', 'model.preset=tiny')
        self.assertEqual(taken.returncode, 1, taken)
        self.assertIn(self.pdc.http, taken.stderr)


if __name__ == '__main__':
    unittest.main()
