#!/usr/bin/python3
"""Packs what is built into Debian packages for this machine's Debian and architecture.

    deploy/make_debs.py --build-dir build/release --out DIR [PACKAGE …]

    ems-controller   mp-controller, its unit and configuration     needs the target mp-controller
    ems-server       mp-server, its unit and configuration         needs the target mp-server
    ems-pdc          ems-pdc, its unit and configuration           needs the target ems-pdc
    ems-tools        emsctl, ems-bench, deploy/monitoring          needs the targets emsctl ems-bench
    python3-ems      the Python package ems                        needs the targets ems_python ems_python_sources
    libems0          libems.so.0, the C API                        needs the target ems_c
    libems-dev       its headers, link name and pkg-config file
    libems-cpp-dev   the C++ SDK, a static library                 needs the target ems_cpp

Without PACKAGE all of them. Prints the path of each. Needs dpkg-dev and binutils; no root.
"""
import argparse
import concurrent.futures
import dataclasses
import email.utils
import glob
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import zipfile

from man_page import man_page

SOURCE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEBIAN = os.path.join(SOURCE_DIR, 'deploy', 'debian')  # what goes into packages as it stands, but for @NAMES@
MULTIARCH = sysconfig.get_config_var('MULTIARCH')
MAINTAINER = os.environ.get('DEBFULLNAME', 'EMS') + ' <' + os.environ.get('DEBEMAIL', 'root@localhost') + '>'

TRACE = 'conversation_trace.jsonl.gz'
PROGRAMS = {  # program → what its manual says it is, and the section of that
    'mp-controller': ('control plane of an elastic memory service', 8),
    'mp-server': ('gives memory to the pool of an elastic memory service', 8),
    'ems-pdc': ('serving loop with prefill, decode and caching apart', 8),
    'emsctl': ('watches and changes a cluster of an elastic memory service', 1),
    'ems-bench': ('measures an elastic memory service', 1)}
# What integrations/cpp/ems-config.cmake asks for.
CPP_LIBRARIES = ('libabsl-dev', 'libcurl4-openssl-dev', 'libfmt-dev', 'libgrpc++-dev', 'libprotobuf-dev', 'libpugixml-dev',
                 'libspdlog-dev', 'libssl-dev', 'libxxhash-dev', 'pkg-config', 'prometheus-cpp-dev', 'protobuf-compiler-grpc')
TRY_RESTART = 'deb-systemd-invoke try-restart @UNIT@.service || echo "@PACKAGE@: @UNIT@ did not start again: journalctl -u @UNIT@"'
DAEMONS = {  # package → program, configuration, folders that a purge removes, what an upgrade does with one that runs
    'ems-controller': ('mp-controller', 'controller.yaml', '/var/lib/ems/controller', TRY_RESTART),
    'ems-server': ('mp-server', 'server.yaml', '/var/lib/ems/server /run/ems',
                   'echo "@PACKAGE@: a server that runs goes on with the old program, for its pool ends with it: restart mp-server"'),
    'ems-pdc': ('ems-pdc', 'pdc.yaml', '/run/ems-pdc', TRY_RESTART)}


@dataclasses.dataclass
class Build:
    folder: str
    version: str      # of the project
    deb_version: str  # of its packages


class Failure(Exception):
    """Told to the user as it stands."""


def output(*command, cwd=None):
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if run.returncode != 0:
        raise Failure(f'{" ".join(command)}: exit {run.returncode}\n{run.stdout}{run.stderr}')
    return run.stdout


def built(path, target):
    if not os.path.exists(path):
        raise Failure(f'{path} is not there: build the target {target} first')
    return path


