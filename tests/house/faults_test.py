"""docs/FAULTS.md names each fault once, and tests that are there: their files, and the cases in them.
With --update the line that counts the rows is written again."""
import collections
import os
import re
import sys
import unittest

SOURCE_DIR = os.environ.get('EMS_SOURCE_DIR', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
PAGE = os.path.join(SOURCE_DIR, 'docs', 'FAULTS.md')
ROWS = {'A': 14, 'B': 19, 'C': 13, 'D': 18, 'E': 17, 'F': 20, 'G': 19, 'H': 6}  # group → its rows, numbered from 1
IDS = [f'{group}{number}' for group, count in ROWS.items() for number in range(1, count + 1)]
HEADER = ['id', 'fault', 'what must hold', 'shown by']
COUNTS = re.compile(r'^Of the 126 faults .*$', re.M)

Row = collections.namedtuple('Row', 'id fault holds shown')


def page():
    with open(PAGE, encoding='utf-8') as file:
        return file.read()


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip('|').split('|')]


def rows_of(text):
    """Each line of a table, but its header."""
    lines = [cells_of(line) for line in text.splitlines() if line.startswith('|')]
    return [cells for cells in lines if cells != HEADER and set(''.join(cells)) - set('-:')]


def kind_of(shown):
    return next((word for word in ('partly', 'none') if shown.startswith(word + ':')), 'shown')


def counts_line(rows):
    counts = collections.Counter(kind_of(row.shown) for row in rows if row.id in IDS)
    return f'Of the 126 faults {counts["shown"]} are shown, {counts["partly"]} partly, and {counts["none"]} not.'


def paths_of(shown):
    """Each path that is named, and the cases in brackets behind it."""
    found = re.findall(r'`([\w.-]+(?:/[\w.-]+)+)`(?: \((`\w+`(?:, `\w+`)*)\))?', shown)
    return [(path, re.findall(r'\w+', cases)) for path, cases in found]


def test_file(path):
    """The file below tests/ that is meant; None when there is none."""
    names = (os.path.join(SOURCE_DIR, 'tests', path + ending) for ending in ('.cc', '.py'))
    return next((name for name in names if os.path.isfile(name)), None)


def cases_in(name):
    with open(name, encoding='utf-8') as file:
        text = file.read()
    return set(re.findall(r'^TEST(?:_F|_P)?\(\s*\w+,\s*(\w+)\s*\)', text, re.M)) | set(re.findall(r'^    def (test_\w+)\(', text, re.M))


def complaints(row):
    """What is wrong with a row, in words."""
    kind = kind_of(row.shown)
    if not row.fault or not row.holds:
        yield 'a cell is empty'
    proofs = 0
    for path, cases in paths_of(row.shown):
        name = test_file(path)
        if name is None:
            if cases or not os.path.exists(os.path.join(SOURCE_DIR, path)):
                yield f'{path} is neither a test nor a file'
            continue
        known = cases_in(name)
        yield from (f'{path} has no case {case}' for case in cases if case not in known)
        if not cases and not path.endswith('_fuzzer'):
            yield f'which case of {path}?'
        proofs += len(cases) if cases else 1
    if kind == 'none':
        if len(row.shown) < len('none:') + 20:
            yield 'none without a reason'
    elif proofs == 0:
        yield 'no test is named'
    if kind == 'partly' and len(row.shown.partition('not shown:')[2]) < 10:
        yield 'partly, but what is not shown is not said'
    if kind != 'partly' and 'not shown:' in row.shown:
        yield 'something is not shown, so it is partly'


class FaultsTest(unittest.TestCase):
    def setUp(self):
        self.lines = rows_of(page())
        for cells in self.lines:
            self.assertEqual(len(cells), len(HEADER), cells)
        self.rows = [Row(*cells) for cells in self.lines]

    def test_each_fault_has_one_row_in_its_order(self):
        self.assertEqual(len(IDS), 126)
        ids = [row.id for row in self.rows]
        self.assertEqual(ids[:len(IDS)], IDS)
        self.assertEqual(ids[len(IDS):], [f'X{number}' for number in range(1, len(ids) - len(IDS) + 1)])

    def test_what_is_named_is_there(self):
        wrong = [f'{row.id}: {complaint}' for row in self.rows for complaint in complaints(row)]
        self.assertEqual(wrong, [])

    def test_the_counts_are_those_of_the_rows(self):
        self.assertEqual(COUNTS.findall(page()), [counts_line(self.rows)], 'run tests/house/faults_test.py --update')


class CheckTest(unittest.TestCase):
    """The checks above see what is wrong."""

    def complaints(self, shown):
        return list(complaints(Row('A1', 'a fault', 'a guarantee', shown)))

    def test_good_rows_pass(self):
        for shown in ('`common/check_test` (`PassesAndEvaluatesOnce`, `FailureNamesConditionAndNumbers`)', '`fuzz/frame_fuzzer`',
                      'none: feature absent, see `common/check.h`', '`house/docs_test` (`test_the_examples_are_the_code_that_runs`)',
                      'partly: `common/check_test` (`PassesAndEvaluatesOnce`); not shown: all the rest'):
            self.assertEqual(self.complaints(shown), [], shown)

    def test_wrong_rows_do_not(self):
        for shown, complaint in (('`common/chek_test` (`PassesAndEvaluatesOnce`)', 'neither a test nor a file'),
                                 ('`common/check_test` (`PassesAndEvaluatesTwice`)', 'has no case PassesAndEvaluatesTwice'),
                                 ('`common/check_test`', 'which case of'),
                                 ('by design: `common/check.h`', 'no test is named'),
                                 ('none: `common/gone.h` guards against it', 'neither a test nor a file'),
                                 ('none:', 'without a reason'),
                                 ('partly: `common/check_test` (`PassesAndEvaluatesOnce`)', 'is not said'),
                                 ('`common/check_test` (`PassesAndEvaluatesOnce`); not shown: the rest', 'so it is partly')):
            self.assertIn(complaint, ' '.join(self.complaints(shown)), shown)


if __name__ == '__main__':
    if sys.argv[1:] == ['--update']:
        updated = COUNTS.sub(counts_line([Row(*cells) for cells in rows_of(page())]), page())
        with open(PAGE, 'w', encoding='utf-8') as out:
            out.write(updated)
    else:
        unittest.main()
