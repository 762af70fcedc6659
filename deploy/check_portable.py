#!/usr/bin/env python3
"""Checks that shared libraries run on any Linux that wheels of a manylinux policy are for.

    deploy/check_portable.py [--policy 2_28] FILE…      shared libraries, or wheels: those in them

Each needs glibc's libraries alone, none of their symbols newer than the policy has, is found without a path of this machine, and
exports the entry of a Python module or the names of the C API, nothing else: whatever else the process has loaded, another gRPC or
libstdc++ among it, neither sees the other. A wheel is at most 25 MB, and its name says the policy. Prints a line for each fault;
exit 1 if there is any. Needs binutils.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile

LIBRARIES = {'libc.so.6', 'libm.so.6', 'libpthread.so.0', 'libdl.so.2', 'librt.so.1', 'libgcc_s.so.1', 'ld-linux-x86-64.so.2'}
NEWEST_GCC = (7, 0, 0)  # of libgcc_s.so.1
EXPORTED = re.compile(r'PyInit__ems|ems_\w+')
OF_PYTHON = re.compile(r'_?Py\w+')  # the interpreter's, without a version
WHEEL_BYTES_MAX = 25_000_000


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def version_fault(version, policy):
    """Why a machine of the policy may lack this version of a symbol; None if it has it."""
    family, _, number = version.partition('_')
    limit = {'GLIBC': policy, 'GCC': NEWEST_GCC}.get(family)
    if limit is None or not re.fullmatch(r'[\d.]+', number):
        return 'of a library that is not glibc\'s'
    if tuple(map(int, number.split('.'))) > limit:
        return f'newer than {family}_{".".join(map(str, limit))}'
    return None


def faults(path, policy):
    """What is wrong with the library at `path`, a text each."""
    dynamic = output('readelf', '-dW', path)
    for library in re.findall(r'\(NEEDED\).*\[(.*)\]', dynamic):
        if library not in LIBRARIES:
            yield f'needs {library}'
    for kind, folders in re.findall(r'\((RPATH|RUNPATH)\).*\[(.*)\]', dynamic):
        if folders != '$ORIGIN':
            yield f'{kind} {folders}'
    if '(TEXTREL)' in dynamic:
        yield 'code that the loader has to write into (TEXTREL)'
    for line in output('nm', '-D', path).splitlines():
        kind, symbol = line.split()[-2:]
        name, _, version = symbol.partition('@')
        if kind in 'UwvA':
            fault = version_fault(version, policy) if version and kind != 'A' else None
            if fault:
                yield f'{name} of {version}, {fault}'
            elif kind == 'U' and not version and not OF_PYTHON.fullmatch(name):
                yield f'{name}, which nothing defines'
        elif not EXPORTED.fullmatch(name):
            yield f'exports {name}'


def wheel_faults(path, policy):
    tag = 'manylinux_' + '_'.join(map(str, policy))
    if tag not in os.path.basename(path):
        yield f'{path}: not named {tag}'
    if os.path.getsize(path) > WHEEL_BYTES_MAX:
        yield f'{path}: {os.path.getsize(path)} bytes, {WHEEL_BYTES_MAX} at most'
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
        libraries = [name for name in archive.namelist() if '.so' in os.path.basename(name)]
        if not libraries:
            yield f'{path}: without a module'
        for name in libraries:
            for fault in faults(archive.extract(name, folder), policy):
                yield f'{path}: {name}: {fault}'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--policy', default='2_28', help='the newest glibc, as in manylinux_2_28')
    parser.add_argument('files', nargs='+', metavar='FILE')
    arguments = parser.parse_args()
    policy = tuple(map(int, arguments.policy.split('_')))
    found = []
    for path in arguments.files:
        if not os.path.isfile(path):
            parser.error(f'{path} is not there')
        if path.endswith('.whl'):
            found += wheel_faults(path, policy)
        else:
            found += [f'{path}: {fault}' for fault in faults(path, policy)]
    print('\n'.join(found), end='\n' if found else '')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