def place(source, target):
    """Copies a file to a path whose folders need not exist."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)


def link(root, path, to):
    os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
    os.symlink(to, os.path.join(root, path))


def write(root, path, text, mode=0o644):
    target = os.path.join(root, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, 'w', encoding='utf-8') as file:
        file.write(text)
    os.chmod(target, mode)


def write_compressed(root, path, text):
    target = os.path.join(root, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, 'wb') as file:
        file.write(gzip.compress(text.encode(), mtime=0))


def template(name, **values):
    with open(os.path.join(DEBIAN, name), encoding='utf-8') as file:
        text = file.read()
    for _ in range(2):  # values name others
        text = re.sub(r'@([A-Z_]+)@', lambda match: values[match.group(1)], text)
    return text


def describe(what, text):
    return '\n '.join([f'EMS, an elastic memory service for LLM inference: {what}', *textwrap.wrap(text, 76)])


def strip(path):
    output('strip', '--strip-unneeded', '--remove-section=.comment', path)


def shared_library_packages(*paths):
    """Packages that have the libraries which the files at `paths` are linked with, and their oldest versions that do."""
    with tempfile.TemporaryDirectory() as folder:  # dpkg-shlibdeps wants to be in a source package
        write(folder, 'debian/control', 'Source: ems\n\nPackage: any\nArchitecture: any\n')
        text = output('dpkg-shlibdeps', '-O', *('-e' + path for path in paths), cwd=folder)
    return re.search(r'^shlibs:Depends=(.*)$', text, re.M).group(1).split(', ')


def program(build, root, name):
    """Places a built program, its manual and its completion; returns the path of the program."""
    path = os.path.join(root, 'usr', 'bin', name)
    binary = built(os.path.join(build.folder, 'bin', name), name)
    place(binary, path)
    strip(path)
    os.chmod(path, 0o755)
    summary, section = PROGRAMS[name]
    page = man_page(binary, name, section, build.version, summary)
    write_compressed(root, f'usr/share/man/man{section}/{name}.{section}.gz', page)
    completion = (output(binary, 'completion', 'bash') if name == 'emsctl'
                  else template('completion.bash', PROGRAM=name, FUNCTION=name.replace('-', '_')))
    write(root, f'usr/share/bash-completion/completions/{name}', completion)
    return path


def daemon(build, root, name):
    """A package of one daemon: its program, unit, configuration, and what makes and removes its user."""
    binary, config, state, after_upgrade = DAEMONS[name]
    needs = shared_library_packages(program(build, root, binary))
    with open(os.path.join(SOURCE_DIR, 'deploy', 'config', config), encoding='utf-8') as file:
        text = file.read()
    # Two servers with one name take each other's place: each operator gives one, and none starts before.
    write(root, 'etc/ems/' + config, text.replace('\nname: server-1  ', '\n# name: server-1'))
    write(root, 'DEBIAN/conffiles', f'/etc/ems/{config}\n')
    unit = os.path.join(SOURCE_DIR, 'deploy', 'systemd', binary + '.service')
    place(unit, os.path.join(root, 'lib', 'systemd', 'system', binary + '.service'))
    for script in ('postinst', 'prerm', 'postrm'):
        text = template('daemon.' + script, PACKAGE=name, UNIT=binary, CONFIG=config, STATE=state, DAEMONS=' '.join(DAEMONS),
                        AFTER_UPGRADE=after_upgrade)
        write(root, 'DEBIAN/' + script, text, 0o755)
    return {'Section': 'net', 'Depends': ', '.join(['passwd'] + needs)}


# --- The packages: each fills `root` and returns the fields of its control file that are its own.

def ems_controller(build, root):
    return {**daemon(build, root, 'ems-controller'), 'Description': describe(
        'controller of a cluster',
        'mp-controller keeps who is in the cluster and which server owns which keys. A cluster has one.')}


def ems_server(build, root):
    examples = os.path.join(root, 'usr', 'share', 'doc', 'ems-server', 'examples')
    place(os.path.join(DEBIAN, 'ems-hugepages.conf'), os.path.join(examples, 'ems-hugepages.conf'))
    return {**daemon(build, root, 'ems-server'), 'Description': describe(
        'server',
        "mp-server gives a machine's DRAM and SSD to the pool of a cluster. One a machine.")}


def ems_pdc(build, root):
    return {**daemon(build, root, 'ems-pdc'), 'Suggests': 'ems-server', 'Description': describe(
        'serving loop',
        'ems-pdc serves a small language model with prefill, decode and the pool apart from each other. NPUs and the links '
        'between them are emulated.')}


def ems_tools(build, root):
    needs = shared_library_packages(*(program(build, root, name) for name in ('emsctl', 'ems-bench')))
    data = os.path.join(SOURCE_DIR, 'bench', 'data')
    place(os.path.join(data, TRACE), os.path.join(root, 'usr', 'share', 'ems', TRACE))
    place(os.path.join(data, 'NOTICE'), os.path.join(root, 'usr', 'share', 'doc', 'ems-tools', 'NOTICE'))
    shutil.copytree(os.path.join(SOURCE_DIR, 'deploy', 'monitoring'), os.path.join(root, 'usr', 'share', 'ems', 'monitoring'),
                    ignore=shutil.ignore_patterns('*.py', '__pycache__'))
    return {'Section': 'net', 'Depends': ', '.join(needs),
            'Suggests': 'ems-controller, ems-server, fio, memcached, redis-server', 'Description': describe(
                'tools',
                'emsctl watches and changes a cluster; ems-bench measures it. Rules of Prometheus and dashboards of Grafana are in '
                '/usr/share/ems/monitoring.')}


def python3_ems(build, root):
    modules = os.path.join(root, 'usr', 'lib', 'python3', 'dist-packages')
    built(os.path.join(build.folder, 'python', 'ems'), 'ems_python')
    with tempfile.TemporaryDirectory() as folder:
        make_wheel = os.path.join(SOURCE_DIR, 'integrations', 'python', 'make_wheel.py')
        wheel = output(sys.executable, '-B', make_wheel, os.path.join(build.folder, 'python'), folder).strip()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(modules)
    info = os.path.join(modules, f'ems-{build.version}.dist-info')
    os.remove(os.path.join(info, 'RECORD'))  # without it pip leaves alone what is dpkg's
    write(info, 'INSTALLER', 'debian\n')
    extension, = glob.glob(os.path.join(modules, 'ems', '_ems.*.so'))
    strip(extension)
    write(root, 'DEBIAN/postinst', '#!/bin/sh\nset -e\nif [ "$1" = configure ] && command -v py3compile >/dev/null; then\n'
          '  py3compile -p python3-ems\nfi\n', 0o755)
    write(root, 'DEBIAN/prerm', '#!/bin/sh\nset -e\nif command -v py3clean >/dev/null; then\n  py3clean -p python3-ems\nfi\n',
          0o755)
    major, minor = sys.version_info[:2]  # the extension is for this one
    return {'Section': 'python',
            'Depends': ', '.join([f'python3 (>= {major}.{minor})', f'python3 (<< {major}.{minor + 1})']
                                 + shared_library_packages(extension)),
            'Recommends': 'python3-numpy',
            'Description': describe('Python package',
                                    'A client, prefix caching for paged tensors, and the interface of the SDK that engines know.')}


def libems0(build, root):
    name = f'libems.so.{build.version}'
    library = os.path.join(root, 'usr', 'lib', MULTIARCH, name)
    place(built(os.path.join(build.folder, 'lib', name), 'ems_c'), library)
    strip(library)
    link(root, f'usr/lib/{MULTIARCH}/libems.so.0', name)
    write(root, 'DEBIAN/shlibs', f'libems 0 libems0 (>= {build.version})\n')
    write(root, 'DEBIAN/triggers', 'activate-noawait ldconfig\n')
    return {'Section': 'libs', 'Multi-Arch': 'same', 'Depends': ', '.join(shared_library_packages(library)),
            'Description': describe('C library', 'For programs that are linked with libems.')}


def libems_dev(build, root):
    sources = os.path.join(SOURCE_DIR, 'integrations', 'c')
    for header in ('ems.h', 'ems_kv.h', 'ems_models.h'):
        place(os.path.join(sources, header), os.path.join(root, 'usr', 'include', header))
    link(root, f'usr/lib/{MULTIARCH}/libems.so', 'libems.so.0')
    values = {'EMS_PC_PREFIX': '/usr', 'CMAKE_INSTALL_LIBDIR': f'lib/{MULTIARCH}',
              'CMAKE_INSTALL_INCLUDEDIR': 'include', 'PROJECT_VERSION': build.version}
    with open(os.path.join(sources, 'ems.pc.in'), encoding='utf-8') as file:
        text = re.sub(r'@(\w+)@', lambda match: values[match.group(1)], file.read())
    write(root, f'usr/lib/{MULTIARCH}/pkgconfig/ems.pc', text)
    return {'Section': 'libdevel', 'Multi-Arch': 'same', 'Depends': f'libems0 (= {build.deb_version})',
            'Description': describe('C headers', 'What programs that use libems are compiled with.')}


def libems_cpp_dev(build, root):
    built(os.path.join(build.folder, 'lib', 'libems-cpp.a'), 'ems_cpp')
    prefix = os.path.join(root, 'usr')
    output('cmake', '--install', build.folder, '--component', 'ems_cpp_development', '--prefix', prefix)
    library, = glob.glob(os.path.join(prefix, 'lib', '**', 'libems-cpp.a'), recursive=True)
    output('strip', '--strip-debug', '--enable-deterministic-archives', library)
    return {'Section': 'libdevel', 'Depends': ', '.join(CPP_LIBRARIES), 'Description': describe(
        'C++ SDK',
        'Headers, the static library libems-cpp, and what CMake and pkg-config need to find them.')}


PACKAGES = {'ems-controller': ems_controller, 'ems-server': ems_server, 'ems-pdc': ems_pdc, 'ems-tools': ems_tools,
            'python3-ems': python3_ems, 'libems0': libems0, 'libems-dev': libems_dev,
            'libems-cpp-dev': libems_cpp_dev}


# --- What all have

def open_build(folder, suffix):
    with open(built(os.path.join(folder, 'CMakeCache.txt'), 'all'), encoding='utf-8') as file:
        version = re.search(r'^CMAKE_PROJECT_VERSION:STATIC=(.+)$', file.read(), re.M).group(1)
    return Build(folder, version, version + suffix)


def files_below(root):
    """Paths from `root` on of all regular files but dpkg's own, in order."""
    paths = []
    for folder, _, names in os.walk(root):
        paths += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(path for path in paths if not path.startswith('DEBIAN/') and not os.path.islink(os.path.join(root, path)))


