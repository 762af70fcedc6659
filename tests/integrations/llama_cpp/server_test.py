#!/usr/bin/env python3
"""ems-llama-server and ems-llama-ttft as npm installs them: a real engine behind HTTP, over a real pool."""
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import unittest
import urllib.error
import urllib.request

from cluster import SOURCE_DIR
from llama_case import PoolCase
from llama_testing import LIBRARY, NODE_MODULES

PACKAGE = os.path.join(SOURCE_DIR, 'integrations', 'llama_cpp')
PAGE = os.path.join(SOURCE_DIR, 'docs', 'engines', 'LLAMA_CPP.md')
SECONDS = 120


class Server:
    """A process, for `with`; ends in order, after what it saves."""

    def __init__(self, program, *arguments):
        self._process = subprocess.Popen(['node', program, '--port', '0', '--threads', '1', *arguments], stdout=subprocess.PIPE,
                                         text=True)
        self._url = None

    def __enter__(self):
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f'the server ended with code {self._process.wait()}')
        self._url = line.removeprefix('listening on ').strip()
        return self

    def __exit__(self, kind, error, trace):
        self._process.terminate()
        try:
            code = self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._process.stdout.close()
        if kind is None and code:
            raise AssertionError(f'the server ended with code {code}')

    def post(self, path, **body):
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), {'content-type': 'application/json'})
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.read().decode()

    def complete(self, prompt, **more):
        return json.loads(self.post('/completion', prompt=prompt, temperature=0, **{'n_predict': 12, **more}))

    def streamed(self, path, **body):
        return [json.loads(one.removeprefix('data: ')) for one in self.post(path, stream=True, temperature=0, **body).split('\n\n')
                if one not in ('', 'data: [DONE]')]


class ServerTest(PoolCase):
    PREFIX = 'The rivers of the north run to the sea, and the sea is grey. ' * 16

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        modules = os.path.join(cls.folder, 'node_modules')
        cls.package = os.path.join(modules, 'ems-llama-cpp')
        shutil.copytree(PACKAGE, cls.package)
        for name in ('koffi', 'node-llama-cpp'):
            os.symlink(os.path.realpath(os.path.join(NODE_MODULES, name)), os.path.join(modules, name))

    def ems(self, **more):
        return ['--ems', json.dumps(self.options(library=os.path.realpath(LIBRARY), digestCache=None, **more))]

    def server(self, *arguments):
        return Server(os.path.join(self.package, 'server.mjs'), '--model', self.model, *(arguments or self.ems()))

    def test_an_engine_that_is_started_again_restores_the_prefix_and_says_the_same(self):
        with self.server() as first:
            saved = first.complete(self.PREFIX + 'Where is the Loire?')
        with self.server() as second:
            restored = second.complete(self.PREFIX + 'And how long is it, from its spring to the ocean?')
            cold = second.complete(self.PREFIX + 'And how long is it, from its spring to the ocean?', cache_prompt=False)
        self.assertEqual(saved['timings']['ems_n'], 0)
        self.assertGreaterEqual(restored['timings']['ems_n'], 512)
        self.assertEqual((cold['timings']['ems_n'], cold['timings']['cache_n']), (0, 0))
        self.assertEqual(restored['tokens'], cold['tokens'])
        self.assertEqual(len(cold['tokens']), 12)

    def test_streams_say_what_whole_answers_say(self):
        with self.server('--no-ems') as server:
            whole = server.complete(self.PREFIX, cache_prompt=False)
            llama = server.streamed('/completion', prompt=self.PREFIX, n_predict=12, cache_prompt=False)
            openai = server.streamed('/v1/completions', prompt=self.PREFIX, max_tokens=12, cache_prompt=False)
        self.assertEqual(''.join(one['content'] for one in llama), whole['content'])
        self.assertEqual([token for one in llama for token in one['tokens']], whole['tokens'])
        self.assertEqual(''.join(one['choices'][0]['text'] for one in openai), whole['content'])
        self.assertEqual(openai[-1]['usage']['completion_tokens'], 12)
        self.assertTrue(whole['content'])

    def test_requests_that_come_at_once_are_answered_one_after_another(self):
        prompts = [f'{number} {self.PREFIX}' for number in range(4)]
        with self.server() as server, concurrent.futures.ThreadPoolExecutor(len(prompts)) as threads:
            together = list(threads.map(server.complete, prompts))
            alone = [server.complete(prompt, cache_prompt=False) for prompt in prompts]
        self.assertEqual([one['tokens'] for one in together], [one['tokens'] for one in alone])

    def test_without_a_pool_it_serves(self):
        with self.server('--ems', json.dumps({'controller': '127.0.0.1:1', 'library': os.path.realpath(LIBRARY)})) as server:
            self.assertEqual(len(server.complete(self.PREFIX)['tokens']), 12)

    def refused(self, server, prompt):
        with self.assertRaises(urllib.error.HTTPError) as refused:
            server.complete(prompt)
        self.assertEqual(refused.exception.code, 400)
        with refused.exception as answer:
            return json.load(answer)['error']['message']

    def test_prompt_that_the_context_or_the_model_does_not_take_is_refused(self):
        with self.server('--no-ems', '--ctx-size', '512') as server:
            self.assertRegex(self.refused(server, self.PREFIX), 'tokens, the context takes 511')
            self.assertRegex(self.refused(server, self.PREFIX * 64), 'characters, the context takes 511')  # not made into tokens
            self.assertRegex(self.refused(server, [1, 1 << 20]), f'the model has no token {1 << 20}')
            self.assertLess(server.complete('</s>')['tokens_evaluated'], server.complete('</t>')['tokens_evaluated'])
            whole = server.complete('a', n_predict=-1)
        self.assertEqual((whole['tokens_evaluated'] + whole['tokens_predicted'], whole['stop_type']), (512, 'limit'))

    def test_the_command_prints_times_with_ems_and_without(self):
        run = subprocess.run(['node', os.path.join(self.package, 'ttft.mjs'), '--model', self.model, '--threads', '1', *self.ems()],
                             capture_output=True, text=True, check=False, timeout=SECONDS)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertRegex(run.stdout, r'(?s)without EMS +\d+ +0 .*engine restarted +\d+ +[1-9]\d+ .*tokens with EMS and without: yes')

    def test_the_page_names_the_flags_that_there_are(self):
        with open(PAGE, encoding='utf-8') as file:
            table, = re.findall(r'^\| flag .*?\n\n', file.read(), re.S | re.M)
        run = subprocess.run(['node', os.path.join(self.package, 'server.mjs')], capture_output=True, text=True, check=False, timeout=SECONDS)
        self.assertEqual(run.returncode, 2)
        self.assertEqual(set(re.findall(r'`(--[\w-]+)', table)), set(re.findall(r'--[\w-]+', run.stderr)))


if __name__ == '__main__':
    unittest.main()
