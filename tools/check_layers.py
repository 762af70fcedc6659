#!/usr/bin/env python3
"""Checks the rules of the house: who may include whom, what may not be written, and that tests and docs keep up.

    tools/check_layers.py [--root DIR] [--only RULE,RULE]

Prints one line a finding, `path:line: [rule] what is wrong; what to do instead`, and exits 1 if there is any.
A line is excused from a rule of the word list by a comment on it or on the line above: `check_layers: allow <rule>: <reason>`;
a function from the length rule in the same way, at its first line.
"""
import argparse
import os
import re
import sys
from collections import defaultdict

from cpp_outline import blank_comments_and_texts, classes_of, folder_of, functions_of, includes_of, stem_of

# --- What is allowed -------------------------------------------------------------------------------------------------

# A top folder includes those of lower floors only, never one of its own floor. Folders below it may include each other, without
# cycles.
FLOORS = {
    'common': 1,
    'proto': 2,
    'cluster': 3, 'fabric': 3, 'model_files': 3,
    'mp_controller': 4, 'mp_sdk': 4, 'mp_server': 4,
    'ems_context': 5, 'ems_model': 5,
    'integrations': 6, 'pdc': 6, 'tools': 6,
    'bench': 7,
}
FREE = ('tests', 'examples')  # may include anything, and nothing of ours includes them
MIRRORED = tuple(sorted(FLOORS))

# Library → (its headers, files that may include them, what others use instead).
DOORS = {
    'spdlog': (r'^spdlog/', r'common/logging\.cc', 'common/logging.h'),
    'xxHash': (r'^xxh(ash|3|_x86dispatch)\.h$', r'common/hash\.cc', 'common/hash.h'),
    'prometheus-cpp': (r'^prometheus/', r'common/metrics\.cc', 'common/metrics.h'),
    'yaml-cpp': (r'^yaml-cpp/', r'common/yaml_tree\.cc', 'common/yaml_tree.h'),
    'absl::Status': (r'^absl/status/', r'common/status\.(h|cc)', 'common/status.h'),
    'RocksDB': (r'^rocksdb/', r'common/rocksdb_options\.cc|mp_controller/rows/durable_rows\.cc|mp_server/ssd/disk/(region_index|index_files)\.cc',
                'mp_controller/rows/durable_rows.h or mp_server/ssd/disk/region_index.h'),
    'liburing': (r'^liburing\.h$', r'mp_server/ssd/disk/io_engine\.cc', 'mp_server/ssd/disk/io_engine.h'),
    'ZeroMQ': (r'^zmq', r'mp_server/kv_events/event_sockets\.cc', 'mp_server/kv_events/event_sockets.h'),
    'msgpack': (r'^msgpack', r'mp_server/kv_events/event_encoder\.cc', 'mp_server/kv_events/event_encoder.h'),
    'Asio': (r'^asio(/|\.hpp$)', r'fabric/(http|rpc)/.*\.cc|fabric/(http|rpc)/internal/.*\.h|fabric/net/(io_threads|turns)\.(h|cc)', 'what fabric/ offers'),
    'OpenSSL': (r'^openssl/', r'common/(md5|sha256)\.cc', 'common/sha256.h or common/md5.h'),
    'libcurl': (r'^curl/', r'model_files/source/http_transfer\.cc|bench/serve/http_exchange\.cc', 'model_files/source/http_transfer.h'),
    'pugixml': (r'^pugixml\.hpp$', r'model_files/source/s3_listing\.cc', 'model_files/source/s3_listing.h'),
    'gRPC': (r'^grpc(pp|\+\+)?/|\.grpc\.pb\.h$',
             r'proto/.*|.*_service\.(h|cc)|pdc/rpc/internal/.*|pdc/rpc/remote_\w+_peer\.cc|.*/controller_client\.cc|cluster/(channel_list|control_channel|leader_calls|models_client|unary_calls)\.cc|mp_controller/etcd/etcd_client\.cc|mp_controller/controller\.cc|bench/control/watch_load\.cc',
             'cluster/controller_client.h'),
    'CLI11': (r'^CLI/', r'common/command_line\.cc', 'common/command_line.h'),
}
# Installed beside each other, for programs in C: they name each other as they lie there.
PUBLIC_C_HEADERS = re.compile(r'integrations/c/ems\w*\.h')
# Headers that cost seconds to parse stay out of our headers. A generated gRPC service has to be a base class, so
# *_service.h may name it; those of fabric/*/internal/ are seen by the .cc files of their folder alone, so they may name Asio,
# as io_threads.h and turns.h may, which they build on, and those of pdc/rpc/internal/ gRPC and messages.
HEAVY = re.compile(r'^(grpc(pp|\+\+)?/|google/protobuf/|rocksdb/|asio(/|\.hpp$)|yaml-cpp/|CLI/)|\.pb\.h$')
HEAVY_ALLOWED = re.compile(r'.*_service\.h|fabric/net/(io_threads|turns)\.h|(fabric/(http|rpc)|pdc/rpc)/internal/.*\.h')

