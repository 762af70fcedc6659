#!/usr/bin/env python3
"""Contexts that are full: the engine erases tokens from the middle, and what it holds then is no engine's state of its tokens."""
import os
import unittest

from llama_case import PoolCase
from llama_testing import Engine, prompt

CONTEXT = 1024
BEGIN = 1  # the token that stays where it is in a shift; what begins with another one is computed again
SETTINGS = {'contextSize': CONTEXT, 'contextShift': {'size': 500}}


class ContextShiftTest(PoolCase):
    def test_a_prompt_longer_than_the_context_is_answered_as_without_the_cache(self):
        tokens = [BEGIN] + prompt(1499, seed=1)
        with Engine(self.model, self.options(), **SETTINGS) as engine:
            cold = engine.run(tokens, cache=False)
            for cached in (0, 960):  # the last multiple of 64 that fits
                warm = engine.run(tokens)
                self.assertEqual((warm['cachedTokens'], warm['tokens']), (cached, cold['tokens']))
                engine.flush()
            self.assertEqual((engine.stats()['saves'], engine.stats()['loadsFailed']), (2, 0))

    def test_what_a_context_shift_leaves_is_not_saved(self):
        with Engine(self.model, self.options(), **SETTINGS) as first, Engine(self.model, self.options(), **SETTINGS) as second:
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

    def test_what_was_shifted_before_it_was_loaded_is_not_saved(self):
        state = os.path.join(self.folder, 'conversation.state')
        with Engine(self.model, self.options(), **SETTINGS) as before:
            before.run([BEGIN] + prompt(959, seed=7), generate=100)
            held = before.held()
            self.assertLess(len(held), 960)  # it was shifted
            before.save_state(state)
        tokens = held + prompt(400, seed=5)
        with Engine(self.model, self.options(), **SETTINGS) as after, Engine(self.model, self.options(), **SETTINGS) as other:
            after.load_state(state)
            kept = after.run(tokens, keep=True, generate=16)
            self.assertEqual(kept['residentTokens'], len(held))
            after.flush()
            self.assertEqual(after.stats()['saves'], 0)
            cold = other.run(tokens, generate=16, cache=False)
            self.assertNotEqual(kept['tokens'], cold['tokens'])  # it matters
            warm = other.run(tokens, generate=16)
            self.assertEqual((warm['cachedTokens'], warm['tokens']), (0, cold['tokens']))
            other.flush()
            after.load_state(state)
            restored = after.run(tokens, keep=True, generate=16)
            self.assertEqual((restored['cachedTokens'], restored['tokens']), ((len(tokens) - 64) // 64 * 64, cold['tokens']))
            longer = tokens[:-1] + prompt(200, seed=6)
            after.run(longer, keep=True)  # EMS's own load is trusted
            after.flush()
            self.assertGreater(after.stats()['saves'], 0)


if __name__ == '__main__':
    unittest.main()
