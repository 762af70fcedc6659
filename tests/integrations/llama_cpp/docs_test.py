#!/usr/bin/env python3
"""docs/engines/LLAMA_CPP.md as it stands: its program runs in a folder of its own, with the package installed."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import random_gguf
from cluster import SOURCE_DIR, Cluster
from llama_testing import LIBRARY, NODE_MODULES

PAGE = os.path.join(SOURCE_DIR, 'docs', 'engines', 'LLAMA_CPP.md')
PACKAGE = os.path.join(SOURCE_DIR, 'integrations', 'llama_cpp')


class DocumentTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(PAGE, encoding='utf-8') as file:
            cls.page = file.read()

    def test_the_program_runs_and_hits_the_second_time(self):
        program, = re.findall(r'```js\n(.*?)```', self.page, re.S)
        folder = tempfile.mkdtemp(prefix='ems-llama-')
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        # What npm does with --install-links: a copy, beside the other packages.
        modules = os.path.join(folder, 'node_modules')
        shutil.copytree(PACKAGE, os.path.join(modules, 'ems-llama-cpp'))
        for name in ('koffi', 'node-llama-cpp'):
            os.symlink(os.path.realpath(os.path.join(NODE_MODULES, name)), os.path.join(modules, name))
        model = os.path.join(folder, 'model.gguf')
        random_gguf.write(model, layers=2)
        with Cluster(servers=1) as cluster:
            program = program.replace('127.0.0.1:7400', cluster.address)
            program = program.replace('modelPath, controller', f"modelPath, library: '{os.path.realpath(LIBRARY)}', controller")
            program = program.replace('PromptCache.open({', 'PromptCache.open({lookupTimeoutMs: 5000, ')
            with open(os.path.join(folder, 'program.mjs'), 'w', encoding='utf-8') as file:
                file.write(program)
            said = [self.run_program(folder, model, question) for question in ('Where is Peru?', 'And Chile?')]
        self.assertRegex(said[0], r'^0 of \d+ tokens from EMS; 16 generated\n$')
        self.assertRegex(said[1], r'^[1-9]\d+ of \d+ tokens from EMS; 16 generated\n$')

    def run_program(self, folder, *arguments):
        run = subprocess.run(['node', 'program.mjs', *arguments], cwd=folder, capture_output=True, text=True, check=False,
                             timeout=120, env={**os.environ, 'XDG_CACHE_HOME': folder})
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        return run.stdout

    def test_the_options_are_those_of_the_package(self):
        with open(os.path.join(PACKAGE, 'cache_options.mjs'), encoding='utf-8') as file:
            defaults, = re.findall(r'^export const DEFAULTS = \{\n(.*?)^\};', file.read(), re.S | re.M)
        table, = re.findall(r'^\| option .*?\n\n', self.page, re.S | re.M)
        named = {name for row in re.findall(r'^\| (`[^|]*) \|', table, re.M) for name in re.findall(r'`(\w+)`', row)}
        self.assertEqual(named, set(re.findall(r'^  (\w+):', defaults, re.M)))


if __name__ == '__main__':
    unittest.main()
