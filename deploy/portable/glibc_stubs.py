#!/usr/bin/env python3
"""Makes stubs of an older glibc to link against, from the glibc of this machine.

    deploy/portable/glibc_stubs.py FOLDER [VERSION]      VERSION: 2.28 by default

A linked file asks for the version of a symbol that the library at the linker's hand calls its default: pthread_create of
Debian 12 is GLIBC_2.34, and an older machine refuses the file. glibc keeps the older versions of its symbols for ever, so this
machine knows what version 2.28 had: of each symbol, the newest version that is not above it. The stubs define just those, with
empty bodies, under the names of the real libraries; nothing loads them. Symbols that came later are absent: nothing
defines them, which -z defs or check_portable.py tells (glibc_additions.c has those that EMS needs). Up to glibc 2.33 threads, dlopen and timers were in libraries of
their own; their symbols are in the stubs of those.

FOLDER gets libc.so, libm.so, … for -L.
"""
import os
import re
import subprocess
import sys

LIBRARIES = ('libc.so.6', 'libm.so.6', 'ld-linux-x86-64.so.2')
# Moved into libc.so.6 by glibc 2.34 with a new version each: name → where it was.
MOVED = ((r'(__)?dl\w+', 'libdl.so.2'), (r'(aio|lio|mq|timer|shm)_\w+|__mq_\w+', 'librt.so.1'),
         (r'_?_?pthread_\w+|sem_\w+|thrd_\w+|mtx_\w+|cnd_\w+|tss_\w+', 'libpthread.so.0'))
SYMBOL = re.compile(r'^\s*\d+: \w+\s+(?P<size>\d+) (?P<kind>FUNC|IFUNC|OBJECT)\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+\w+ '
                    r'(?P<name>\w+)@(?P<default>@?)GLIBC_(?P<version>[\d.]+)$', re.M)


def run(*command, text=None):
    return subprocess.run(command, input=text, check=True, stdout=subprocess.PIPE, text=True).stdout


def numbers(version):
    return tuple(map(int, version.split('.')))


def symbols(soname, newest):
    """(library that had it, name, version, kind, size) of each symbol of `soname` that glibc `newest` had."""
    found = {}
    for symbol in SYMBOL.finditer(run('readelf', '-W', '--dyn-syms', run('gcc', f'-print-file-name={soname}').strip())):
        found.setdefault(symbol['name'], []).append(symbol)
    for name, versions in found.items():
        old = [symbol for symbol in versions if numbers(symbol['version']) <= newest]
        if not old:
            continue
        best = max(old, key=lambda symbol: numbers(symbol['version']))
        library = soname
        if not best['default']:
            library = next((was for pattern, was in MOVED if re.fullmatch(pattern, name)), soname)
        yield library, name, best['version'], best['kind'], int(best['size'])


def write_stub(folder, soname, entries):
    code, versions = [], {}
    for name, version, kind, size in entries:
        section, kind = ('.data', 'object') if kind == 'OBJECT' else ('.text', 'function')
        code.append(f'{section}\n.globl {name}\n.type {name},@{kind}\n.size {name},{size or 1}\n{name}: .zero {size or 1}\n')
        versions.setdefault(version, []).append(name)
    script = os.path.join(folder, soname + '.map')
    with open(script, 'w', encoding='utf-8') as file:
        for version, names in sorted(versions.items(), key=lambda item: numbers(item[0])):
            file.write(f'GLIBC_{version} {{ {" ".join(name + ";" for name in sorted(names))} }};\n')
    run('gcc', '-fuse-ld=bfd', '-shared', '-nostdlib', '-x', 'assembler', '-', '-o', os.path.join(folder, soname), f'-Wl,-soname,{soname}',
        f'-Wl,--version-script={script}', text=''.join(code) + '.section .note.GNU-stack,"",@progbits\n')


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1] in ('-h', '--help'):
        print(__doc__.strip())
        return 0 if sys.argv[1:2] in (['-h'], ['--help']) else 2
    folder = os.path.abspath(sys.argv[1])
    newest = numbers(sys.argv[2] if len(sys.argv) == 3 else '2.28')
    os.makedirs(folder, exist_ok=True)
    stubs = {}
    for soname in LIBRARIES:
        for library, *entry in symbols(soname, newest):
            stubs.setdefault(library, []).append(entry)
    for soname, entries in stubs.items():
        write_stub(folder, soname, entries)
    # What the linker finds for -lc, -lm, -lpthread and so on. libc_nonshared.a: atexit and what else is linked in.
    others = ' '.join(os.path.join(folder, soname) for soname in sorted(stubs) if soname != 'libc.so.6')
    nonshared = run('gcc', '-print-file-name=libc_nonshared.a').strip()
    scripts = {'libc': f'GROUP ( {folder}/libc.so.6 {nonshared} AS_NEEDED ( {others} ) )\n'}
    scripts |= {soname.split('.')[0]: f'INPUT ( {folder}/{soname} )\n' for soname in stubs if soname not in ('libc.so.6', LIBRARIES[2])}
    for name, text in scripts.items():
        with open(os.path.join(folder, name + '.so'), 'w', encoding='utf-8') as file:
            file.write(text)
    return 0


if __name__ == '__main__':
    sys.exit(main())
