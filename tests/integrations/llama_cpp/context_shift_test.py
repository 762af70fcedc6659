#!/usr/bin/env python3
"""Contexts that are full: the engine erases tokens from the middle, and what it holds then is no engine's state of its tokens."""
import os
import shutil
import tempfile
import unittest

import random_gguf
from cluster import Cluster
from llama_testing import Engine, prompt

CONTEXT = 1024
BEGIN = 1  # the token that stays where it is in a shift; what begins with another one is computed anew
SETTINGS = {'contextSize': CONTEXT, 'contextShift': {'size': 500}}


class ContextShiftTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix='ems-llama-')
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.model = os.path.join(cls.folder, 'model.gguf')
        random_gguf.write(cls.model, layers=2)
        cls.cluster = Cluster(servers=1, dram='256MiB')
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)
        cls.options = {'controller': cls.cluster.address, 'lookupTimeoutMs': 5000}

    def test_a_prompt_longer_than_the_context_is_answered_as_without_the_cache(self):
        tokens = [BEGIN] + prompt(1499, seed=1)
        with Engine(self.model, self.options, **SETTINGS) as engine:
            cold = engine.run(tokens, cache=False)
            for cached in (0, 960):  # the last multiple of 64 that fits
                warm = engine.run(tokens)
                self.assertEqual((warm['cachedTokens'], warm['tokens']), (cached, cold['tokens']))
                engine.flush()
            self.assertEqual((engine.stats()['saves'], engine.stats()['loadsFailed']), (2, 0))

    def test_what_a_context_shift_leaves_is_not_saved(self):
        with Engine(self.model, self.options, **SETTINGS) as first, Engine(self.model, self.options, **SETTINGS) as second:
            first.run([BEGIN] + prompt(959, seed=2), generate=100)
            first.flush()
            saves = first.stats()['saves']
            held = first.held()
            self.assertLess(len(held), 960)  # it was shifted
            tokens = held + prompt(400, seed=3)
            kept = first.run(tokens, keep=True, generate=16)
            self.assertEqual(kept['residentTokens'], len(held))
            first.flush()
            self.assertEqual(first.stats()['saves'], saves)
            cold = second.run(tokens, generate=16, cache=False)
            self.assertNotEqual(kept['tokens'], cold['tokens'])  # it matters
            warm = second.run(tokens, generate=16)
            self.assertEqual((warm['cachedTokens'], warm['tokens']), (0, cold['tokens']))
            second.flush()
            again = first.run(tokens, generate=16)  # after its history was cleared
            self.assertEqual((again['cachedTokens'], again['tokens']), ((len(tokens) - 64) // 64 * 64, cold['tokens']))


if __name__ == '__main__':
    unittest.main()
