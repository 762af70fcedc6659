"""The packages of programs and of the C++ SDK, unpacked beside the system: what is in them, and that it works from there."""
import gzip
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from cluster import Cluster
from model_files import safetensors, write
from packages import BUILD, SOURCE_DIR, UNITS, UnitDaemon, make_debs, output, unit_of

PROGRAMS = ('mp-controller', 'mp-server', 'ems-pdc', 'emsctl', 'ems-bench')
EXPOSURE_MAX = 40  # tenths, of systemd-analyze security
TWICE = '0 blocks loaded, 7 computed, 7 saved\n7 blocks loaded, 0 computed, 0 saved\n'  # 1000 tokens are 7 full blocks of 128
LOADED = '{0} of {0} bytes are those of the file\n2 tensors of rank 1, 24 bytes\n'
MODEL = ('m@v1', 'model.safetensors')
# With a program in C++ → arguments of that behind the controller, and what it prints
PAGES = {'ENGINE_DEVELOPERS.md': ((), TWICE), 'CPP_API.md': ((), TWICE + 'equal\n'), 'MODEL_CACHING.md': (MODEL, LOADED)}


def read(*path):
    with open(os.path.join(*path), encoding='utf-8') as file:
        return file.read()


class PackagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.out = tempfile.mkdtemp(prefix='ems-packages-')
        cls.addClassCleanup(shutil.rmtree, cls.out, ignore_errors=True)
        cls.root = os.path.join(cls.out, 'root')
        cls.debs = make_debs(cls.out, 'ems-controller', 'ems-server', 'ems-pdc', 'ems-tools', 'libems-cpp-dev')
        for deb in cls.debs.values():
            output('dpkg-deb', '-x', deb, cls.root)

    def bin(self, program):
        return os.path.join(self.root, 'usr', 'bin', program)

    def control(self, package):
        """Folder with the control files of a package."""
        folder = os.path.join(self.out, 'control', package)
        if not os.path.exists(folder):
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            output('dpkg-deb', '-e', self.debs[package], folder)
        return folder

    def test_programs_are_stripped_and_run_with_what_their_packages_name(self):
        for program in PROGRAMS:
            self.assertIn('0.2.0', output(self.bin(program), '--version'))
            self.assertNotIn('not found', output('ldd', self.bin(program)))
            sections = output('readelf', '-S', '--wide', self.bin(program))
            self.assertNotRegex(sections, r'\.debug_|\.symtab', program)
            self.assertNotRegex(output('readelf', '-d', self.bin(program)), 'RPATH|RUNPATH')
        for package in self.debs:
            needs = output('dpkg-deb', '-f', self.debs[package], 'Depends').strip()
            for need in re.findall(r'([a-z0-9.+-]+)(?: \(.*?\))?(?:, |$)', needs):
                self.assertTrue(output('dpkg-query', '-W', need), need)  # Debian has it

    def test_each_package_says_what_it_is(self):
        for package in self.debs:
            documents = os.path.join(self.root, 'usr', 'share', 'doc', package)
            self.assertIn('/usr/share/common-licenses/Apache-2.0', read(documents, 'copyright'))
            with gzip.open(os.path.join(documents, 'changelog.gz'), 'rt') as file:
                self.assertTrue(file.read().startswith('ems (0.2.0) '))
            self.assertIn('EMS, an elastic memory service', output('dpkg-deb', '-f', self.debs[package], 'Description'))

    def test_the_tools_bring_rules_and_dashboards(self):
        folder = os.path.join('usr', 'share', 'ems', 'monitoring')
        for path in ('ems.rules.yaml', 'prometheus.yml', 'targets/servers.yaml', 'grafana/dashboards/cluster.json',
                     'grafana/provisioning/dashboards/ems.yaml'):
            self.assertEqual(read(self.root, folder, path), read(SOURCE_DIR, 'deploy', 'monitoring', path))
        self.assertFalse(os.path.exists(os.path.join(self.root, folder, 'make_dashboards.py')))

    def test_programs_have_manuals_that_can_be_set(self):
        for program in PROGRAMS:
            section = 1 if program in ('emsctl', 'ems-bench') else 8
            path = os.path.join(self.root, 'usr', 'share', 'man', f'man{section}', f'{program}.{section}.gz')
            with gzip.open(path, 'rt') as file:
                page = file.read()
            run = subprocess.run(['groff', '-k', '-man', '-Tutf8', '-ww', '-z'], input=page, capture_output=True, text=True, check=False)
            self.assertEqual((run.returncode, run.stderr.strip()), (0, ''), program)
            self.assertIn(f'.SH NAME\n{program} \\- ', page)
            self.assertIn('CONFIGURATION' if section == 8 else f'.SH {program.upper()} ', page)
            if program == 'emsctl':
                self.assertEqual(page.count('\nExamples:'), 1, 'its commands do not repeat the end of its help')

    def test_bash_completes_commands_and_options(self):
        completions = os.path.join(self.root, 'usr', 'share', 'bash-completion', 'completions')
        script = ('source "$1/emsctl"; COMP_WORDS=("$2/emsctl" "${@:3}"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); '
                  '_emsctl "$2/emsctl"; printf "%s\\n" "${COMPREPLY[@]}"')
        for typed, wanted in ((['stat'], {'stat', 'status'}), (['--js'], {'--json'}), (['namespace', 'cr'], {'create'}),
                              (['ex'], {'exists'}), (['--controller', '10.0.0.1:7400', 'node', 'sh'], {'show'})):
            shown = output('bash', '-c', script, 'bash', completions, self.bin(''), *typed).split()
            self.assertEqual(set(shown), wanted, typed)

    def test_units_start_what_is_there_and_may_do_little(self):
        for package, name in UNITS.items():
            path = os.path.join(self.root, 'lib', 'systemd', 'system', name + '.service')
            service = unit_of(path)['Service']
            program, flag, config = service['ExecStart'].split()
            self.assertEqual(program, '/usr/bin/' + name)
            self.assertEqual(flag, '--config')
            self.assertTrue(os.path.isfile(self.root + program) and os.path.isfile(self.root + config), path)
            self.assertEqual(service['RestartPreventExitStatus'], '2')
            self.assertEqual(unit_of(path)['Unit']['StartLimitIntervalSec'], '0')  # what heals by itself is tried again until then
            self.assertEqual(read(self.control(package), 'conffiles'), config + '\n')
            output('systemd-analyze', 'security', '--offline=true', f'--threshold={EXPOSURE_MAX}', path)
        # Clients on the host: its socket's folder is the server's, its group that of the clients.
        unit = unit_of(os.path.join(self.root, 'lib', 'systemd', 'system', 'mp-server.service'))['Service']
        self.assertEqual((unit['RuntimeDirectory'], unit['RuntimeDirectoryPreserve'], unit['Group']), ('ems', 'yes', 'ems'))
        self.assertIn('unix_path: /run/ems/', read(self.root, 'etc', 'ems', 'server.yaml'))
        unit = unit_of(os.path.join(self.root, 'lib', 'systemd', 'system', 'ems-pdc.service'))['Service']
        self.assertEqual((unit['DynamicUser'], unit['SupplementaryGroups']), ('yes', 'ems'))

    def test_a_server_starts_only_once_it_has_a_name(self):
        for program, config, code in (('mp-controller', 'controller.yaml', 0), ('ems-pdc', 'pdc.yaml', 0), ('mp-server', 'server.yaml', 2)):
            command = [self.bin(program), '--config', os.path.join(self.root, 'etc', 'ems', config), '--check-config']
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(run.returncode, code, run.stdout + run.stderr)
        self.assertIn('name', run.stderr)
        output(*command, '--set', 'name=a')

    def test_daemons_tell_the_service_manager(self):
        with tempfile.TemporaryDirectory(prefix='ems-units-') as folder:
            ports = ('--set', 'listen=127.0.0.1:0', '--set', 'http_listen=127.0.0.1:0')
            server = ports + ('--set', f'data_dir={folder}/s', '--set', f'unix_path={folder}/s.sock', '--set', 'name=a',
                              '--set', 'dram.bytes=128MiB', '--set', 'controller=127.0.0.1:1')
            for name, more in (('mp-controller', ports + ('--set', f'data_dir={folder}/c')), ('mp-server', server),
                               ('ems-pdc', ports + ('--set', 'model.preset=tiny'))):
                with UnitDaemon(self.root, name, more) as daemon:
                    self.assertEqual(daemon.stop(), 0)
                    self.assertEqual(daemon.said(), 'STOPPING=1', name)

    def test_scripts_are_shell_and_name_their_own_unit(self):
        for package, name in UNITS.items():
            for script in ('postinst', 'prerm', 'postrm'):
                path = os.path.join(self.control(package), script)
                output('sh', '-n', path)
                text = read(path)
                self.assertNotRegex(text, r'@[A-Z_]+@')
                self.assertIn(name, text, path)

    def test_a_purge_ends_though_a_folder_cannot_go_and_keeps_the_user(self):
        text = read(self.control('ems-server'), 'postrm')
        self.assertNotRegex(text, 'userdel|groupdel')
        folder = os.path.join(self.out, 'purge')
        write(folder, {'bin/rm': b'#!/bin/sh\n[ "$1" != -rf ]\n'})  # a mount point: busy
        os.chmod(os.path.join(folder, 'bin', 'rm'), 0o755)
        for path in ('/var/', '/run/', '/etc/'):
            text = text.replace(path, folder + path)
        said = output('sh', '-c', text, 'postrm', 'purge', env={**os.environ, 'PATH': folder + '/bin:' + os.environ['PATH']})
        self.assertIn(f'left for you to remove: {folder}/var/lib/ems/server', said)

    @unittest.skipIf(os.environ.get('EMS_SANITIZE'), 'a plain program cannot link a sanitized library')
    def test_the_pages_programs_are_built_with_the_cpp_package_and_run(self):
        engine = os.path.join(self.out, 'engine')
        cmake_list, = re.findall(r'```cmake\n(.*?)```', read(SOURCE_DIR, 'docs', 'CPP_API.md'), re.S)
        weights = safetensors({'wq': ('F32', (4, 2), bytes(32)), 'norm': ('F32', (2,), bytes(8))})
        with Cluster(servers=2, server_flags=['models.file_root={folder}']) as cluster:
            folder = os.path.join(cluster.folder, 'model')
            write(folder, {MODEL[1]: weights})
            output(self.bin('emsctl'), '--controller', cluster.address, 'model', 'add', MODEL[0], folder)
            for page, (arguments, wanted) in PAGES.items():
                os.makedirs(engine, exist_ok=True)
                program = ''.join(re.findall(r'```cpp\n(.*?)```', read(SOURCE_DIR, 'docs', page), re.S))
                for name, text in (('engine.cc', program), ('CMakeLists.txt', cmake_list)):
                    with open(os.path.join(engine, name), 'w', encoding='utf-8') as file:
                        file.write(text)
                output('cmake', '-G', 'Ninja', '-S', engine, '-B', engine, f'-DCMAKE_PREFIX_PATH={self.root}/usr',
                       '-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror')
                output('ninja', '-C', engine)
                self.assertIn(self.root, read(engine, 'CMakeCache.txt'), 'the package, not what this machine may have')
                printed = output(os.path.join(engine, 'engine'), cluster.address, *arguments)
                self.assertEqual(printed, wanted.format(len(weights)))

    @unittest.skipIf(os.environ.get('EMS_SANITIZE'), 'a plain program cannot link a sanitized library')
    def test_each_header_of_the_cpp_package_stands_alone_and_pkg_config_links_it(self):
        include = os.path.join(self.root, 'usr', 'include', 'ems')
        headers = sorted(os.path.relpath(os.path.join(folder, name), include)
                         for folder, _, names in os.walk(include) for name in names)
        self.assertIn('mp_sdk/client.h', headers)
        pkgconfig = os.path.dirname(output('find', self.root, '-name', 'ems-cpp.pc').strip())
        flags = output('pkg-config', '--cflags', '--libs', 'ems-cpp', env={**os.environ, 'PKG_CONFIG_PATH': pkgconfig}).split()
        source = os.path.join(self.out, 'all.cc')
        with open(source, 'w', encoding='utf-8') as file:
            file.write(''.join(f'#include "{header}"\n' for header in headers))
            file.write('int main() { return ems::Client::Connect({.controller = "127.0.0.1:1"}).ok() ? 1 : 0; }\n')
        output('c++', '-std=c++20', source, '-o', os.path.join(self.out, 'all'), *flags)
        for header in headers:  # what one of them includes is there, whichever comes first
            for needed in re.findall(r'^#include "(.*)"', read(include, header), re.M):
                self.assertIn(needed, headers, header)

    def test_ems_in_another_project_is_the_sdk_alone(self):
        project = os.path.join(self.out, 'project')
        os.makedirs(project)
        with open(os.path.join(project, 'CMakeLists.txt'), 'w', encoding='utf-8') as file:
            file.write(f'cmake_minimum_required(VERSION 3.25)\nproject(engine LANGUAGES C CXX)\n'
                       f'add_subdirectory({SOURCE_DIR} ems EXCLUDE_FROM_ALL)\nadd_executable(engine engine.cc)\n'
                       'target_link_libraries(engine PRIVATE ems::ems_context ems::ems_model)\n')
        shutil.copy(os.path.join(SOURCE_DIR, 'examples', 'cpp', 'kv_blocks.cc'), os.path.join(project, 'engine.cc'))
        build = os.path.join(project, 'build')
        output('cmake', '-G', 'Ninja', '-S', project, '-B', build)
        self.assertIn('Total Tests: 0', output('ctest', '-N', '--test-dir', build))
        targets = {line.split(':')[0] for line in output('ninja', '-C', build, '-t', 'targets', 'all').splitlines()}
        self.assertIn('engine', targets)
        for program in PROGRAMS + ('tests_common', 'ems_c'):
            self.assertNotIn(program, targets)
        compiled, = (line for line in output('ninja', '-C', build, '-t', 'commands', 'engine').splitlines() if 'engine.cc.o -c' in line)
        self.assertRegex(compiled, r'-std=(c|gnu)\+\+20', 'the project does not ask for it: EMS does')
        output('sh', '-c', compiled, cwd=build)
        output('ninja', '-C', build, 'ems_common')  # what daemons define for it does not lack


if __name__ == '__main__':
    unittest.main()
