"""The Debian packages of a build, made once for a test and unpacked into a folder, and a daemon started as its unit says."""
import configparser
import os
import shlex
import socket
import subprocess
import tempfile

SOURCE_DIR = os.environ.get('EMS_SOURCE_DIR', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
BUILD = os.environ.get('EMS_BUILD_DIR', os.path.join(SOURCE_DIR, 'build', 'release'))
UNITS = {'ems-controller': 'mp-controller', 'ems-server': 'mp-server', 'ems-pdc': 'ems-pdc'}  # package → unit
NOTIFY_SECONDS = 60


def output(*command, **more):
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, **more)
    if run.returncode != 0:
        raise AssertionError(f'{command}: exit {run.returncode}\n{run.stdout}{run.stderr}')
    return run.stdout


def make_debs(out, *packages, suffix=''):
    """Returns package → path."""
    printed = output(os.path.join(SOURCE_DIR, 'deploy', 'make_debs.py'), '--build-dir', BUILD, '--out', out, '--suffix', suffix,
                     *packages)
    return {os.path.basename(path).split('_')[0]: path for path in printed.splitlines()}


def unit_of(path):
    """Sections of a unit file; of a key that is given more than once the last."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    assert unit.read(path), path
    return unit


class UnitDaemon:
    """What a unit's ExecStart starts, which tells this process, in systemd's place, when it is ready. Ends with its `with`.

    `root`: where the packages are unpacked. `more`: arguments behind those of the unit. `user`: and group; none: this process's.
    """

    def __init__(self, root, name, more=(), user=None):
        service = unit_of(os.path.join(root, 'lib', 'systemd', 'system', name + '.service'))['Service']
        assert service['Type'] == 'notify'
        words = [os.path.join(root, word.lstrip('/')) if word.startswith(('/usr', '/etc')) else word
                 for word in shlex.split(service['ExecStart'])]
        self._folder = tempfile.TemporaryDirectory(prefix='ems-unit-')
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.settimeout(NOTIFY_SECONDS)
        self._manager.bind(os.path.join(self._folder.name, 'notify'))
        os.chmod(self._folder.name, 0o755)
        os.chmod(self._manager.getsockname(), 0o777)
        self._user = {'user': user, 'group': user, 'extra_groups': []} if user else {}
        self._command = words + list(more)
        self._process = None

    def __enter__(self):
        with open(os.path.join(self._folder.name, 'log'), 'wb') as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                             env={'NOTIFY_SOCKET': self._manager.getsockname(), 'PATH': '/usr/bin:/bin'}, **self._user)
        try:
            assert self.said() == 'READY=1'
        except BaseException:
            self.__exit__()
            raise
        return self

    def said(self):
        try:
            return self._manager.recv(4096).decode()
        except TimeoutError:
            with open(os.path.join(self._folder.name, 'log'), encoding='utf-8', errors='replace') as log:
                raise AssertionError(f'{self._command} says nothing:\n{log.read()[-2000:]}') from None

    def stop(self):
        """As systemd does; returns the exit code."""
        self._process.terminate()
        return self._process.wait(30)

    def __exit__(self, *unused):
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._manager.close()
        self._folder.cleanup()
