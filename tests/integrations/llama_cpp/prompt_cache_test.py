#!/usr/bin/env python3
"""Prompts through node-llama-cpp with EMS: what one engine process computed another one does not, and the tokens are the same."""
import os
import shutil
import unittest

import random_gguf
from cluster import Cluster, until
from llama_case import LAYERS, ModelCase, PoolCase
from llama_testing import Engine, prompt

# Turns of a conversation; each has 90 % or more of its tokens from the one before. The last batch of 512 tokens of a whole
# prompt has 64 or more: below that, llama.cpp computes in another order (docs/engines/LLAMA_CPP.md).
TURNS = (1152, 1280, 1408, 1536, 1664, 1792, 1920, 2048)
SHORT = 700
KEPT = 576  # tokens of a prompt of SHORT that are looked up: the last multiple of 64 that leaves 64


class PromptCacheTest(PoolCase):
    SERVERS = 2

    def saved(self, seed, **options):
        """A prompt that an engine has saved, and its answer."""
        with Engine(self.model, self.options(**options)) as engine:
            answer = engine.run(prompt(SHORT, seed))
            engine.flush()
            self.assertEqual(engine.stats()['saves'], 2, engine.stats())  # at 512 and at the last step
        return answer

    def test_a_conversation_between_two_engines_is_what_one_computes_alone(self):
        with Engine(self.model, self.options()) as first, Engine(self.model, self.options()) as second:
            for turn, length in enumerate(TURNS):
                tokens = prompt(length, seed=1)
                engine = (first, second)[turn % 2]
                warm = engine.run(tokens, generate=16)
                engine.flush()
                if turn > 0:
                    before = TURNS[turn - 1]
                    self.assertGreaterEqual(before / length, 0.9)
                    self.assertEqual(warm['cachedTokens'], before - 64)
                cold = engine.run(tokens, generate=16, cache=False)
                self.assertEqual(warm['tokens'], cold['tokens'], f'turn of {length} tokens')
            for engine in (first, second):
                stats = engine.stats()
                self.assertEqual([stats[name] for name in ('savesFailed', 'savesDropped', 'loadsFailed', 'lookupsFailed')],
                                 [0] * 4, stats)

    def test_prompts_that_only_begin_alike_share_the_beginning(self):
        self.saved(seed=2)
        tokens = prompt(600, seed=2) + prompt(100, seed=99)
        with Engine(self.model, self.options()) as engine:
            other = engine.run(prompt(530, seed=2)[:520] + prompt(180, seed=98))
            self.assertEqual(other['cachedTokens'], 512)
            warm = engine.run(tokens)
            self.assertEqual(warm['cachedTokens'], KEPT)
            self.assertEqual(warm['tokens'], engine.run(tokens, cache=False)['tokens'])

    def test_what_the_sequence_holds_is_not_read_again(self):
        with Engine(self.model, self.options()) as engine:
            engine.run(prompt(SHORT, seed=3))
            engine.flush()
            again = engine.run(prompt(SHORT + 60, seed=3), keep=True)
            self.assertEqual((again['cachedTokens'], again['residentTokens']), (0, SHORT))
            other = engine.run(prompt(SHORT, seed=4), keep=True)
            self.assertEqual((other['cachedTokens'], other['residentTokens']), (0, 0))
            back = engine.run(prompt(SHORT, seed=3), keep=True)
            self.assertEqual(back['cachedTokens'], KEPT)
            self.assertEqual(back['tokens'], engine.run(prompt(SHORT, seed=3), cache=False)['tokens'])

    def test_a_prompt_that_was_saved_is_not_saved_again(self):
        self.saved(seed=5)
        with Engine(self.model, self.options()) as engine:
            self.assertEqual(engine.run(prompt(SHORT, seed=5))['cachedTokens'], KEPT)
            engine.flush()
            self.assertEqual(engine.stats()['saves'], 0)

    def test_a_changed_model_file_never_hits(self):
        self.saved(seed=6)
        changed = os.path.join(self.folder, 'changed.gguf')
        random_gguf.write(changed, seed=2, layers=LAYERS)
        was = os.stat(self.model)
        self.assertEqual(os.path.getsize(changed), was.st_size)
        kept = self.model + '.kept'
        os.rename(self.model, kept)
        self.addCleanup(os.rename, kept, self.model)
        shutil.copyfile(changed, self.model)  # the same path, size and time of change
        os.utime(self.model, ns=(was.st_atime_ns, was.st_mtime_ns))
        with Engine(self.model, self.options(digestCache=os.path.join(self.folder, 'digests.json'))) as engine:
            self.assertEqual(engine.run(prompt(SHORT, seed=6))['cachedTokens'], 0)

    def test_the_same_model_elsewhere_hits(self):
        self.saved(seed=7)
        copy = os.path.join(self.folder, 'copy.gguf')
        shutil.copyfile(self.model, copy)
        with Engine(copy, self.options()) as engine:
            self.assertEqual(engine.run(prompt(SHORT, seed=7))['cachedTokens'], KEPT)

    def test_a_context_of_another_size_hits(self):
        self.saved(seed=9)
        with Engine(self.model, self.options(), contextSize=1024) as engine:
            warm = engine.run(prompt(SHORT, seed=9))
            self.assertEqual(warm['cachedTokens'], KEPT)
            self.assertEqual(warm['tokens'], engine.run(prompt(SHORT, seed=9), cache=False)['tokens'])

    def test_short_prompts_are_left_alone(self):
        with Engine(self.model, self.options()) as engine:
            for length in (1, 2, 64, 127):
                self.assertEqual(len(engine.run(prompt(length))['tokens']), 8)
            engine.flush()
            self.assertEqual(engine.stats()['saves'], 0)


class OtherPoolsTest(ModelCase):
    def test_states_outlive_a_server_on_its_ssd(self):
        with Cluster(servers=1, server_flags=['ssd.capacity_bytes=512MiB'], controller_flags=['damping_ms=0']) as cluster:
            options = {'controller': cluster.address, 'durability': 'ssd', 'lookupTimeoutMs': 5000}
            with Engine(self.model, options) as engine:
                answer = engine.run(prompt(SHORT, seed=1))
                engine.flush()
                self.assertEqual(engine.stats()['saves'], 2)
                cluster.kill_servers()
                cluster.start_servers()
                results = []
                until(lambda: results.append(engine.run(prompt(SHORT, seed=1))) or results[-1]['cachedTokens'] == KEPT,
                      60, 'the engine that stayed hits again')
            self.assertTrue(all(one['tokens'] == answer['tokens'] for one in results))
            with Engine(self.model, options) as engine:
                warm = engine.run(prompt(SHORT, seed=1))
                self.assertEqual(warm['cachedTokens'], KEPT)
                self.assertEqual(warm['tokens'], answer['tokens'])

    def test_a_pool_of_small_values_gets_small_parts(self):
        with Cluster(servers=1, server_flags=['network.value_bytes_max=200KiB']) as cluster:
            options = {'controller': cluster.address, 'lookupTimeoutMs': 5000}
            with Engine(self.model, options) as engine:
                answer = engine.run(prompt(SHORT, seed=1))
                engine.flush()
                self.assertEqual(engine.stats()['saves'], 2)
            with Engine(self.model, options) as engine:
                warm = engine.run(prompt(SHORT, seed=1))
                self.assertEqual((warm['cachedTokens'], warm['tokens']), (KEPT, answer['tokens']))


if __name__ == '__main__':
    unittest.main()
