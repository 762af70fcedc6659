"""No block of code in README and docs/ escapes: walk_test.py runs it, or blocks.txt says which test does, or why none can."""
import os
import unittest

from packages import SOURCE_DIR
from pages import COMMAND, HOW, LANGUAGES, blocks, rule_of, rules

BLOCKS, RULES = blocks(), rules()


class PagesTest(unittest.TestCase):
    def test_each_block_is_of_a_language_that_is_run_or_holds_no_command(self):
        for block in BLOCKS:
            if block.language in ('', 'text'):
                if rule_of(block, RULES) is None:
                    self.assertIsNone(COMMAND.search(block.text), f'{block.page}: a command in a block that nobody runs:\n{block.text}')
            else:
                self.assertIn(block.language, LANGUAGES, block.page)
            if block.language in ('c', 'cpp', 'cmake', 'js'):
                self.assertIsNotNone(rule_of(block, RULES), f'{block.page}: say in tests/docs/blocks.txt which test runs\n{block.text}')

    def test_each_rule_is_needed_and_names_a_test_that_exists(self):
        for rule in RULES:
            self.assertIn(rule.how, HOW)
            self.assertTrue(any(rule_of(block, RULES) is rule for block in BLOCKS), f'blocks.txt: no such block any more: {rule}')
            if rule.how == 'elsewhere':
                self.assertTrue(os.path.isfile(os.path.join(SOURCE_DIR, rule.reason.split(':')[0].split(' ')[0])), rule)


if __name__ == '__main__':
    unittest.main()
