#!/usr/bin/env python3
"""Options of node-llama-cpp and of the cache: engines whose states differ never share one, and what makes no sense is said."""
import os
import shutil
import unittest

from llama_case import PoolCase
from llama_testing import Engine, prompt

SHORT = 700
KEPT = 576  # tokens of a prompt of SHORT that are looked up: the last multiple of 64 that leaves 64


class EngineOptionsTest(PoolCase):
    def saved(self, seed, **settings):
        """A prompt that an engine has saved, and its answer."""
        with Engine(self.model, self.options(), **settings) as engine:
            answer = engine.run(prompt(SHORT, seed))
            engine.flush()
            self.assertEqual(engine.stats()['saves'], 2, engine.stats())  # at 512 and at the last step
        return answer

    def test_other_kv_types_attention_and_salts_never_hit(self):
        self.saved(seed=1)
        for more, settings in (({}, {'kvType': 'Q8_0'}), ({}, {'kvType': 'F32'}), ({}, {'flashAttention': False}),
                               ({}, {'batchSize': 128}), ({'cacheSalt': 'somebody else'}, {})):
            with Engine(self.model, self.options(**more), **settings) as engine:
                self.assertEqual(engine.run(prompt(SHORT, seed=1))['cachedTokens'], 0, (more, settings))

    def test_options_of_the_model_that_change_it_never_hit(self):
        plain = self.saved(seed=2)
        overrides = {'llama': {'attention': {'layer_norm_rms_epsilon': 0.5}}}
        with Engine(self.model, self.options(), metadataOverrides=overrides) as engine:
            tokens = prompt(SHORT, seed=2)
            first = engine.run(tokens)
            engine.flush()
            again = engine.run(tokens)
            cold = engine.run(tokens, cache=False)
        self.assertNotEqual(cold['tokens'], plain['tokens'])  # it is another model
        self.assertEqual((first['cachedTokens'], first['tokens']), (0, cold['tokens']))
        self.assertEqual((again['cachedTokens'], again['tokens']), (KEPT, cold['tokens']))

    def test_engines_with_other_numbers_of_sequences_leave_each_others_states(self):
        answer = self.saved(seed=3)
        with Engine(self.model, self.options(), sequences=2) as engine:
            first = engine.run(prompt(SHORT, seed=3))
            engine.flush()
            again = engine.run(prompt(SHORT, seed=3))
            self.assertEqual([first['cachedTokens'], again['cachedTokens']], [0, KEPT])
            self.assertEqual(again['tokens'], answer['tokens'])
            self.assertEqual(engine.stats()['loadsFailed'], 0)
        with Engine(self.model, self.options()) as engine:
            self.assertEqual(engine.run(prompt(SHORT, seed=3))['cachedTokens'], KEPT)

    def test_a_variable_that_changes_what_lies_in_the_cache_never_hits(self):
        self.saved(seed=4, kvType='Q8_0')
        with Engine(self.model, self.options(), kvType='Q8_0', environment={'LLAMA_ATTN_ROT_DISABLE': '1'}) as engine:
            self.assertEqual(engine.run(prompt(SHORT, seed=4))['cachedTokens'], 0)

    def test_wrong_options_are_said_at_the_start(self):
        other = os.path.join(self.folder, 'other.gguf')
        shutil.copyfile(self.model, other)
        for more, said in (({'lookupTimeoutMs': '100'}, "lookupTimeoutMs: '100' is not an integer"),
                           ({'library': '/nowhere/libems.so'}, 'nowhere'),
                           ({'modelPath': other}, 'other.gguf is not .*model.gguf'),
                           ({'lora': [{'path': other}]}, 'lora: the context has none')):
            with self.assertRaisesRegex(AssertionError, said):
                with Engine(self.model, self.options(**more)):
                    self.fail('it started')

    def test_a_namespace_that_does_not_exist_is_said_at_the_start(self):
        with self.assertRaisesRegex(AssertionError, "no namespace 'absent'"):
            with Engine(self.model, self.options(namespace='absent')):
                self.fail('it started')


if __name__ == '__main__':
    unittest.main()
