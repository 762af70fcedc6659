#!/usr/bin/env python3
"""LoRA adapters of a context: states meet only where files and scales are the same, and a declaration that is wrong is refused."""
import os
import unittest

import random_gguf
from llama_case import PoolCase
from llama_testing import Engine, prompt

SHORT, KEPT = 700, 576


class AdaptersTest(PoolCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.adapter, cls.other = (os.path.join(cls.folder, name) for name in ('a.gguf', 'b.gguf'))
        random_gguf.write_adapter(cls.adapter)
        random_gguf.write_adapter(cls.other, seed=2)

    def engine(self, path=None, scale=1, **more):
        """An engine with an adapter, which it declares unless `more` says otherwise."""
        options = self.options()
        if path is None:
            return Engine(self.model, {**options, **more})
        options['lora'] = [{'path': path, 'scale': scale}]
        return Engine(self.model, {**options, **more}, lora=[{'filePath': path, 'scale': scale}])

    def test_adapters_scales_and_no_adapter_never_meet(self):
        answers = []
        for path, scale in ((None, 1), (self.adapter, 1), (self.adapter, 0.5), (self.other, 1)):
            with self.engine(path, scale) as engine:
                first = engine.run(prompt(SHORT))
                engine.flush()
                again = engine.run(prompt(SHORT))
                self.assertEqual((first['cachedTokens'], again['cachedTokens']), (0, KEPT), (path, scale))
                self.assertEqual(again['tokens'], first['tokens'])
                answers.append(tuple(first['tokens']))
        self.assertEqual(len(set(answers)), 4)  # they are four models

    def test_adapters_that_nobody_declared_are_not_cached(self):
        with self.engine(self.adapter, lora=[]) as engine:
            for _ in range(2):
                self.assertEqual(engine.run(prompt(SHORT, seed=1))['cachedTokens'], 0)
            engine.flush()
            self.assertEqual(engine.stats()['saves'], 0)

    def test_a_declaration_that_is_not_the_contexts_is_refused(self):
        for lora in ([{'path': self.other}], [{'path': self.adapter}, {'path': self.other}]):
            with self.assertRaisesRegex(AssertionError, 'lora: the context has .*a.gguf'):
                with self.engine(self.adapter, lora=lora):
                    self.fail('it started')


if __name__ == '__main__':
    unittest.main()
