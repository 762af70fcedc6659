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

# --- What is allowed -------------------------------------------------------------------------------------------------

# A folder includes folders of lower levels only, never one of its own level.
LEVELS = {
    'common': 0,
    'proto': 1,
    'fabric': 2,
    'mp_controller/view': 3, 'mp_server/kv_events': 3, 'mp_server/ssd': 3, 'ems_model/source': 3, 'ems_model/format': 3,
    'mp_controller': 4, 'mp_server': 4, 'mp_sdk': 4,
    'ems_context': 5, 'ems_model': 5,
    'pdc/api': 5,
    'pdc': 6, 'integrations': 6,
    'pdc/rpc': 7,
    'pdc/daemon': 8,
}
FREE = ('tests', 'bench', 'tools', 'examples')  # may include anything
MIRRORED = tuple(sorted({folder.split('/')[0] for folder in LEVELS})) + ('bench', 'tools')

# Library → (its headers, files that may include them, what others use instead).
DOORS = {
    'spdlog': (r'^spdlog/', r'common/logging\.cc', 'common/logging.h'),
    'xxHash': (r'^xxh(ash|3|_x86dispatch)\.h$', r'common/hash\.cc', 'common/hash.h'),
    'prometheus-cpp': (r'^prometheus/', r'common/metrics\.cc', 'common/metrics.h'),
    'yaml-cpp': (r'^yaml-cpp/', r'common/config\.cc', 'common/config.h'),
    'absl::Status': (r'^absl/status/', r'common/status\.(h|cc)', 'common/status.h'),
    'RocksDB': (r'^rocksdb/', r'common/rocksdb_options\.cc|mp_controller/durable_rows\.cc|mp_server/ssd/region_index\.cc',
                'mp_controller/durable_rows.h or mp_server/ssd/region_index.h'),
    'liburing': (r'^liburing\.h$', r'mp_server/ssd/io_engine\.cc', 'mp_server/ssd/io_engine.h'),
    'ZeroMQ': (r'^zmq', r'mp_server/kv_events/event_sockets\.cc', 'mp_server/kv_events/event_sockets.h'),
    'msgpack': (r'^msgpack', r'mp_server/kv_events/event_encoder\.cc', 'mp_server/kv_events/event_encoder.h'),
    'Asio': (r'^asio(/|\.hpp$)', r'fabric/.*\.cc|fabric/internal/.*\.h', 'what fabric/ offers'),
    'OpenSSL': (r'^openssl/', r'common/(md5|sha256)\.cc', 'common/sha256.h or common/md5.h'),
    'libcurl': (r'^curl/', r'ems_model/source/http_transfer\.cc', 'ems_model/source/http_transfer.h'),
    'gRPC': (r'^grpc(pp|\+\+)?/|\.grpc\.pb\.h$',
             r'proto/.*|.*_service\.(h|cc)|pdc/rpc/internal/.*|pdc/rpc/remote_\w+_peer\.cc|.*/controller_client\.cc|mp_controller/view/(control_channel|models_client)\.cc|mp_controller/controller\.cc',
             'mp_controller/view/controller_client.h'),
    'CLI11': (r'^CLI/', r'common/command_line\.cc', 'common/command_line.h'),
    'httplib': (r'^httplib\.h$', r'fabric/http_endpoint\.cc', 'fabric/http_endpoint.h'),
}
# Headers that cost seconds to parse stay out of our headers. A generated gRPC service has to be a base class, so
# *_service.h may name it; headers of fabric/internal/ are seen by the .cc files of fabric/ alone, so they may name Asio,
# and those of pdc/rpc/internal/ gRPC and messages.
HEAVY = re.compile(r'^(grpc(pp|\+\+)?/|google/protobuf/|rocksdb/|asio(/|\.hpp$)|yaml-cpp/|CLI/|httplib\.h$)|\.pb\.h$')
HEAVY_ALLOWED = re.compile(r'.*_service\.h|(fabric|pdc/rpc)/internal/.*\.h')

