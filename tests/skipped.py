#!/usr/bin/env python3
"""Lists the tests that skipped themselves in a run of ctest, and fails when one of them is not in tests/skips.txt.

    tests/skipped.py build/release/Testing/Temporary/LastTest.log OUTPUT      OUTPUT: what ctest printed

A skip is one that ctest reports (named by the CTest test alone), a GoogleTest case (`test: Suite.Case`), or a number of
unittest cases (`test: number`). Exit code 1: there is a skip that the list does not have.
"""
import fnmatch
import os
import re
import sys

LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'skips.txt')
START = re.compile(r'^\d+/\d+ Testing: (\S+)$', re.M)


def skips_of(log, output=''):
    """Names of skips in the texts of LastTest.log and of what ctest printed, each once."""
    found = re.findall(r'^\s+\d+ - (\S+) \(Skipped\)', output, re.M)
    starts = list(START.finditer(log))
    for match, following in zip(starts, starts[1:] + [None]):
        name = match.group(1)
        text = log[match.end():following.start() if following else len(log)]
        cases = re.findall(r'^\[  SKIPPED \] ([\w/]+\.[\w/]+)', text, re.M)
        found += [f'{name}: {case}' for case in dict.fromkeys(cases)]
        count = re.search(r'^(?:OK|FAILED) \(.*?skipped=(\d+)', text, re.M)
        if count:
            found.append(f'{name}: {count.group(1)}')
    return found


def allowed_of(text, is_root):
    """Patterns of the list that hold for this user."""
    patterns = []
    for line in text.split('\n'):
        match = re.match(r'([^#\s]\S*(?:: \S+)?)\s+(always|not-root)\s+\S', line)
        if match and (match.group(2) == 'always' or not is_root):
            patterns.append(match.group(1))
    return patterns


def main():
    texts = []
    for path in sys.argv[1:3]:
        with open(path, encoding='utf-8', errors='replace') as file:
            texts.append(file.read())
    skips = skips_of(*texts)
    with open(LIST, encoding='utf-8') as file:
        allowed = allowed_of(file.read(), os.geteuid() == 0)
    bad = 0
    for skip in skips:
        known = any(fnmatch.fnmatchcase(skip, pattern) for pattern in allowed)
        bad += not known
        print(f'skipped    {skip}{"" if known else "   which tests/skips.txt does not allow"}')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