# Rule → (pattern in code without comments and texts, files that are free of the rule, what to use instead).
WORDS = {
    'throw': (r'\bthrow\b', None, 'return an ems::Status'),
    'thread': (r'\bstd::(jthread|thread|mutex|shared_mutex|recursive_mutex|async)\b(?!::hardware_concurrency)',
               r'common/.*', 'ems::Thread, ems::ThreadPool or ems::Guarded'),
    'sleep': (r'\b(sleep_for|sleep_until|usleep|nanosleep)\b|(?<![\w:.>])(::)?sleep\(', r'common/.*',
              'a condition variable, a timer, ems::StopFlag::WaitFor or a ManualClock'),
    # A smart pointer that takes the object at once is fine: make_unique cannot reach a private constructor.
    'new': (r'(?<!operator )\bnew\b(?=\s*[\w:\[])|(?<![\w.>])(std::)?(malloc|calloc|realloc|free)\(',
            None,
            'std::make_unique, a container or std::construct_at'),
    'delete': (r'(?<!operator )(?<!=)(?<!= )\bdelete\b(\[\])?\s*[\w:(*]', None, 'an owner such as std::unique_ptr'),
    'cout': (r'\bstd::(cout|cerr|clog)\b', None, 'common/logging.h; std::fputs in tools'),
    'getenv': (r'\b(secure_)?getenv\(', r'(tools|bench|tests)/.*', 'an option in proto/config.proto'),
    'friend-test': (r'\bfriend\b[^;]*Test\b|\bFRIEND_TEST\b', None, 'a test of the public interface'),
    'for-test': (r'\w+ForTest(s|ing)?\b', None, 'a seam that the product uses as well (Clock, an interface, an option)'),
}
WORDS_IN_COMMENTS = {
    'todo': (r'\b(TODO|FIXME|XXX|HACK)\b', 'do it now, or describe the limit in words'),
}

FILE_LINES_MAX = 500           # of the product
OTHER_FILE_LINES_MAX = 600     # of tests, benches and examples
FUNCTION_LINES_MAX = 80
FUNCTION_LINES_P99_MAX = 45    # of the product's functions, 99 of 100 are no longer
FOLDER_SOURCES_MAX = 40        # of the product but common/, which is a vocabulary
PUBLIC_FUNCTIONS_MAX = 25      # of a class; a class that does more is several
PRIVATE_FUNCTIONS_MAX = 20
COLUMNS_MAX = 100

SKIPPED_FOLDERS = {'build', '.git', '.ccache', '__pycache__', 'node_modules', 'corpus', 'data'}
EXCUSE = re.compile(r'check_layers: allow ([\w-]+): \S+')


