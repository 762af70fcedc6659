#!/usr/bin/env python3
"""Which tests of a build have to run again after a change: for `ctest -I`, and the programs to build for them.

    tests/affected.py --build build/asan --since REV [CTEST FLAGS…]      REV: a commit; what the working tree adds counts too

Prints two lines: numbers of tests for `ctest -I`, separated by commas, and names of build targets. Of the tests that ctest
lists with the flags, those count whose program is made of a source that changed, or starts a daemon that is.
A program is made of its own sources, of what these include, and of the sources that implement what is included: those whose
first include it is. Tests that are scripts count when any source of the product changed.
"""
import argparse
import json
import os
import re
import subprocess
import sys
from collections import defaultdict

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# A change of these can change any program.
ALL = re.compile(r'cmake/.*|CMakePresets\.json|tests/run\.sh|tests/support/(test_main\.cc|tsan\.supp)')
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)
RUNS = re.compile(r'^add_test\(\[=*\[(.*?)\]=*\] "([^"]+)" "--source=([^"]+)"', re.M)
# What a test names → the sources that it starts in other processes.
STARTS = {
    'tests/support/daemon.h': ['mp_server/main.cc', 'mp_controller/main.cc'],
    '"emsctl"': ['tools/emsctl/main.cc'],
    '"ems-bench"': ['bench/main.cc'],
    '"ems-pdc"': ['pdc/daemon/main.cc'],
}


def git(*arguments):
    return subprocess.run(['git', '-C', ROOT, *arguments], check=True, capture_output=True, text=True).stdout.split('\n')


def changed_since(revision):
    return {path for path in git('diff', '--name-only', revision) + git('ls-files', '--others', '--exclude-standard') if path}


class Tree:
    """What each source is made of. `files`: path → text, of C++ sources alone; other paths have the text None."""

    def __init__(self, files):
        self.files = files
        self.includes = {}
        self.implementations = defaultdict(list)
        self.starts = {}
        for path, text in files.items():
            self.includes[path] = [self._source_of(name) for name in INCLUDE.findall(text or '')]
            if path.endswith('.cc') and self.includes[path]:
                self.implementations[self.includes[path][0]].append(path)
            self.starts[path] = [source for mark, started in STARTS.items() for source in started
                                 if path == mark or path.startswith('tests/') and mark in (text or '')]

    @staticmethod
    def _source_of(name):
        """Messages are generated from the .proto file of the same name."""
        return re.sub(r'(\.grpc)?\.pb\.h$', '.proto', name)

    def parts(self, sources):
        """All files that `sources` are made of, themselves included."""
        seen, todo = set(), list(sources)
        while todo:
            path = todo.pop()
            if path in seen or path not in self.files:
                continue
            seen.add(path)
            todo += self.includes[path] + self.implementations.get(path, []) + self.starts[path]
        return seen


def read_tree():
    files = {}
    for path in git('ls-files', '--cached', '--others', '--exclude-standard'):
        full = os.path.join(ROOT, path)
        if path.endswith(('.h', '.cc', '.c')) and os.path.exists(full):
            with open(full, encoding='utf-8', errors='replace') as file:
                files[path] = file.read()
        elif path.endswith('.proto'):
            files[path] = None
    return Tree(files)


def tests_of(build, flags):
    """(number, program, source) of each test that ctest lists with `flags`; the latter two are None for a script."""
    def listed(*arguments):
        text = subprocess.run(['ctest', '--test-dir', build, '--show-only=json-v1', *arguments], check=True,
                              capture_output=True, text=True).stdout
        return [test['name'] for test in json.loads(text)['tests']]
    # ctest does not say what a test runs before that is built.
    runs = {}
    for folder, _, names in os.walk(os.path.join(build, 'tests')):
        if 'CTestTestfile.cmake' in names:
            with open(os.path.join(folder, 'CTestTestfile.cmake'), encoding='utf-8') as file:
                for name, program, source in RUNS.findall(file.read()):
                    runs[name] = os.path.basename(program), source
    numbers = {name: number for number, name in enumerate(listed(), 1)}
    return [(numbers[name], *runs.get(name, (None, None))) for name in listed(*flags)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', required=True)
    parser.add_argument('--since', help='without it: all tests')
    options, flags = parser.parse_known_args()
    changed = changed_since(options.since) if options.since else None
    everything = changed is None or any(ALL.fullmatch(path) for path in changed)
    tests = list(tests_of(options.build, flags))
    tree = read_tree()
    sources = defaultdict(set)
    for _, program, source in tests:
        if program:
            sources[program].add(source)
    hit = {program for program, own in sources.items() if everything or tree.parts(own) & changed}
    scripts = everything or any(path in tree.files and not path.startswith(('tests/', 'bench/')) for path in changed)
    print(','.join(str(number) for number, program, _ in tests if (program in hit if program else scripts)))
    print(' '.join(sorted(hit)))


if __name__ == '__main__':
    sys.exit(main())
