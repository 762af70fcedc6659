#!/usr/bin/python3
"""Packs what is built into Debian packages for this machine's Debian and architecture.

    deploy/make_debs.py BUILD_DIR OUT_DIR [PACKAGE …]

    python3-ems   the Python package ems                     needs the targets ems_python ems_python_sources
    libems0       libems.so.0, the C API                     needs the target ems_c
    libems-dev    its header, link name and pkg-config file

Without PACKAGE all of them. Prints the path of each. Needs dpkg-dev and binutils; no root.
"""
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
import zipfile

SOURCE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MULTIARCH = sysconfig.get_config_var('MULTIARCH')
MAINTAINER = os.environ.get('DEBFULLNAME', 'EMS') + ' <' + os.environ.get('DEBEMAIL', 'root@localhost') + '>'


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


def strip(path):
    output('strip', '--strip-unneeded', '--remove-section=.comment', path)


def shared_library_packages(path):
    """Packages that have the libraries which the one at `path` is linked with, and their oldest versions that do."""
    with tempfile.TemporaryDirectory() as folder:  # dpkg-shlibdeps wants to be in a source package
        write(folder, 'debian/control', 'Source: ems\n\nPackage: any\nArchitecture: any\n')
        text = output('dpkg-shlibdeps', '-O', '-e' + path, cwd=folder)
    return re.search(r'^shlibs:Depends=(.*)$', text, re.M).group(1).split(', ')


# --- The packages: each fills `root` and returns the fields of its control file that are its own.

def python3_ems(build, root, version):
    modules = os.path.join(root, 'usr', 'lib', 'python3', 'dist-packages')
    built(os.path.join(build, 'python', 'ems'), 'ems_python')
    with tempfile.TemporaryDirectory() as folder:
        make_wheel = os.path.join(SOURCE_DIR, 'integrations', 'python', 'make_wheel.py')
        wheel = output(sys.executable, '-B', make_wheel, os.path.join(build, 'python'), folder).strip()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(modules)
    info = os.path.join(modules, f'ems-{version}.dist-info')
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
            'Description': 'EMS, an elastic memory service for LLM inference: Python package\n'
                           ' KV blocks of prompt prefixes, shared by a cluster: a client, prefix caching for paged\n'
                           ' tensors, and the interface of the SDK that engines know.'}


def libems0(build, root, version):
    name = f'libems.so.{version}'
    library = os.path.join(root, 'usr', 'lib', MULTIARCH, name)
    place(built(os.path.join(build, 'lib', name), 'ems_c'), library)
    strip(library)
    link(root, f'usr/lib/{MULTIARCH}/libems.so.0', name)
    write(root, 'DEBIAN/shlibs', f'libems 0 libems0 (>= {version})\n')
    write(root, 'DEBIAN/triggers', 'activate-noawait ldconfig\n')
    return {'Section': 'libs', 'Multi-Arch': 'same', 'Depends': ', '.join(shared_library_packages(library)),
            'Description': 'EMS, an elastic memory service for LLM inference: C library\n'
                           ' KV blocks of prompt prefixes, shared by a cluster.'}


def libems_dev(build, root, version):
    del build
    sources = os.path.join(SOURCE_DIR, 'integrations', 'c')
    for header in ('ems.h', 'ems_kv.h', 'ems_models.h'):
        place(os.path.join(sources, header), os.path.join(root, 'usr', 'include', header))
    link(root, f'usr/lib/{MULTIARCH}/libems.so', 'libems.so.0')
    values = {'EMS_PC_PREFIX': '/usr', 'CMAKE_INSTALL_LIBDIR': f'lib/{MULTIARCH}',
              'CMAKE_INSTALL_INCLUDEDIR': 'include', 'PROJECT_VERSION': version}
    with open(os.path.join(sources, 'ems.pc.in'), encoding='utf-8') as file:
        text = re.sub(r'@(\w+)@', lambda match: values[match.group(1)], file.read())
    write(root, f'usr/lib/{MULTIARCH}/pkgconfig/ems.pc', text)
    return {'Section': 'libdevel', 'Multi-Arch': 'same', 'Depends': f'libems0 (= {version})',
            'Description': 'EMS, an elastic memory service for LLM inference: C header\n'
                           ' What programs that use libems are compiled with.'}


PACKAGES = {'python3-ems': python3_ems, 'libems0': libems0, 'libems-dev': libems_dev}


# --- What all have

def version_of(build):
    with open(built(os.path.join(build, 'CMakeCache.txt'), 'all'), encoding='utf-8') as file:
        return re.search(r'^CMAKE_PROJECT_VERSION:STATIC=(.+)$', file.read(), re.M).group(1)


def files_below(root):
    """Paths from `root` on of all regular files but dpkg's own, in order."""
    paths = []
    for folder, _, names in os.walk(root):
        paths += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(path for path in paths if not path.startswith('DEBIAN/') and not os.path.islink(os.path.join(root, path)))


def write_documents(root, name, version):
    documents = os.path.join(root, 'usr', 'share', 'doc', name)
    place(os.path.join(SOURCE_DIR, 'LICENSE'), os.path.join(documents, 'copyright'))
    change = f'ems ({version}) unstable; urgency=medium\n\n  * Built from source.\n\n -- {MAINTAINER}  Thu, 01 Jan 1970 00:00:00 +0000\n'
    with open(os.path.join(documents, 'changelog.gz'), 'wb') as file:
        file.write(gzip.compress(change.encode(), mtime=0))


def write_control(root, name, version, fields):
    files = files_below(root)
    for path in files:
        os.chmod(os.path.join(root, path), 0o644)
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


def make(name, build, out, version):
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, name)
        os.makedirs(os.path.join(root, 'DEBIAN'))
        fields = PACKAGES[name](build, root, version)
        write_documents(root, name, version)
        write_control(root, name, version, fields)
        for path, _, _ in os.walk(root):
            os.chmod(path, 0o755)
        packed = output('dpkg-deb', '--root-owner-group', '--build', root, out)
    return re.search(r"in '(.*)'\.$", packed.strip()).group(1)


def main():
    arguments = sys.argv[1:]
    if arguments in (['-h'], ['--help']):
        print(__doc__.strip())
        return 0
    unknown = [name for name in arguments[2:] if name not in PACKAGES]
    if len(arguments) < 2 or unknown:
        print(f'make_debs: {"no package " + unknown[0] if unknown else "BUILD_DIR and OUT_DIR are needed"}; --help says what '
              'there is', file=sys.stderr)
        return 2
    build, out = (os.path.abspath(path) for path in arguments[:2])
    try:
        os.makedirs(out, exist_ok=True)
        version = version_of(build)
        for name in arguments[2:] or PACKAGES:
            print(make(name, build, out, version))
    except (Failure, OSError) as error:
        print(f'make_debs: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
