#!/usr/bin/env python3
"""Makes wheels and a libems.so that run on any x86-64 Linux with glibc 2.28 or newer, on Debian 12.

    deploy/make_portable.py BUILD_DIR OUT_DIR [PYTHON …]

PYTHON: an interpreter with its headers, /usr/bin/python3 by default; a wheel for each. BUILD_DIR is of this command alone, and a
second run does only what changed. What the packages of packages.txt have no position-independent archive of is compiled from the
same Debian version's source, which `apt-get source` brings (re2 needs unicode-data); portable/link_static.py says how the
rest is linked. Prints what it made, after check_portable.py has found nothing wrong with it. The first run takes 15 minutes of two
cores; JOBS (in the environment) is how many compilers run, one for each core by default.
"""
import glob
import os
import shutil
import subprocess
import sys

SOURCE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PORTABLE = os.path.join(SOURCE_DIR, 'deploy', 'portable')
POLICY = '2_28'
# Package whose headers EMS is compiled against, and options of its source's build.
DEPENDENCIES = {
    'libabsl-dev': (),
    'libfmt-dev': ('-DFMT_TEST=OFF', '-DFMT_DOC=OFF'),
    'libspdlog-dev': ('-DSPDLOG_FMT_EXTERNAL=ON',),
    'prometheus-cpp-dev': ('-DENABLE_PULL=OFF', '-DENABLE_PUSH=OFF', '-DENABLE_COMPRESSION=OFF', '-DENABLE_TESTING=OFF',
                           '-DUSE_THIRDPARTY_LIBRARIES=OFF', '-DGENERATE_PKGCONFIG=OFF'),
    'libre2-dev': ('-DRE2_BUILD_TESTING=OFF',),
    # HTTP and HTTPS alone: Debian's also speaks LDAP, SSH and Kerberos, whose libraries have no archives.
    'libcurl4-openssl-dev': ('-DHTTP_ONLY=ON', '-DBUILD_CURL_EXE=OFF', '-DCURL_USE_OPENSSL=ON', '-DCURL_ZLIB=OFF', '-DUSE_NGHTTP2=OFF',
                             '-DCURL_BROTLI=OFF', '-DCURL_ZSTD=OFF', '-DUSE_LIBIDN2=OFF', '-DCURL_USE_LIBSSH2=OFF',
                             '-DCURL_USE_LIBPSL=OFF', '-DCURL_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt', '-DCURL_CA_PATH=none'),
    'libxxhash-dev': (),
    'libprotobuf-dev': ('-Dprotobuf_BUILD_TESTS=OFF', '-Dprotobuf_BUILD_PROTOC_BINARIES=OFF'),
}

# What a source lacks, by sh in its folder: tables that Debian makes from its own unicode-data; CMake, for the file that chooses
# instructions at run time and that Debian has in its shared library alone.
MADE_FIRST = {
    're2': 'make REBUILD_TABLES=1 re2/perl_groups.cc re2/unicode_casefold.cc re2/unicode_groups.cc',
    'xxhash': "printf '%s\\n' 'project(xxhash C)' 'add_library(xxhash xxhash.c xxh_x86dispatch.c)' 'install(TARGETS xxhash)'"
              ' >CMakeLists.txt',
}


class Failure(Exception):
    """Told to the user as it stands."""


def output(*command, cwd=None):
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if run.returncode != 0:
        raise Failure(f'{" ".join(command)}: exit {run.returncode}\n{run.stdout}{run.stderr}')
    return run.stdout


def ninja(build, *targets):
    jobs = os.environ.get('JOBS')
    output('ninja', '-C', build, *(['-j', jobs] if jobs else []), *targets)


def file_label(name, version):
    """As the source package's own files are called: without the epoch."""
    return f'{name}_{version.split(":")[-1]}'


class Sources:
    """Source packages of this machine's Debian, unpacked into a folder."""

    def __init__(self, folder):
        self._folder = folder
        self._apt = None

    def unpacked(self, name, version):
        """The folder of one of them. apt-get has checked it against the signed lists."""
        label = file_label(name, version)
        folder = os.path.join(self._folder, label)
        if not os.path.isdir(folder):
            self._apt = self._apt or self._with_source_lists()
            output(*self._apt, 'source', '--download-only', f'{name}={version}', cwd=self._folder)
            shutil.rmtree(folder + '.part', ignore_errors=True)
            output('dpkg-source', '--no-check', '-x', f'{self._folder}/{label}.dsc', folder + '.part')
            if name in MADE_FIRST:
                output('sh', '-ec', MADE_FIRST[name], cwd=folder + '.part')
            os.rename(folder + '.part', folder)
        return folder

    def _with_source_lists(self):
        """apt-get with the source packages of where this machine's packages come from; the machine's own lists stay as they are."""
        parts, lists, cache = (os.path.join(self._folder, name) for name in ('apt', 'lists', 'cache'))
        for folder in (parts, lists, cache):
            os.makedirs(folder, exist_ok=True)
        places = output('apt-get', 'indextargets', '--format', '$(REPO_URI) $(CODENAME) $(COMPONENT)', 'Created-By: Packages',
                        'Origin: Debian')
        with open(os.path.join(parts, 'sources.list'), 'w', encoding='utf-8') as file:
            file.writelines(f'deb-src {place}\n' for place in sorted(set(places.splitlines())))
        apt = ['apt-get', '-qq', '-o', f'Dir::Etc::sourcelist={parts}/sources.list', '-o', 'Dir::Etc::sourceparts=/dev/null',
               '-o', f'Dir::State::lists={lists}', '-o', f'Dir::Cache={cache}', '-o', 'APT::Sandbox::User=root']
        output(*apt, 'update')
        return apt