class Checker:
    """Collects findings over one source tree. Paths are relative to its root, with slashes."""

    def __init__(self, root):
        self.root = root
        self.findings = []
        self.files = sorted(self._walk())
        self.sources = [f for f in self.files if f.endswith(('.h', '.cc'))]
        self.text = {f: self._read(f) for f in self.sources}
        self.code = {f: blank_comments_and_texts(self.text[f]) for f in self.sources}

    def _walk(self):
        for folder, subfolders, names in os.walk(self.root):
            subfolders[:] = sorted(s for s in subfolders if s not in SKIPPED_FOLDERS)
            for name in names:
                yield os.path.relpath(os.path.join(folder, name), self.root).replace(os.sep, '/')

    def _read(self, path):
        with open(os.path.join(self.root, path), encoding='utf-8', errors='replace') as file:
            return file.read()

    def report(self, path, line, rule, message):
        self.findings.append((path, line, rule, message))

    # --- (a) and (b): includes

    def check_includes(self):
        for path in self.sources:
            self._check_floor(path)
            for line, header in includes_of(self.text[path]):
                self._check_level(path, line, header)
                self._check_door(path, line, header)
                self._check_heavy(path, line, header)
        self._check_cycles(folder_of, 'folders')
        self._check_cycles(stem_of, 'files')

    def _check_floor(self, path):
        if '/' in path and path.split('/')[0] not in tuple(FLOORS) + FREE:
            self.report(path, 1, 'floor', f'{path.split("/")[0]}/ is on no floor; move it into a folder that is, or give it one in FLOORS')
        for number, line in enumerate(self.text[path].split('\n'), 1):
            match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            known = match and match[1].split('/')[0] in tuple(FLOORS) + FREE and '..' not in match[1].split('/')
            if match and not known and not path.startswith(FREE) and not PUBLIC_C_HEADERS.fullmatch(path):
                self.report(path, number, 'path', f'"{match[1]}" is no path from the root; write it in full')

    def _check_level(self, path, line, header):
        own, other = path.split('/')[0], header.split('/')[0]
        if '/internal/' in header and folder_of(path) != folder_of(header) and own != 'tests':
            self.report(path, line, 'internal', f'{header} is closed to other folders; use the public headers of {folder_of(header)}/')
        if own == other or own in FREE or own not in FLOORS:
            return
        if other in FREE:
            self.report(path, line, 'level', f'the product includes {other}/; move what is shared to a lower folder')
        elif other in FLOORS and FLOORS[other] >= FLOORS[own]:
            word = 'sideways' if FLOORS[other] == FLOORS[own] else 'upwards'
            self.report(path, line, 'level', f'{own}/ (floor {FLOORS[own]}) includes {word} {other}/ (floor {FLOORS[other]}); '
                        'move what is shared to a lower folder, or pass it in from main.cc')

    def _check_cycles(self, node_of, what):
        """Reports each node (a file or a folder) from which a chain of includes leads back to it, once for each cycle."""
        edges = defaultdict(dict)
        nodes = {node_of(path) for path in self.sources}
        for path in self.sources:
            for line, header in includes_of(self.text[path]):
                beside = f'{os.path.dirname(path)}/{header}'  # where a compiler looks first
                own, other = node_of(path), node_of(beside if beside in self.text else header)
                if own != other and other in nodes and not path.startswith(FREE):
                    edges[own].setdefault(other, (path, line))
        done, trail = set(), []

        def visit(node):
            if node in trail:
                cycle = trail[trail.index(node):] + [node]
                path, line = edges[cycle[-2]][node]
                self.report(path, line, 'cycle', f'{what} include each other: {" → ".join(cycle)}; break it at one of them')
                return
            if node in done:
                return
            trail.append(node)
            for other in sorted(edges[node]):
                visit(other)
            trail.pop()
            done.add(node)

        for node in sorted(edges):
            visit(node)

    def _check_door(self, path, line, header):
        if path.startswith('tests/'):
            return
        for library, (headers, doors, instead) in DOORS.items():
            if re.search(headers, header) and not re.fullmatch(doors, path):
                self.report(path, line, 'door', f'{library} is used here; use {instead}')

    def _check_heavy(self, path, line, header):
        if path.endswith('.h') and not path.startswith('tests/') and HEAVY.search(header) and not HEAVY_ALLOWED.fullmatch(path):
            self.report(path, line, 'heavy', f'{header} in a header; include it in the .cc and hold it behind a '
                        'forward declaration or struct Impl')

    # --- (c): words

    def check_words(self):
        for path in self.sources:
            raw = self.text[path].split('\n')
            code = re.sub(r'(_ptr<[^;{}]*?>\s*\w*[({]\s*)new\b', r'\1   ', self.code[path]).split('\n')
            for number, line in enumerate(code, 1):
                for rule, (pattern, free, instead) in WORDS.items():
                    if re.search(pattern, line) and not (free and re.fullmatch(free, path)):
                        if not excused(raw, number, rule):
                            self.report(path, number, rule, f'`{line.strip()[:60]}`; use {instead}')
            for number, line in enumerate(raw, 1):
                for rule, (pattern, instead) in WORDS_IN_COMMENTS.items():
                    if re.search(pattern, line) and not excused(raw, number, rule):
                        self.report(path, number, rule, f'`{line.strip()[:60]}`; {instead}')

    # --- (d): tests

    def check_tests(self):
        there = set(self.files)
        for path in self.sources:
            if not path.endswith('.cc') or path.split('/')[0] not in MIRRORED or os.path.basename(path) == 'main.cc':
                continue
            # The bindings of a noun are driven from Python: integrations/python/src/client_bindings.cc by client_test.py.
            stem = re.sub(r'^integrations/python/src/(\w+?)(_bindings)?$', r'integrations/python/\1', path[:-3])
            mirrors = [f'tests/{stem}_test.cc'] + ([f'tests/{stem}_test.py'] if stem != path[:-3] else [])
            found = sorted(there.intersection(mirrors))
            if not found:
                self.report(path, 1, 'test', f'has no {mirrors[-1]}; write it')
            elif not any(re.search(r'^\s*(TEST(_[FP])?|TYPED_TEST)\(|^\s*def test', self._read(test), flags=re.M) for test in found):
                self.report(found[0], 1, 'test', f'tests nothing of {path}; write a test')

    # --- (e): sizes

    def check_sizes(self):
        lengths = []
        for path in self.sources:
            raw = self.text[path].split('\n')
            lines = len(raw) - (raw[-1] == '')
            most = OTHER_FILE_LINES_MAX if path.startswith(FREE + ('bench',)) else FILE_LINES_MAX
            if lines > most:
                self.report(path, lines, 'file-lines', f'{lines} lines, {most} are allowed; split by noun')
            for number, line in enumerate(raw, 1):
                if len(line) > COLUMNS_MAX and '://' not in line and not line.lstrip().startswith('#include'):
                    self.report(path, number, 'columns', f'{len(line)} columns, {COLUMNS_MAX} are allowed; break the line')
            for name, first, last in functions_of(self.code[path]):
                if not path.startswith(FREE + ('bench', 'tools')):
                    lengths.append((last - first + 1, path, first))
                if last - first + 1 > FUNCTION_LINES_MAX and not excused(raw, first, 'function-lines'):
                    self.report(path, first, 'function-lines', f'{name} has {last - first + 1} lines, {FUNCTION_LINES_MAX} are '
                                'allowed; give its steps names')
        if lengths:
            lines, path, first = sorted(lengths)[int(len(lengths) * 0.99)]
            if lines > FUNCTION_LINES_P99_MAX:
                self.report(path, first, 'function-p99', f'more than one function in 100 has over {FUNCTION_LINES_P99_MAX} lines: the '
                            f'99th percentile is {lines}; give the steps of the longest names')
        self._check_folders()
        self._check_classes()

    def _check_folders(self):
        """One folder, one idea: neither too many files, nor a second source of a class that has no noun of its own."""
        by_folder = defaultdict(list)
        for path in self.sources:
            if not path.startswith(FREE):
                by_folder[os.path.dirname(path)].append(path)
        for folder, paths in sorted(by_folder.items()):
            if len(paths) > FOLDER_SOURCES_MAX and folder != 'common':
                self.report(paths[0], 1, 'folder', f'{folder}/ has {len(paths)} sources, {FOLDER_SOURCES_MAX} are allowed; group them in folders')
            for path in paths:
                if path.endswith('.cc') and os.path.basename(path) != 'main.cc':
                    self._check_second_source(path)

    def _check_second_source(self, path):
        """A class is defined where its header is: a source defines members of the classes of its own header, and of those in it."""
        known = set(re.findall(r'^\s*(?:class|struct)\s+(\w+)', self.code[path], flags=re.M))
        for name, _, _, _ in classes_of(self.code.get(f'{path[:-3]}.h', '')):
            known.update(name.split('::'))
        for name, first, _ in functions_of(self.code[path]):
            owner = name.split('::')[0] if '::' in name else None
            if owner and owner[0].isupper() and owner not in known:
                self.report(path, first, 'second-source', f'a second source of {owner}; give what it does a class and a header of its own')
                return

    def _check_classes(self):
        for path in self.sources:
            if path.startswith(FREE):
                continue
            raw = self.text[path].split('\n')
            for name, line, public, private in classes_of(self.code[path]):
                for kind, count, most in (('public', public, PUBLIC_FUNCTIONS_MAX), ('private', private, PRIVATE_FUNCTIONS_MAX)):
                    if count > most and not excused(raw, line, 'class-width'):
                        self.report(path, line, 'class-width', f'{name} has {count} {kind} functions, {most} are allowed; it is several '
                                    'classes: split by idea')

    # --- (f): docs

    def check_docs(self):
        self._check_maps()
        for path in self.files:
            if path.endswith('.md'):
                self._check_links(path)

    def _check_maps(self):
        for path in self.sources:
            if not path.endswith('.h') or '/internal/' in path or path.startswith('tests/'):
                continue
            folder = os.path.dirname(path)
            while folder and f'{folder}/README.md' not in self.files:
                folder = os.path.dirname(folder)
            if not folder:
                readme = f'{path.split("/")[0]}/README.md'
                self.report(readme, 1, 'map', f'is missing, for {path}; say purpose, public headers and threads of the folder')
                continue
            inside, text = path[len(folder) + 1:], self._read(f'{folder}/README.md')
            # By its path, or below the name of its folder. A header may go by its stem when a line speaks of header and source together.
            below, stem = os.path.split(inside[:-2])
            names = [re.escape(inside[:-2])] + ([re.escape(stem)] if not below or f'`{below}/`' in text else [])
            if not re.search(r'(?<![\w/])(?:' + '|'.join(names) + r')(?!\w)', text):
                self.report(f'{folder}/README.md', 1, 'map', f'does not name {inside}; add a line for it')
        if 'README.md' in self.files:
            text = self._read('README.md')
            for folder in sorted({path.split('/')[0] for path in self.files if '/' in path}):
                if not folder.startswith('.') and f'{folder}/' not in text:
                    self.report('README.md', 1, 'map', f'does not name {folder}/; add it to the map of folders')

    def _check_links(self, path):
        for number, line in enumerate(self._read(path).split('\n'), 1):
            for source in re.findall(r'(?<![\w/.<…])((?:%s)/[\w/]+\.(?:h|cc|proto|py|sh))\b' % '|'.join(MIRRORED + ('tests', 'deploy')), line):
                if not os.path.exists(os.path.join(self.root, source)):
                    self.report(path, number, 'link', f'names {source}, which is not there; fix the path')
        text = re.sub(r'```.*?```', lambda m: '\n' * m.group().count('\n'), self._read(path), flags=re.S)
        for number, line in enumerate(text.split('\n'), 1):
            for target in re.findall(r'\[[^\]]*\]\(([^)\s]+)\)', line):
                if re.match(r'[a-z]+:', target):
                    continue
                file, _, anchor = target.partition('#')
                goal = os.path.normpath(os.path.join(os.path.dirname(path), file)).replace(os.sep, '/') if file else path
                if not os.path.exists(os.path.join(self.root, goal)):
                    self.report(path, number, 'link', f'{target} leads nowhere; fix the path')
                elif anchor and goal.endswith('.md') and anchor not in anchors_of(self._read(goal)):
                    self.report(path, number, 'link', f'{goal} has no heading #{anchor}; fix the anchor')