# Rule → (pattern in code without comments and texts, files that are free of the rule, what to use instead).
WORDS = {
    'throw': (r'\bthrow\b', None, 'return an ems::Status'),
    'thread': (r'\bstd::(jthread|thread|mutex|shared_mutex|recursive_mutex|async)\b(?!::hardware_concurrency)',
               r'common/.*', 'ems::Thread, ems::ThreadPool or ems::Guarded'),
    'sleep': (r'\b(sleep_for|sleep_until|usleep|nanosleep)\b|(?<![\w:.>])(::)?sleep\(', r'common/.*',
              'a condition variable, a timer, ems::StopFlag::WaitFor or a ManualClock'),
    # A smart pointer that takes the object at once is fine: make_unique cannot reach a private constructor.
    'new': (r'(?<!operator )\bnew\b(?=\s*[\w:\[])|(?<![\w.>])(std::)?(malloc|calloc|realloc|free)\(',
            r'fabric/http_endpoint\.cc',  # httplib takes its queue as a raw pointer
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

# Sources without a mirrored test, and why that is right.
NO_TEST = {
    'mp_server/ssd/log_writer_care.cc': 'part of LogWriter; tests/mp_server/ssd/log_writer_test.cc drives it',
    'fabric/internal/rpc_staged_puts.cc': 'part of a connection; tests/fabric/rpc_server_test.cc drives it over sockets',
    'mp_controller/view/control_channel.cc': 'arguments of gRPC; the tests of both clients dial with them',
    'mp_controller/controller_metrics.cc': 'declarations only; tests/e2e/status_pages_test.cc reads them',
    'mp_controller/controller_service.cc': 'tests/mp_controller/controller_test.cc drives it over real gRPC',
    'integrations/python/src/batch_queue.cc': 'tests/integrations/engines drive it over real daemons',
    'integrations/python/src/batch_queue_bindings.cc': 'Python’s side; tests/integrations/engines drive it over real daemons',
    'integrations/python/src/pool_breaker.cc': 'tests/integrations/engines/*_fault_test.py and python/drop_in_fault_test.py drive it',
    'integrations/python/src/buffers.cc': 'Python’s side; tests/integrations/python drives it over real daemons',
    'integrations/python/src/cc_bindings.cc': 'Python’s side; tests/integrations/python drives it over real daemons',
    'integrations/python/src/client_bindings.cc': 'Python’s side; tests/integrations/python drives it over real daemons',
    'integrations/python/src/context_bindings.cc': 'Python’s side; tests/integrations/python drives it over real daemons',
    'integrations/python/src/errors.cc': 'Python’s side; tests/integrations/python drives it over real daemons',
    'integrations/python/src/layer_load_bindings.cc': 'Python’s side; tests/integrations/python/layer_load_*test.py drive it',
    'integrations/python/src/memory_probe.cc': 'tests/integrations/python/drop_in_arguments_test.py gives it addresses of nobody',
    'integrations/python/src/model_bindings.cc': 'Python’s side; tests/integrations/python/models_*test.py drive it over real daemons',
    'integrations/python/src/model_job.cc': 'Python’s side; tests/integrations/python/models_*test.py drive it over real daemons',
    'integrations/python/src/model_options.cc': 'Python’s side; tests/integrations/python/models_test.py drives it over real daemons',
    'integrations/python/src/module.cc': 'Python’s side; tests/integrations/python drives it over real daemons',
    'integrations/python/src/slot_runs.cc': 'tests/integrations/python/drop_in_arguments_test.py compares it with slots counted out one by one',
    'integrations/python/src/cc_pool.cc': 'tests/integrations/python/drop_in_*_test.py drive it over real daemons',
    'bench/model_bench.cc': 'processes and a cluster; tests/bench/model_command_test.cc runs it',
    'bench/model_instance.cc': 'the processes of ems-bench model; tests/bench/model_command_test.cc runs them',
    'pdc/engine/internal/attention.cc': 'part of the engine; tests/pdc/engine/engine_reference_test.cc computes it another way',
    'pdc/engine/internal/feed_forward.cc': 'part of the engine; tests/pdc/engine/engine_reference_test.cc computes it another way',
    'pdc/engine/internal/kernels_avx2.cc': 'one of the tables that tests/pdc/engine/internal/kernels_test.cc compares',
    'pdc/engine/internal/kernels_avx512.cc': 'one of the tables that tests/pdc/engine/internal/kernels_test.cc compares',
    'pdc/engine/internal/kernels_portable.cc': 'one of the tables that tests/pdc/engine/internal/kernels_test.cc compares',
    'pdc/engine/internal/packed_model.cc': 'part of the engine; tests/pdc/engine/engine_reference_test.cc reads the same weights',
    'pdc/engine/internal/transformer.cc': 'part of the engine; tests/pdc/engine/engine_reference_test.cc computes it another way',
    'mp_server/model_puller.cc': 'threads around ModelPull, BlockPuller and FileChecker; tests/e2e/model_prefetch_test.cc drives it in daemons',
    'mp_server/server.cc': 'ties the parts; the tests of tests/e2e and tests/fault drive it as a daemon',
}

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80
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
        edges = defaultdict(dict)
        for path in self.sources:
            for line, header in includes_of(self.text[path]):
                self._check_level(path, line, header, edges)
                self._check_door(path, line, header)
                self._check_heavy(path, line, header)
        self._check_cycles(edges)

    def _check_level(self, path, line, header, edges):
        own, other = module_of(path), module_of(header)
        if own is None or other is None:
            return
        if '/internal/' in header and own != other and not path.startswith('tests/'):
            self.report(path, line, 'internal', f'{header} is closed to other folders; use the public headers of {other}/')
        if own == other:
            return
        edges[own].setdefault(other, (path, line))
        if own in FREE:
            return
        if other in FREE:
            self.report(path, line, 'level', f'the product includes {other}/; move what is shared to a lower folder')
        elif LEVELS[other] >= LEVELS[own]:
            word = 'sideways' if LEVELS[other] == LEVELS[own] else 'upwards'
            self.report(path, line, 'level', f'{own}/ (level {LEVELS[own]}) includes {word} {other}/ (level {LEVELS[other]}); '
                        'move what is shared to a lower folder, or pass it in from main.cc')

    def _check_cycles(self, edges):
        """Reports each folder from which a chain of includes leads back to it, once for each cycle."""
        done, trail = set(), []

        def visit(folder):
            if folder in trail:
                cycle = trail[trail.index(folder):] + [folder]
                path, line = edges[cycle[-2]][folder]
                self.report(path, line, 'cycle', f'folders include each other: {" → ".join(cycle)}; break it at one of them')
                return
            if folder in done:
                return
            trail.append(folder)
            for other in sorted(edges[folder]):
                visit(other)
            trail.pop()
            done.add(folder)

        for folder in sorted(edges):
            visit(folder)

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
            mirror = f'tests/{path[:-3]}_test.cc'
            if mirror not in there and path not in NO_TEST:
                self.report(path, 1, 'test', f'has no {mirror}; write it, or give a reason in NO_TEST of tools/check_layers.py')
        for path in NO_TEST if 'tools/check_layers.py' in there else ():
            if path not in there:
                self.report('tools/check_layers.py', 1, 'test', f'NO_TEST names {path}, which is not there; remove the entry')

    # --- (e): sizes

    def check_sizes(self):
        for path in self.sources:
            raw = self.text[path].split('\n')
            lines = len(raw) - (raw[-1] == '')
            if lines > FILE_LINES_MAX:
                self.report(path, lines, 'file-lines', f'{lines} lines, {FILE_LINES_MAX} are allowed; split by noun')
            for number, line in enumerate(raw, 1):
                if len(line) > COLUMNS_MAX and '://' not in line and not line.lstrip().startswith('#include'):
                    self.report(path, number, 'columns', f'{len(line)} columns, {COLUMNS_MAX} are allowed; break the line')
            for name, first, last in functions_of(self.code[path]):
                if last - first + 1 > FUNCTION_LINES_MAX and not excused(raw, first, 'function-lines'):
                    self.report(path, first, 'function-lines', f'{name} has {last - first + 1} lines, {FUNCTION_LINES_MAX} are '
                                'allowed; give its steps names')

    # --- (f): docs

    def check_docs(self):
        self._check_maps()
        for path in self.files:
            if path.endswith('.md'):
                self._check_links(path)

    def _check_maps(self):
        by_folder = defaultdict(list)
        for path in self.sources:
            if path.endswith('.h') and not path.startswith('tests/') and '/internal/' not in path:
                by_folder[path.split('/')[0]].append(path)
        for folder, headers in sorted(by_folder.items()):
            readme = f'{folder}/README.md'
            if readme not in self.files:
                self.report(readme, 1, 'map', 'is missing; say purpose, public headers and threads of the folder')
                continue
            text = self._read(readme)
            for header in headers:
                inside = header[len(folder) + 1:]
                # A header may go by its stem when a line speaks of header and source together.
                if not re.search(r'(?<![\w/])' + re.escape(inside[:-2]) + r'(?!\w)', text):
                    self.report(readme, 1, 'map', f'does not name {inside}; add a line for it')
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

def module_of(path):
    """The folder that rules speak of: the longest one of LEVELS or FREE that `path` is in, or None."""
    parts = path.split('/')[:-1]
    for end in range(len(parts), 0, -1):
        folder = '/'.join(parts[:end])
        if folder in LEVELS or folder in FREE:
            return folder
    return None


def includes_of(text):
    """(line, header) of each #include."""
    for number, line in enumerate(text.split('\n'), 1):
        match = re.match(r'\s*#\s*include\s*[<"]([^">]+)[">]', line)
        if match:
            yield number, match.group(1)


_BLANKED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-zA-Z_])\'(?:\\.|[^\'\\\n])+\'',
    re.S)


