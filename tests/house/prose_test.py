"""Documents, help texts, log and error messages have no word that an engineer must decode (prose.py), and no link of a document leads
nowhere; each check finds what is planted."""
import os
import subprocess
import sys
import tempfile
import unittest

import prose

SOURCE_DIR = os.environ.get('EMS_SOURCE_DIR', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
CHECKER = os.path.join(SOURCE_DIR, 'tools', 'check_layers.py')


def words(text):
    return [word for _, word, _, _ in prose.violations(text)]


class RulesTest(unittest.TestCase):
    def test_each_banned_word_is_found_with_its_line_and_what_to_write(self):
        planted = ('The seat of vLLM.\nWritten anew, TTFT falls by half: promised. Is it so that the key is there? Puts go on.\n'
                   'All at once, what counts, to and fro: made-up. Who waits is told.\n')
        self.assertEqual(sorted(words(planted)), sorted(['seat', 'anew', 'falls by', 'promised', 'is there', 'go on', 'at once', 'what counts',
                                                         'to and fro', 'made-up', 'Who']))
        line, word, reason, instead = prose.violations(planted)[0]
        self.assertEqual((line, word, instead), (1, 'seat', 'connector'))
        self.assertTrue(reason)

    def test_a_phrase_over_two_lines_is_found_in_its_first(self):
        self.assertEqual(prose.violations('one\nall at\nonce\n')[0][:2], (2, 'at once'))

    def test_questions_and_counts_are_no_riddles(self):
        self.assertEqual(words('Who needs it? What is there is there a limit of? It is there that it fails: how many are there?'), ['is there'])

    def test_code_in_a_document_is_left_alone_and_lines_stay(self):
        text = 'a `seat`\n```sh\nseat\n```\n  ```text\n  anew\n  ```\nat once\n'
        self.assertEqual(prose.violations(prose.prose_of_markdown(text)), [(8, 'at once', *prose.RULES[6][1:])])

    def test_sentences_of_a_source_count_and_comments_and_names_do_not(self):
        source = 'int a;  // seat anew\nLog("the seat of {}", "seat");\nhelp: "said \\"anew\\" again"\n'
        self.assertEqual([found[:2] for found in prose.violations(prose.literals_of_source(source))], [(2, 'seat'), (3, 'anew')])

    def test_of_python_a_docstring_is_a_comment(self):
        source = '"""A seat."""\ndef f():\n    """A seat."""\n    log(\'the seat\')\n    raise Error(f\'all at once {1}\')\n'
        self.assertEqual([found[:2] for found in prose.violations(prose.literals_of_python(source))], [(4, 'seat'), (5, 'at once')])


class TreeTest(unittest.TestCase):
    maxDiff = None

    def test_what_users_read_is_in_the_words_of_the_field(self):
        paths, found = set(), []
        for path, text in prose.texts(SOURCE_DIR):
            paths.add(path)
            found += [f'{path}:{line}: "{word}": {reason}; write {instead}' for line, word, reason, instead in prose.violations(text)]
        self.assertLessEqual({'README.md', 'docs/GLOSSARY.md', 'docs/engines/VLLM.md', 'proto/config.proto', 'mp_server/main.cc'}, paths)
        self.assertEqual(found, [])

    def test_links_and_anchors_of_documents_are_checked(self):
        run = subprocess.run([sys.executable, '-B', CHECKER, '--root', SOURCE_DIR, '--only', 'docs'], capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 0, run.stdout)
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, 'docs'))
            for path, text in (('README.md', 'docs/ [a](docs/A.md#nowhere) [b](docs/B.md)\n'), ('docs/A.md', '# A\n')):
                with open(os.path.join(folder, path), 'w', encoding='utf-8') as file:
                    file.write(text)
            run = subprocess.run([sys.executable, '-B', CHECKER, '--root', folder, '--only', 'docs'], capture_output=True, text=True, check=False)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn('#nowhere', run.stdout)
            self.assertIn('docs/B.md leads nowhere', run.stdout)


if __name__ == '__main__':
    unittest.main()