# --- Small parsers ---------------------------------------------------------------------------------------------------

def excused(raw_lines, number, rule):
    for line in raw_lines[max(0, number - 2):number]:
        match = EXCUSE.search(line)
        if match and match.group(1) == rule:
            return True
    return False


def anchors_of(markdown):
    """The anchors that GitHub makes of headings."""
    result = set()
    for heading in re.findall(r'^#+\s+(.*)$', markdown, flags=re.M):
        result.add(re.sub(r'[^\w\- ]', '', heading.strip().lower()).replace(' ', '-'))
    return result


CHECKS = {
    'includes': Checker.check_includes,
    'words': Checker.check_words,
    'tests': Checker.check_tests,
    'sizes': Checker.check_sizes,
    'docs': Checker.check_docs,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--root', default=os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'), help='tree to check')
    parser.add_argument('--only', default=','.join(CHECKS), help=f'checks to run: {", ".join(CHECKS)}')
    options = parser.parse_args()
    wanted = options.only.split(',')
    unknown = [name for name in wanted if name not in CHECKS]
    if unknown:
        parser.error(f'unknown check {unknown[0]}; there are {", ".join(CHECKS)}')
    checker = Checker(os.path.abspath(options.root))
    for name in wanted:
        CHECKS[name](checker)
    for path, line, rule, message in sorted(checker.findings):
        print(f'{path}:{line}: [{rule}] {message}')
    count = len(checker.findings)
    print(f'check_layers: {len(checker.sources)} sources, {count or "no"} finding{"" if count == 1 else "s"}')
    return 1 if count else 0


if __name__ == '__main__':
    sys.exit(main())
