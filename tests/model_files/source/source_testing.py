"""What the tests of sources in scripts share: the program they call, servers that end with the test."""
import contextlib
import hashlib
import json
import os
import random
import socket
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOOL = os.environ.get('EMS_SOURCE_TOOL', 'source_tool')


def source_tool(*arguments, **options):
    """Runs tests/support/source_tool.cc; `options` are its variables without EMS_TEST_, in lower case."""
    variables = {f'EMS_TEST_{name.upper()}': str(value) for name, value in options.items()}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith('EMS_TEST_')}
    done = subprocess.run([TOOL, *map(str, arguments)], env={**inherited, **variables}, stdout=subprocess.PIPE,
                          text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def random_bytes(count, seed):
    return random.Random(seed).randbytes(count)


def free_port():
    """Below those that the kernel gives out: no connection of other tests takes it before the one it is meant for."""
    while True:
        port = random.SystemRandom().randrange(10000, 32768)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(('127.0.0.1', port))
            return port


def wait_for_port(port, process, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', port), timeout=1):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise AssertionError(f'the server ended with {process.wait(timeout=0.02)}')
    raise AssertionError(f'nobody listens on {port} after {seconds} s')


@contextlib.contextmanager
def running(command, **options):
    """A child that is gone afterwards, and when this process ends, however that happens."""
    process = subprocess.Popen(['setpriv', '--pdeathsig', 'KILL', *command], stdin=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()