def write_documents(root, name, version):
    documents = f'usr/share/doc/{name}'
    place(os.path.join(DEBIAN, 'copyright'), os.path.join(root, documents, 'copyright'))
    when = os.environ.get('SOURCE_DATE_EPOCH') or os.path.getmtime(os.path.join(SOURCE_DIR, 'CHANGELOG.md'))
    write_compressed(root, documents + '/changelog.gz',
                     f'ems ({version}) unstable; urgency=medium\n\n  * Built from source.\n\n'
                     f' -- {MAINTAINER}  {email.utils.formatdate(float(when))}\n')


def write_control(root, name, version, fields):
    files = files_below(root)
    for path in files:
        os.chmod(os.path.join(root, path), 0o755 if path.startswith('usr/bin/') else 0o644)
    kib = sum(-(-os.path.getsize(os.path.join(root, path)) // 1024) for path in files)
    control = {'Package': name, 'Source': 'ems', 'Version': version, 'Architecture': output('dpkg', '--print-architecture').strip(),
               'Maintainer': MAINTAINER, 'Installed-Size': kib, 'Priority': 'optional', **fields}
    description = control.pop('Description')
    write(root, 'DEBIAN/control', ''.join(f'{field}: {value}\n' for field, value in control.items())
          + f'Description: {description}\n')
    sums = ''
    for path in files:
        with open(os.path.join(root, path), 'rb') as file:
            sums += f'{hashlib.md5(file.read()).hexdigest()}  {path}\n'
    write(root, 'DEBIAN/md5sums', sums)


def make(name, build, out):
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, name)
        os.makedirs(os.path.join(root, 'DEBIAN'))
        fields = PACKAGES[name](build, root)
        write_documents(root, name, build.deb_version)
        write_control(root, name, build.deb_version, fields)
        for path, _, _ in os.walk(root):
            os.chmod(path, 0o755)
        packed = output('dpkg-deb', '--root-owner-group', '--build', root, out)
    return re.search(r"in '(.*)'\.$", packed.strip()).group(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0], formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog=__doc__.split('\n\n', 2)[2])
    parser.add_argument('--build-dir', required=True, help='folder of a release build')
    parser.add_argument('--out', required=True, help='folder of the packages; made when missing')
    parser.add_argument('--suffix', default='', help="of the packages' version: +build7 is newer than the version without")
    parser.add_argument('packages', nargs='*', metavar='PACKAGE', help='those alone')
    wanted = parser.parse_args()
    unknown = [name for name in wanted.packages if name not in PACKAGES]
    if unknown:
        parser.error(f'no package {unknown[0]}')
    try:
        os.makedirs(wanted.out, exist_ok=True)
        build = open_build(os.path.abspath(wanted.build_dir), wanted.suffix)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # each waits for strip and dpkg-deb
            for path in pool.map(lambda name: make(name, build, os.path.abspath(wanted.out)), wanted.packages or PACKAGES):
                print(path)
    except (Failure, OSError) as error:
        print(f'make_debs: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
