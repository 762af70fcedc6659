"""What tests/run.sh relies on: which tests a change can break, which sources compile together, which skips are allowed."""
import os
import sys
import tempfile
import unittest

SOURCE_DIR = os.environ.get('EMS_SOURCE_DIR', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
sys.path[:0] = [os.path.join(SOURCE_DIR, 'tests'), os.path.join(SOURCE_DIR, 'cmake')]

import affected  # noqa: E402
import batches  # noqa: E402
import skipped  # noqa: E402


class AffectedTest(unittest.TestCase):
    FILES = {
        'common/a.h': '',
        'common/a.cc': '#include "common/a.h"\n#include "common/deep.h"\n',
        'common/a_more.cc': '#include "common/a.h"\n#include "common/more.h"\n',
        'common/deep.h': '',
        'common/more.h': '',
        'common/other.h': '',
        'proto/p.proto': None,
        'mp_server/main.cc': '#include "common/other.h"\n',
        'tests/common/a_test.cc': '#include "common/a.h"\n#include "proto/p.pb.h"\n',
        'tests/support/daemon.h': '',
        'tests/fault/kill_test.cc': '#include "tests/support/daemon.h"\n',
    }

    def test_follows_headers_to_the_sources_that_implement_them(self):
        parts = affected.Tree(self.FILES).parts(['tests/common/a_test.cc'])
        self.assertLessEqual({'common/a.cc', 'common/deep.h', 'common/a_more.cc', 'common/more.h', 'proto/p.proto'}, parts)
        self.assertNotIn('common/other.h', parts)

    def test_a_test_that_starts_daemons_is_made_of_them(self):
        self.assertIn('common/other.h', affected.Tree(self.FILES).parts(['tests/fault/kill_test.cc']))

    def test_a_circle_of_includes_ends(self):
        tree = affected.Tree({'a.h': '#include "b.h"\n', 'b.h': '#include "a.h"\n'})
        self.assertEqual(tree.parts(['a.h']), {'a.h', 'b.h'})

    def test_each_program_of_this_tree_is_made_of_more_than_itself(self):
        tree = affected.read_tree()
        for path in tree.files:
            if path.startswith('tests/') and path.endswith('_test.cc'):
                self.assertGreater(len(tree.parts([path])), 1, path)


class BatchesTest(unittest.TestCase):
    def divide(self, size=8, **texts):
        return batches.batches(list(texts), texts, size)

    def test_sources_share_a_batch_up_to_its_size(self):
        self.assertEqual(self.divide(2, a='', b='', c=''), [['a', 'b'], ['c']])

    def test_names_of_an_unnamed_namespace_keep_sources_apart(self):
        for declaration in ('int Help(int x) { return x; }', 'constexpr int Help = 1;', 'struct Help { int x; };',
                            'class Help final : public Base {};', 'enum class Help { kOne };', 'using Help = int;',
                            'std::vector<int> Help() { return {1}; }'):
            text = 'namespace ems {\nnamespace {\n' + declaration + '\n}  // namespace\n}'
            self.assertEqual(self.divide(a=text, b=text), [['a'], ['b']], declaration)

    def test_names_inside_functions_types_and_texts_do_not(self):
        text = 'namespace {\nint %s() { int same = 1; Call(same); return same; } // same(\nconst char* k%s = "same()";\n}\n'
        self.assertEqual(self.divide(a=text % ('One', 'One'), b=text % ('Two', 'Two')), [['a', 'b']])

    def test_macros_keep_sources_apart(self):
        self.assertEqual(self.divide(a='#define SAME 1\n', b='#define SAME 2\n'), [['a'], ['b']])

    def test_an_unchanged_batch_is_not_written_again(self):
        with tempfile.TemporaryDirectory() as root:
            with open(os.path.join(root, 'a.cc'), 'w', encoding='utf-8') as file:
                file.write('int a;\n')
            sys.argv = ['batches.py', root, os.path.join(root, 'out'), '8', 'a.cc']
            times = []
            for _ in range(2):
                with open(os.devnull, 'w', encoding='utf-8') as nowhere:
                    sys.stdout, kept = nowhere, sys.stdout
                    try:
                        batches.main()
                    finally:
                        sys.stdout = kept
                path = os.path.join(root, 'out', 'batch_0.cc')
                times.append(os.stat(path).st_mtime_ns)
                with open(path, encoding='utf-8') as file:
                    self.assertEqual(file.read(), '#include "a.cc"\n')
            self.assertEqual(times[0], times[1])


class SkippedTest(unittest.TestCase):
    LOG = ('1/3 Testing: common/a_test\n1/3 Test: common/a_test\nOutput:\n----\n[  SKIPPED ] ATest.Case (0 ms)\n'
           '[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] ATest.Case\n<end of output>\nTest Passed.\n'
           '2/3 Testing: python/b_test\nOutput:\nOK (skipped=2)\nTest Passed.\n'
           '3/3 Testing: python/c_test\nOutput:\nTest Passed.\n')
    OUTPUT = 'The following tests did not run:\n\t  3 - python/c_test (Skipped)\n'

    def test_finds_each_kind_once(self):
        self.assertEqual(skipped.skips_of(self.LOG, self.OUTPUT), ['python/c_test', 'common/a_test: ATest.Case', 'python/b_test: 2'])

    def test_a_list_entry_may_hold_for_others_than_root_alone(self):
        text = '# a comment\ncommon/a_test: *   not-root  why\npython/c_test   always   why\n'
        self.assertEqual(skipped.allowed_of(text, True), ['python/c_test'])
        self.assertEqual(skipped.allowed_of(text, False), ['common/a_test: *', 'python/c_test'])


if __name__ == '__main__':
    unittest.main()
