#!/usr/bin/env python3
"""Links a shared library so that it runs on any Linux with glibc 2.28: CMAKE_CXX_LINKER_LAUNCHER of make_portable.py.

    link_static.py PREFIX COMPILER ARGUMENT…

The link is that of any other build, with each shared library replaced by the archive of the same name: PREFIX/lib has those that
were compiled for this, Debian the others. libstdc++ is an archive, too; glibc is PREFIX/stubs (glibc_stubs.py).
"""
import os
import re
import subprocess
import sys

SYSTEM = ('dl', 'm', 'rt', 'pthread', 'atomic')  # glibc's stubs, and what x86-64 and arm64 have as instructions
LIBRARY = re.compile(r'-l(?P<short>[\w+-]+)|/.*/lib(?P<name>[\w+-]+)\.so[\d.]*')


def archive(prefix, name):
    """The path of an archive: of PREFIX, else of Debian."""
    own = os.path.join(prefix, 'lib', f'lib{name}.a')
    if os.path.exists(own):
        return own
    path = subprocess.run(['gcc', f'-print-file-name=lib{name}.a'], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    if not os.path.isabs(path):
        raise FileNotFoundError(f'link_static: no archive of lib{name}: neither {own} nor a package has it')
    return path


def static_command(prefix, arguments):
    if '-shared' not in arguments:
        return arguments
    # Before other folders: Debian's own may be among them.
    command = [arguments[0], '-L' + os.path.join(prefix, 'stubs')]
    for before, argument in zip(arguments, arguments[1:]):
        library = before != '-o' and LIBRARY.fullmatch(argument)
        name = library and (library['short'] or library['name'])
        if name and name not in SYSTEM:
            command.append(archive(prefix, name))
        elif name != 'atomic':
            command.append(argument)
    # absl's are many and name each other; libcurl and gRPC need libssl.
    own = sorted(os.path.join(prefix, 'lib', name) for name in os.listdir(os.path.join(prefix, 'lib')) if name.endswith('.a'))
    return command + [os.path.join(prefix, 'glibc_additions.o'), *own, archive(prefix, 'ssl'), archive(prefix, 'crypto'),
                      '-static-libstdc++', '-Wl,--gc-sections', '-Wl,--as-needed', '-Wl,-s']


def main():
    prefix, arguments = sys.argv[1], sys.argv[2:]
    try:
        return subprocess.run(static_command(prefix, arguments), check=False).returncode
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == '__main__':
    sys.exit(main())
