"""Inside the Debian of chroot_test.py: a cluster by what the units start, and a client of each kind."""
import contextlib
import os
import re
import subprocess
import time

from packages import UnitDaemon, output

SERVERS = ('a', 'b', 'c')
CONTROLLER = '127.0.0.1:7400'
READY_SECONDS = 30
SOCKET_MODE = 0o660
CMAKE = '''cmake_minimum_required(VERSION 3.25)
project(engine LANGUAGES CXX)
find_package(ems REQUIRED)
add_executable(paged_kv /work/examples/cpp/paged_kv.cc)
target_link_libraries(paged_kv PRIVATE ems::ems_context)
'''
PYTHON = '''
import ems
with ems.Client('127.0.0.1:7400', timeout=10) as client:
    client.put('from python', b'x' * 100000)
    assert client.get('from python') == b'x' * 100000
'''


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)


def name_the_server():
    """What the operator of the first machine has to do."""
    path = '/etc/ems/server.yaml'
    with open(path, encoding='utf-8') as file:
        text = file.read()
    write(path, re.sub(r'^# name: server-1 .*', 'name: a', text, flags=re.M).replace('bytes: 4GiB', 'bytes: 128MiB'))


def server(name):
    """As its unit says; the others' machines are this one, too."""
    number = SERVERS.index(name)
    more = ['--set', f'name={name}', '--set', f'data_dir=/var/lib/ems/server/{name}', '--set', f'unix_path=/run/ems/{name}.sock',
            '--set', f'listen=127.0.0.1:{7500 + 10 * number}', '--set', f'http_listen=127.0.0.1:{7501 + 10 * number}']
    return UnitDaemon('/', 'mp-server', more if number else (), user='ems')


def wait_for_the_cluster():
    """READY=1 says that a server listens; it serves once the controller has given it slots."""
    end = time.monotonic() + READY_SECONDS
    for port in (7501, 7511, 7521):
        page = ['curl', '-sSf', f'http://127.0.0.1:{port}/readyz']
        while subprocess.run(page, capture_output=True, check=False).returncode != 0:
            assert time.monotonic() < end, output(*page)
            time.sleep(0.1)  # between two looks at other processes


def use_the_cluster():
    wait_for_the_cluster()
    output('emsctl', 'status', '--check')
    output('emsctl', 'put', 'hello', '/etc/hostname')
    output('python3', '-c', PYTHON)
    print('python: put and got')
    write('/work/build/CMakeLists.txt', CMAKE)
    output('cmake', '-G', 'Ninja', '-S', '/work/build', '-B', '/work/build')
    output('ninja', '-C', '/work/build')
    print('c++:', output('/work/build/paged_kv', CONTROLLER).splitlines()[-1])
    flags = output('pkg-config', '--cflags', '--libs', 'ems').split()
    output('cc', '-D_POSIX_C_SOURCE=200809L', '/work/examples/c/kv_blocks.c', '-o', '/work/build/kv_blocks', *flags)
    print('c:', output('/work/build/kv_blocks', CONTROLLER).splitlines()[-1])
    for port, metric in ((7401, 'ems_controller_nodes'), (7501, 'ems_server_')):
        assert metric in output('curl', '-sS', '--max-time', '10', f'http://127.0.0.1:{port}/metrics')
    print('curl: metrics')


def main():
    name_the_server()
    os.makedirs('/run/ems', exist_ok=True)  # RuntimeDirectory=
    subprocess.run(['chown', 'ems:ems', '/run/ems'], check=True)
    with contextlib.ExitStack() as stack:
        daemons = [stack.enter_context(UnitDaemon('/', 'mp-controller', user='ems'))]
        daemons += [stack.enter_context(server(name)) for name in SERVERS]
        assert os.stat('/run/ems/server.sock').st_mode & 0o777 == SOCKET_MODE
        use_the_cluster()
        for daemon in reversed(daemons):
            assert daemon.stop() == 0


if __name__ == '__main__':
    main()
