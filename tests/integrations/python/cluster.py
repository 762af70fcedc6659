"""One controller and some servers as real processes in a temporary folder, on free loopback ports, for tests."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

SOURCE_DIR = os.environ.get('EMS_SOURCE_DIR', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', '..'))
BIN = os.environ.get('EMS_BIN', os.path.join(SOURCE_DIR, 'build', 'release', 'bin'))
READY_SECONDS = 30


def until(condition, seconds, what):
    """Polls `condition` until it is true; fails with `what` when the time is over. Returns the seconds it took."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > seconds:
            raise AssertionError(f'not within {seconds} s: {what}')
        time.sleep(0.01)  # between two looks at another process
    return time.monotonic() - begin


class Daemon:
    """A daemon that is started again on the same address. Ends with the test that made it."""

    def __init__(self, folder, name, program, flags, config=None):
        self.name = name
        self._ready_file = os.path.join(folder, name + '.ready')
        self._log = os.path.join(folder, name + '.log')
        self._command = [os.path.join(BIN, program), '--ready-file', self._ready_file]
        if config is not None:
            self._command += ['--config', config]
        for flag in flags:
            self._command += ['--set', flag]
        self._process = None
        self.address = '127.0.0.1:0'

    def start(self):
        if os.path.exists(self._ready_file):
            os.remove(self._ready_file)
        with open(self._log, 'ab') as log:
            self._process = subprocess.Popen(self._command + ['--set', f'listen={self.address}'], stdin=subprocess.DEVNULL,
                                             stdout=log, stderr=log)

    def wait_ready(self):
        def is_ready():
            if self._process.poll() is not None:
                with open(self._log, encoding='utf-8', errors='replace') as log:
                    raise AssertionError(f'{self.name} ended:\n' + log.read()[-2000:])
            return os.path.exists(self._ready_file) and os.path.getsize(self._ready_file) > 0
        until(is_ready, READY_SECONDS, f'{self.name} is ready')
        with open(self._ready_file, encoding='utf-8') as file:
            self.address = json.load(file)['address']

    @property
    def pid(self):
        return self._process.pid

    def signal(self, number):
        self._process.send_signal(number)

    def stand_still(self):
        """SIGSTOP; returns when it stands."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self):
        self.signal(signal.SIGCONT)

    def kill(self):
        """SIGKILL, also when it is stopped; returns when it is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def terminate(self):
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()


class Cluster:
    """Use it with `with`. Servers are numbered from 0.

    Heartbeats are of 200 ms unless `controller_flags` say otherwise: a server hears with one that it is in the view.
    'damping_ms=0' where servers are started again and it does not matter that they are out of the view for 5 s before.
    """

    def __init__(self, servers=2, dram='256MiB', server_flags=(), controller_flags=()):
        self.folder = tempfile.mkdtemp(prefix='ems-py-')
        self.controller = Daemon(self.folder, 'controller', 'mp-controller', [
            f'data_dir={self.folder}/controller', 'http_listen=127.0.0.1:0', 'heartbeat_ms=200', *controller_flags])
        self.servers = []
        self._count, self._dram = servers, dram
        self._server_flags = list(server_flags)  # '{folder}' in them is the cluster's own

    def __enter__(self):
        try:
            self.controller.start()
            self.controller.wait_ready()
            for i in range(self._count):
                self.servers.append(Daemon(self.folder, f'server-{i}', 'mp-server', [
                    f'name=server-{i}', f'controller={self.address}', f'data_dir={self.folder}/server-{i}',
                    'http_listen=127.0.0.1:0', f'unix_path={self.folder}/server-{i}.sock', f'dram.bytes={self._dram}']
                    + [flag.format(folder=self.folder) for flag in self._server_flags]))
                self.servers[-1].start()
            for server in self.servers:
                server.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind, error, trace):
        self.stop()

    @property
    def address(self):
        return self.controller.address

    def kill_servers(self):
        for server in self.servers:
            server.kill()

    def start_servers(self):
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_ready()

    def stand_still(self):
        for daemon in self.servers + [self.controller]:
            daemon.stand_still()

    def go_on(self):
        for daemon in [self.controller] + self.servers:
            daemon.go_on()

    def stop(self):
        for daemon in self.servers + [self.controller]:
            daemon.terminate()
        shutil.rmtree(self.folder, ignore_errors=True)
