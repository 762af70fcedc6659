"""Feeds tools/check_layers.py small trees: each bad sample must give exactly its finding, each good one none."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE_DIR = os.environ.get('EMS_SOURCE_DIR', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
CHECKER = os.path.join(SOURCE_DIR, 'tools', 'check_layers.py')


def check(files, only):
    """Runs the checker on a tree of {path: text}; returns (exit code, [(path, line, rule)], output)."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, 'w', encoding='utf-8') as file:
                file.write(text)
        run = subprocess.run([sys.executable, '-B', CHECKER, '--root', root, '--only', only],
                             capture_output=True, text=True, check=False)
        found = [(path, int(line), rule) for path, line, rule in
                 re.findall(r'^([^:\n]+):(\d+): \[([\w-]+)\]', run.stdout, flags=re.M)]
        return run.returncode, found, run.stdout + run.stderr


class CheckLayersTest(unittest.TestCase):
    def expect(self, files, only, findings):
        code, found, output = check(files, only)
        self.assertEqual(sorted(found), sorted(findings), output)
        self.assertEqual(code, 1 if findings else 0, output)
        for line in output.splitlines():
            if '[' in line:
                self.assertIn(';', line, 'a finding says what to do instead')

    def test_downward_include_is_fine(self):
        self.expect({'mp_server/a.cc': '#include "common/status.h"\n#include "cluster/dht_view.h"\n'}, 'includes', [])

    def test_includes_are_paths_from_the_root(self):
        self.expect({'mp_server/a.cc': '#include "b.h"\n#include <vector>\n'}, 'includes', [('mp_server/a.cc', 1, 'path')])
        self.expect({'common/a.cc': '#include "common/../mp_server/b.h"\n'}, 'includes', [('common/a.cc', 1, 'path')])

    def test_headers_of_the_c_api_lie_beside_each_other_but_make_no_cycle(self):
        one_way = {'integrations/c/ems.h': '#include "ems_kv.h"\n', 'integrations/c/ems_kv.h': ''}
        self.expect(one_way, 'includes', [])
        self.expect({**one_way, 'integrations/c/ems_kv.h': '#include "ems.h"\n'}, 'includes', [('integrations/c/ems_kv.h', 1, 'cycle')])

    def test_each_top_folder_is_on_a_floor(self):
        self.expect({'glue/a.cc': '#include "mp_server/b.h"\n'}, 'includes', [('glue/a.cc', 1, 'floor')])
        self.expect({'tests/a.cc': '', 'examples/a.cc': ''}, 'includes', [])

    def test_upward_include(self):
        self.expect({'common/a.cc': '\n#include "mp_server/memory/slab_pool.h"\n'}, 'includes', [('common/a.cc', 2, 'level')])

    def test_sideways_include(self):
        self.expect({'mp_sdk/a.cc': '#include "mp_server/memory/slab_pool.h"\n'}, 'includes', [('mp_sdk/a.cc', 1, 'level')])

    def test_cluster_may_not_include_the_controller(self):
        self.expect({'cluster/a.cc': '#include "mp_controller/membership.h"\n'}, 'includes',
                    [('cluster/a.cc', 1, 'level')])

    def test_fabric_may_include_proto_but_not_the_reverse(self):
        self.expect({'fabric/a.cc': '#include "proto/data_plane.h"\n'}, 'includes', [])
        self.expect({'proto/a.cc': '#include "fabric/rpc.h"\n'}, 'includes', [('proto/a.cc', 1, 'level')])

    def test_product_may_not_include_tests(self):
        self.expect({'mp_sdk/a.cc': '#include "tests/support/cluster.h"\n'}, 'includes', [('mp_sdk/a.cc', 1, 'level')])

    def test_top_folders_of_one_floor_are_siblings(self):
        self.expect({'fabric/a.cc': '#include "cluster/dht_view.h"\n'}, 'includes', [('fabric/a.cc', 1, 'level')])
        self.expect({'bench/a.cc': '#include "tools/terminal.h"\n'}, 'includes', [])
        self.expect({'tools/a.cc': '#include "bench/harness/report.h"\n'}, 'includes', [('tools/a.cc', 1, 'level')])

    def test_cycle_of_folders_is_reported_once(self):
        code, found, output = check({'pdc/kv/a.h': '#include "pdc/rpc/b.h"\n', 'pdc/rpc/b.h': '#include "pdc/kv/c.h"\n', 'pdc/kv/c.h': ''}, 'includes')
        self.assertEqual(code, 1)
        self.assertEqual([rule for _, _, rule in found], ['cycle'], output)
        self.assertIn('folders include each other: pdc/kv → pdc/rpc → pdc/kv', output)

    def test_internal_counts_as_its_folder_in_cycles(self):
        self.expect({'pdc/kv/internal/a.h': '#include "pdc/kv/b.h"\n', 'pdc/kv/b.h': '', 'pdc/kv/c.h': '#include "pdc/kv/internal/a.h"\n'}, 'includes', [])
        code, found, output = check({'pdc/kv/internal/a.h': '#include "pdc/rpc/b.h"\n', 'pdc/rpc/b.h': '#include "pdc/kv/c.h"\n', 'pdc/kv/c.h': ''}, 'includes')
        self.assertEqual([rule for _, _, rule in found], ['cycle'], output)

    def test_cycle_of_files_is_reported_once(self):
        code, found, output = check({'common/a.h': '', 'common/a.cc': '#include "common/b.h"\n', 'common/b.h': '#include "common/a.h"\n'}, 'includes')
        self.assertEqual(code, 1)
        self.assertEqual([rule for _, _, rule in found], ['cycle'], output)
        self.assertIn('files include each other: common/a → common/b → common/a', output)

    def test_internal_is_closed_but_to_its_folder_and_tests(self):
        include = '#include "mp_sdk/internal/router.h"\n'
        self.expect({'bench/a.cc': include}, 'includes', [('bench/a.cc', 1, 'internal')])
        self.expect({'mp_sdk/client.cc': include, 'tests/mp_sdk/internal/router_test.cc': include}, 'includes', [])

    def test_each_library_has_one_door(self):
        for header, door in {'spdlog/spdlog.h': 'common/logging.cc', 'xxhash.h': 'common/hash.cc',
                             'prometheus/registry.h': 'common/metrics.cc', 'yaml-cpp/yaml.h': 'common/yaml_tree.cc',
                             'rocksdb/db.h': 'mp_controller/rows/durable_rows.cc', 'asio.hpp': 'fabric/rpc/tcp.cc',
                             'asio/ip/tcp.hpp': 'fabric/http/tcp.cc', 'grpcpp/grpcpp.h': 'mp_controller/controller_service.cc',
                             'proto/controller.grpc.pb.h': 'cluster/controller_client.cc',
                             'CLI/CLI.hpp': 'common/command_line.cc',
                             'asio/generic/stream_protocol.hpp': 'fabric/net/io_threads.cc',
                             'absl/status/status.h': 'common/status.h'}.items():
            with self.subTest(header=header):
                include = f'#include <{header}>\n'
                self.expect({door: include}, 'includes', [])
                self.expect({'mp_server/store/object_store.cc': include}, 'includes', [('mp_server/store/object_store.cc', 1, 'door')])

    def test_heavy_header_in_a_header(self):
        self.expect({'fabric/tcp.h': '#include <asio.hpp>\n'}, 'includes', [('fabric/tcp.h', 1, 'door'), ('fabric/tcp.h', 1, 'heavy')])
        self.expect({'mp_sdk/a.h': '#include "proto/controller.pb.h"\n'}, 'includes', [('mp_sdk/a.h', 1, 'heavy')])
        self.expect({'mp_controller/x_service.h': '#include "proto/controller.grpc.pb.h"\n'}, 'includes', [])

    def test_banned_words(self):
        for rule, line in {'throw': 'throw 1;', 'thread': 'std::mutex m;', 'sleep': 'std::this_thread::sleep_for(x);',
                           'new': 'auto* p = new int(3);', 'delete': 'delete p;', 'cout': 'std::cout << 1;',
                           'getenv': 'getenv("HOME");', 'friend-test': 'friend class PoolTest;',
                           'for-test': 'void ResetForTest();', 'todo': '// TODO: later'}.items():
            with self.subTest(rule=rule):
                self.expect({'mp_server/a.cc': f'int x;\n{line}\n'}, 'words', [('mp_server/a.cc', 2, rule)])

    def test_words_that_look_banned_but_are_not(self):
        self.expect({'mp_server/a.cc': 'Pool(const Pool&) = delete;\n// a new pool, deleted by throw\nLog("throw new std::cout");\n'
                                       'auto view = new_view;\nreturn std::unique_ptr<V>(new V(a));\nstd::shared_ptr<V> v(new V());\nstd::unique_ptr<V>(\n    new V(a));\nnew (place) V;\nlist.free(x);\nfoo->sleep(3);\nconst auto n = 1\'000\'000;\n'
                                       'auto s = R"(throw delete p)";\n'}, 'words', [])

    def test_words_that_common_may_use(self):
        self.expect({'common/thread_pool.h': 'std::thread thread_;\n', 'tools/x.cc': 'getenv("HOME");\n'}, 'words', [])

    def test_an_excuse_needs_the_rule_and_a_reason(self):
        line = 'auto* v = new V();'
        self.expect({'mp_server/a.cc': f'// check_layers: allow new: private constructor\n{line}\n'}, 'words', [])
        self.expect({'mp_server/a.cc': f'{line}  // check_layers: allow new:\n'}, 'words', [('mp_server/a.cc', 1, 'new')])
        self.expect({'mp_server/a.cc': f'{line}  // check_layers: allow throw: because\n'}, 'words', [('mp_server/a.cc', 1, 'new')])

    def test_each_source_has_its_mirrored_test(self):
        self.expect({'mp_server/pool.cc': '', 'mp_server/main.cc': ''}, 'tests', [('mp_server/pool.cc', 1, 'test')])
        self.expect({'mp_server/pool.cc': '', 'tests/mp_server/pool_test.cc': 'TEST_F(A, B) {}\n'}, 'tests', [])

    def test_a_test_without_cases_is_none(self):
        self.expect({'mp_server/pool.cc': '', 'tests/mp_server/pool_test.cc': '// TEST(A, B)\n'}, 'tests',
                    [('tests/mp_server/pool_test.cc', 1, 'test')])

    def test_bindings_are_driven_from_python(self):
        self.expect({'integrations/python/src/client_bindings.cc': '', 'tests/integrations/python/client_test.py': '    def test_a(self):\n'}, 'tests', [])
        self.expect({'integrations/python/src/errors.cc': '', 'tests/integrations/python/errors_test.cc': 'TEST(A, B) {}\n'}, 'tests', [])
        self.expect({'integrations/python/src/client_bindings.cc': ''}, 'tests', [('integrations/python/src/client_bindings.cc', 1, 'test')])
        self.expect({'mp_server/pool.cc': '', 'tests/mp_server/pool_test.py': ''}, 'tests', [('mp_server/pool.cc', 1, 'test')])

    def test_file_length(self):
        self.expect({'common/a.cc': 'int x;\n' * 500}, 'sizes', [])
        self.expect({'common/a.cc': 'int x;\n' * 501}, 'sizes', [('common/a.cc', 501, 'file-lines')])
        self.expect({'tests/common/a.cc': 'int x;\n' * 600}, 'sizes', [])
        self.expect({'tests/common/a.cc': 'int x;\n' * 601}, 'sizes', [('tests/common/a.cc', 601, 'file-lines')])

    def test_folder_size(self):
        files = {f'pdc/kv/a{i}.h': '' for i in range(40)}
        self.expect(files, 'sizes', [])
        self.expect({**files, 'pdc/kv/a40.h': ''}, 'sizes', [('pdc/kv/a0.h', 1, 'folder')])
        self.expect({f'common/a{i}.h': '' for i in range(41)}, 'sizes', [])

    def test_class_width(self):
        def wide(public, private):
            return ('struct Small { int x; };\nclass A {\n public:\n  A();\n  A(const A&) = delete;\n  ~A();\n  A& operator=(A&&);\n  int size() const { return 1; }\n'
                    + ''.join(f'  Result<int> F{i}(int a,\n      std::function<void(int)> b = {{}});\n' for i in range(public))
                    + ' private:\n  friend class B;\n  struct Impl { void F(); void G() { H(); } };\n  std::function<void(int)> done_;\n'
                    + ''.join(f'  void G{i}() {{ H(); if (x) {{ I(); }} }}\n' for i in range(private)) + '  int x_ = F(2);\n};\n')
        self.expect({'common/a.h': wide(25, 20)}, 'sizes', [])
        self.expect({'common/a.h': wide(26, 20)}, 'sizes', [('common/a.h', 2, 'class-width')])
        self.expect({'common/a.h': wide(25, 21)}, 'sizes', [('common/a.h', 2, 'class-width')])
        self.expect({'tests/common/a.h': wide(26, 21)}, 'sizes', [])
        for attribute in ('EMS_API ', '[[nodiscard]] ', 'alignas(64) '):
            self.expect({'common/a.h': wide(26, 20).replace('class A', f'class {attribute}A')}, 'sizes', [('common/a.h', 2, 'class-width')])

    def test_only_names_of_accessors_are_accessors(self):
        def wide(name):
            return 'class A {\n public:\n' + ''.join(f'  int {name}{i}() const {{ return Work(1); }}\n' for i in range(26)) + '};\n'
        self.expect({'common/a.h': wide('F')}, 'sizes', [('common/a.h', 1, 'class-width')])
        self.expect({'common/a.h': wide('f')}, 'sizes', [])

    def test_second_source_of_a_class(self):
        own = {'pdc/a.h': 'class A {\n  void F();\n};\n', 'pdc/a.cc': 'void A::F() {\n}\n'}
        self.expect(own, 'sizes', [])
        for header in ({}, {'pdc/a_more.h': ''}, {'pdc/a_more.h': 'class A;\n'}):
            self.expect({**own, **header, 'pdc/a_more.cc': '\nvoid A::G() {\n}\n'}, 'sizes', [('pdc/a_more.cc', 2, 'second-source')])
        self.expect({'pdc/a_more.cc': 'class B {\n void G();\n};\nvoid B::G() {\n}\nvoid Free() {\n}\n'}, 'sizes', [])
        self.expect({'pdc/a.h': 'class A {\n struct Impl;\n};\n', 'pdc/a.cc': 'void A::Impl::F() {\n}\n'}, 'sizes', [])

    def test_function_lengths_as_a_whole(self):
        def function(lines):
            return 'int F(int a) {\n' + '  g();\n' * (lines - 2) + '}\n'
        self.expect({'common/a.cc': function(3) * 100 + function(46)}, 'sizes', [])
        self.expect({'common/a.cc': function(3) * 60 + function(46) * 2}, 'sizes', [('common/a.cc', 227, 'function-p99')])

    def test_columns(self):
        self.expect({'common/a.cc': '//' + 'x' * 98 + '\n'}, 'sizes', [])
        self.expect({'common/a.cc': '\n//' + 'x' * 99 + '\n'}, 'sizes', [('common/a.cc', 2, 'columns')])
        self.expect({'common/a.cc': '// https://example.org/' + 'x' * 99 + '\n'}, 'sizes', [])
        self.expect({'common/a.cc': '// ' + 'é' * 97 + '\n'}, 'sizes', [])

    def test_function_length(self):
        def function(lines, head='int F(int a)'):
            return head + ' {\n' + '  if (a) { g("}"); }  // }\n' * (lines - 2) + '}\n'
        self.expect({'tools/a.cc': 'namespace ems {\n' + function(80) + '}\n'}, 'sizes', [])
        self.expect({'tools/a.cc': 'namespace ems {\n' + function(81) + '}\n'}, 'sizes', [('tools/a.cc', 2, 'function-lines')])
        self.expect({'tools/a.cc': 'class A {\n' + function(81, 'A(int a) : b_{a}, c_(2)') + '};\n'}, 'sizes',
                    [('tools/a.cc', 2, 'function-lines')])
        self.expect({'tools/a.cc': '// check_layers: allow function-lines: one table\n' + function(81)}, 'sizes', [])
        self.expect({'tools/a.cc': 'class A {\n' + 'int x;\n' * 100 + '};\nint table[] = {\n' + '1,\n' * 100 + '};\n'}, 'sizes', [])

    def test_folder_readme_names_each_public_header(self):
        files = {'fabric/net/tcp.h': '', 'fabric/net/internal/x.h': '', 'fabric/README.md': 'nothing', 'README.md': 'fabric/'}
        self.expect(files, 'docs', [('fabric/README.md', 1, 'map')])
        self.expect({**files, 'fabric/README.md': '`net/tcp.h`'}, 'docs', [])
        self.expect({**files, 'fabric/README.md': '`net/`: `tcp.h`'}, 'docs', [])
        self.expect({**files, 'fabric/README.md': 'of fabric', 'fabric/net/README.md': '`tcp.h`'}, 'docs', [])
        self.expect({**files, 'fabric/README.md': '`tcp.h`'}, 'docs', [('fabric/README.md', 1, 'map')])
        del files['fabric/README.md']
        self.expect(files, 'docs', [('fabric/README.md', 1, 'map')])

    def test_readme_names_each_folder(self):
        self.expect({'README.md': 'see docs/', 'docs/A.md': '', 'deploy/x.sh': ''}, 'docs', [('README.md', 1, 'map')])

    def test_links_resolve(self):
        files = {'README.md': 'docs/ [a](docs/A.md) [b](docs/A.md#two-words) [c](https://x.org/nowhere)\n```\n[d](e)\n```\n',
                 'docs/A.md': '# Two words\n'}
        self.expect(files, 'docs', [])
        self.expect({**files, 'docs/B.md': '\n[a](C.md)\n[b](A.md#three)\n'}, 'docs',
                    [('docs/B.md', 2, 'link'), ('docs/B.md', 3, 'link')])

    def test_sources_named_in_documents_exist(self):
        files = {'README.md': 'docs/ fabric/ `fabric/tcp.cc` then\n`fabric/udp.cc`\n', 'fabric/tcp.cc': '', 'docs/x': ''}
        self.expect(files, 'docs', [('README.md', 2, 'link')])

    def test_unknown_check_is_a_usage_error(self):
        code, _, output = check({}, 'spelling')
        self.assertEqual(code, 2)
        self.assertIn('spelling', output)


if __name__ == '__main__':
    unittest.main()