def blank_comments_and_texts(text):
    """The code alone: comments and literals become spaces, lines stay where they are."""
    return _BLANKED.sub(lambda m: re.sub(r'[^\n]', ' ', m.group()), text)


def excused(raw_lines, number, rule):
    for line in raw_lines[max(0, number - 2):number]:
        match = EXCUSE.search(line)
        if match and match.group(1) == rule:
            return True
    return False


def functions_of(code):
    """(name, first line, last line) of each function body that is not inside another, by matching braces."""
    code = re.sub(r'^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', lambda m: re.sub(r'[^\n]', ' ', m.group()), code, flags=re.M)
    scopes, head, head_line, line = [], '', 1, 1  # a scope: None, or (name, first line) of a function
    for position, char in enumerate(code):
        if char == '\n':
            line += 1
        if char == '{':
            inside = any(scope is not None for scope in scopes)
            name = None if inside else function_name(head)
            scopes.append((name, head_line) if name else None)
            head = ''
        elif char == '}':
            scope = scopes.pop() if scopes else None
            rest = code[position + 1:position + 200].lstrip()
            if scope and rest[:1] in (',', '{') and ':' in scope[0][1]:
                head, head_line = scope[0][1], scope[1]  # a brace of a constructor's initialiser list
            else:
                if scope:
                    yield scope[0][0], scope[1], line
                head = ''
        elif char == ';':
            head = ''
        else:
            if not head.strip():
                head, head_line = '', line
            head += char


def function_name(head):
    """(name, head) when `head`, the text before a brace, declares a function; else None."""
    flat = ' '.join(head.split())
    if re.match(r'(template\s*<.*>\s*)?(inline )?(namespace|class|struct|union|enum|extern)\b', flat) or '(' not in flat:
        return None
    before = flat.split('(')[0]
    if re.search(r'(?<![=!<>])=(?!=)', before.replace('operator=', '')):
        return None
    match = re.search(r'((?:[\w~]+::)*(?:operator\S+|[\w~]+))\s*$', before)
    name = match.group(1) if match else '?'
    if name in ('TEST', 'TEST_F', 'TEST_P'):
        name = flat[:flat.find(')') + 1]
    return name, head


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