def compile_dependency(package, options, sources, work, prefix):
    """Archives of position-independent code, in PREFIX/lib; the compiler takes the headers of Debian's package."""
    name, version = output('dpkg-query', '-W', '-f', '${source:Package} ${source:Version}', package).split()
    label = file_label(name, version)
    done = os.path.join(prefix, label + '.done')
    if os.path.exists(done):
        return
    print(f'compiling {name} {version}', file=sys.stderr, flush=True)
    build = os.path.join(work, 'dependencies', label)
    launcher = ['-DCMAKE_CXX_COMPILER_LAUNCHER=ccache', '-DCMAKE_C_COMPILER_LAUNCHER=ccache'] if shutil.which('ccache') else []
    output('cmake', '-G', 'Ninja', '-S', sources.unpacked(name, version), '-B', build, '-DCMAKE_BUILD_TYPE=Release',
           '-DCMAKE_CXX_STANDARD=17', '-DCMAKE_POSITION_INDEPENDENT_CODE=ON', '-DBUILD_SHARED_LIBS=OFF', '-DBUILD_TESTING=OFF',
           f'-DCMAKE_INSTALL_PREFIX={prefix}', '-DCMAKE_INSTALL_LIBDIR=lib', '-DCMAKE_C_FLAGS=-ffunction-sections -fdata-sections',
           '-DCMAKE_CXX_FLAGS=-ffunction-sections -fdata-sections', *launcher, *options)
    ninja(build, 'install')
    with open(done, 'w', encoding='utf-8'):
        pass


def prepare(work, prefix):
    sources = Sources(os.path.join(work, 'sources'))
    for package, options in DEPENDENCIES.items():
        compile_dependency(package, options, sources, work, prefix)
    output(os.path.join(PORTABLE, 'glibc_stubs.py'), os.path.join(prefix, 'stubs'), POLICY.replace('_', '.'))
    output('gcc', '-O2', '-fPIC', '-fvisibility=hidden', '-Wall', '-Wextra', '-c', os.path.join(PORTABLE, 'glibc_additions.c'), '-o',
           os.path.join(prefix, 'glibc_additions.o'))


def make_wheel(python, build, prefix, out):
    launcher = f'/usr/bin/python3;{PORTABLE}/link_static.py;{prefix}'
    # A module for each Python comes to lie in one folder: make_wheel.py takes that of its own.
    output('cmake', '-G', 'Ninja', '-S', SOURCE_DIR, '-B', build, '-U', 'PYTHON*', f'-DEMS_PYTHON={python}',
           '-DCMAKE_BUILD_TYPE=Release', '-DEMS_BATCHES=ON', '-DEMS_BUILD_TESTS=OFF', f'-DCMAKE_CXX_LINKER_LAUNCHER={launcher}')
    print(f'compiling EMS for {python}', file=sys.stderr, flush=True)
    ninja(build, 'ems_python', 'ems_c')
    return output(python, '-B', os.path.join(SOURCE_DIR, 'integrations', 'python', 'make_wheel.py'),
                  os.path.join(build, 'python'), out, f'manylinux_{POLICY}_x86_64').strip()


def make(work, out, pythons):
    prefix, build = os.path.join(work, 'prefix'), os.path.join(work, 'ems')
    for folder in (prefix, out):
        os.makedirs(folder, exist_ok=True)
    prepare(work, prefix)
    # They are linked again: ninja does not know what they are linked with.
    for library in glob.glob(f'{build}/python/ems/*.so') + glob.glob(f'{build}/lib/libems.so*'):
        os.remove(library)
    made = [make_wheel(python, build, prefix, out) for python in pythons]
    made.append(shutil.copy(os.path.join(build, 'lib', 'libems.so.0'), out))
    output(os.path.join(SOURCE_DIR, 'deploy', 'check_portable.py'), '--policy', POLICY, *made)
    return made


def main():
    if len(sys.argv) < 3 or sys.argv[1] in ('-h', '--help'):
        print(__doc__.strip())
        return 0 if sys.argv[1:2] in (['-h'], ['--help']) else 2
    try:
        made = make(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3:] or ['/usr/bin/python3'])
    except Failure as failure:
        print(f'make_portable: {failure}', file=sys.stderr)
        return 1
    print('\n'.join(made))
    return 0


if __name__ == '__main__':
    sys.exit(main())
