"""The units under a real systemd: a Debian of its own is booted (systemd-nspawn), the packages are installed, enabled, killed,
misconfigured, upgraded, rebooted and purged there, as on a machine of the pool.

Needs root, debootstrap, systemd-nspawn (Debian's systemd-container) and a mirror of Debian; elsewhere it is skipped. What it has
downloaded stays in EMS_CHROOT_CACHE. A few minutes.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from debian_base import CACHE, unpack
from packages import SOURCE_DIR, make_debs, output

APT = ('apt-get', '-q', '-y', '--no-install-recommends', '-o', 'Dpkg::Use-Pty=0')
PACKAGES = ('ems-controller', 'ems-server', 'ems-tools', 'ems-pdc')
UNITS = ('mp-controller', 'mp-server', 'ems-pdc')
EXPOSURE_MAX = 4.0  # of systemd-analyze security, 0 to 10
SECONDS_MAX = 60
ENVIRONMENT = {'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'DEBIAN_FRONTEND': 'noninteractive', 'LC_ALL': 'C.UTF-8', 'HOME': '/root'}
MOUNTS = 'for node in null zero random urandom; do touch "$1/dev/$node"; mount --bind "/dev/$node" "$1/dev/$node"; done; '


class Machine:
    """A Debian with systemd in a folder: booted with a network of its own, off with its `with`."""

    def __init__(self, root):
        self.root, self._process, self._leader = root, None, None

    def prepare(self, debs):
        """Installs systemd, and what `debs` need without themselves: a machine that is booted has no network but loopback."""
        enter = ('set -e; mount -t tmpfs dev "$1/dev"; ' + MOUNTS + 'mount --bind "$2" "$1/var/cache/apt/archives"; root="$1"; shift 2; '
                 'exec chroot "$root" sh -ec "$1" sh "$@"')
        apt = ' '.join(APT)
        script = (f'{apt} update; {apt} install systemd systemd-sysv dbus curl openssl procps; shift; '
                  f'for deb in "$@"; do {apt} satisfy "$(dpkg-deb -f "$deb" Depends)"; done')
        os.makedirs(os.path.join(CACHE, 'archives', 'partial'), exist_ok=True)
        shutil.copy('/etc/resolv.conf', os.path.join(self.root, 'etc'))
        output('unshare', '--mount', '--pid', '--fork', '--kill-child', f'--mount-proc={self.root}/proc', 'sh', '-c', enter, 'sh',
               self.root, os.path.join(CACHE, 'archives'), script, *debs, env=ENVIRONMENT)

    def boot(self):
        # machined is not asked: there is none where this host has no systemd of its own.
        with open(self.root + '.log', 'ab') as log:
            self._process = subprocess.Popen(
                ['systemd-nspawn', '-q', '--register=no', '--keep-unit', '--private-network', '--boot', '-D', self.root, '--machine=ems-test'],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._leader = self.until(self._child, 'systemd')
        self.until(lambda: self.state() in ('running', 'degraded'), 'booted machine')
        assert self.state() == 'running', self.run('systemctl', '--failed', '--no-pager')

    def _child(self):
        assert self._process.poll() is None, self.console()
        with open(f'/proc/{self._process.pid}/task/{self._process.pid}/children', encoding='ascii') as file:
            return file.read().split()[:1]

    def console(self):
        with open(self.root + '.log', encoding='utf-8', errors='replace') as file:
            return file.read()[-3000:]

    def state(self):
        return self.ask('systemctl', 'is-system-running').stdout.strip()

    def ask(self, *command):
        return subprocess.run(['nsenter', '-a', '-t', self._leader[0], *command], capture_output=True, text=True, check=False, timeout=300,
                              env=ENVIRONMENT)

    def run(self, *command):
        ran = self.ask(*command)
        if ran.returncode != 0:
            raise AssertionError(f'{command}: exit {ran.returncode}\n{ran.stdout}{ran.stderr}\n{self.journal()}')
        return ran.stdout

    def journal(self):
        return self.ask('journalctl', '--no-pager', '-n', '60').stdout

    def until(self, condition, what):
        end = time.monotonic() + SECONDS_MAX
        pause = threading.Event()
        while True:
            found = condition()
            if found:
                return found
            if time.monotonic() > end:
                raise AssertionError(f'after {SECONDS_MAX} s no {what}\n{self.console()}\n{self.journal() if self._leader else ""}')
            pause.wait(0.1)

    def power_off(self):
        if self._process is None:
            return
        if self._leader:
            self.ask('systemctl', 'poweroff')
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()  # and what runs in there with it
            self._process.wait()
        self._process, self._leader = None, None


class SystemdTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix='ems-systemd-')
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        root = os.path.join(cls.folder, 'root')
        unpack(root)
        cls.first = cls.inside(make_debs(os.path.join(root, 'work', 'first'), *PACKAGES))
        cls.second = cls.inside(make_debs(os.path.join(root, 'work', 'second'), *PACKAGES, suffix='+2'))
        cls.machine = Machine(root)
        cls.machine.prepare(cls.first)
        cls.addClassCleanup(cls.machine.power_off)
        cls.machine.boot()

    @staticmethod
    def inside(debs):
        return ['/work/' + path.rsplit('/work/', 1)[1] for path in debs.values()]

    def run_in(self, *command):
        return self.machine.run(*command)

    def show(self, unit, field):
        return self.run_in('systemctl', 'show', '--value', '-p', field, unit).strip()

    def pid(self, unit):
        return int(self.show(unit, 'MainPID'))

    def edit(self, name, pattern, text):
        path = os.path.join(self.machine.root, 'etc', 'ems', name)
        with open(path, encoding='utf-8') as file:
            before = file.read()
        after, count = re.subn(pattern, text, before, flags=re.M)
        self.assertGreater(count, 0, before)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(after)
        return before

    def wait_serving(self):
        self.machine.until(lambda: self.machine.ask('emsctl', 'status', '--check').returncode == 0, 'status that is well')

    def assert_kept(self, key):
        """Once the server has its lease and a view: until then it may be a miss."""
        self.machine.until(lambda: self.machine.ask('emsctl', 'get', key, '-').stdout == 'kept\n', f'value of {key}')

    def test_as_on_a_machine_of_the_pool(self):
        before = self.content()
        self.install_and_start()
        self.restart_what_ends()
        self.leave_what_is_misconfigured()
        self.ask_for_the_page()
        self.upgrade()
        self.reboot()
        self.purge(before)

    def content(self):
        listed = self.run_in('find', '/etc', '/usr', '/var/lib', '/run', '-xdev').splitlines()
        noise = ('/var/lib/apt/', '/var/lib/dpkg/', '/var/lib/systemd/', '/run/systemd/', '/run/log', '/run/udev', '/run/utmp', '/run/lock')
        return {path for path in listed if not path.startswith(noise) and re.search(r'\bems\b|/ems-|/mp-|libems', path)}

    def install_and_start(self):
        said = self.run_in(*APT, 'install', *self.first)
        for unit in UNITS:
            self.assertIn(f'systemctl enable --now {unit}', said)
            self.assertEqual(self.machine.ask('systemctl', 'is-active', unit).stdout, 'inactive\n')
            self.assertEqual(self.machine.ask('systemctl', 'is-enabled', unit).stdout, 'disabled\n')
            exposure = float(re.search(r'exposure level for \S+: ([\d.]+)', self.run_in('systemd-analyze', 'security', '--no-pager', unit))[1])
            print(f'{unit}: exposure {exposure}')
            self.assertLessEqual(exposure, EXPOSURE_MAX)
        # Nobody has named the server: its unit fails, says why, and is not tried again.
        self.run_in('systemctl', 'enable', '--now', 'mp-controller')
        self.assertNotEqual(self.machine.ask('systemctl', 'start', 'mp-server').returncode, 0)
        self.assertEqual(self.machine.ask('systemctl', 'is-failed', 'mp-server').stdout, 'failed\n')
        self.assertIn('name', self.run_in('journalctl', '--no-pager', '-u', 'mp-server'))
        self.edit('server.yaml', r'^# name: server-1 .*', 'name: a')
        self.edit('server.yaml', 'bytes: 4GiB', 'bytes: 128MiB')
        self.edit('server.yaml', '^log_level:', 'ssd:\n  capacity_bytes: 512MiB\nlog_level:')
        self.edit('pdc.yaml', 'preset: small', 'preset: tiny')
        self.run_in('systemctl', 'enable', '--now', 'mp-server', 'ems-pdc')
        self.wait_serving()
        with open(os.path.join(self.machine.root, 'work', 'value'), 'w', encoding='ascii') as file:
            file.write('kept\n')
        self.run_in('emsctl', 'put', 'on-ssd', '/work/value', '--durability', 'ssd')
        self.run_in('emsctl', 'put', 'in-dram', '/work/value')
        self.assertIn('"object":"list"', self.run_in('curl', '-sSf', 'http://127.0.0.1:8000/v1/models').replace(' ', ''))
        mode = os.stat(os.path.join(self.machine.root, 'var', 'lib', 'ems')).st_mode & 0o777
        self.assertEqual(mode, 0o750)
        self.assertEqual(self.run_in('stat', '-c', '%U %G %a', '/run/ems/server.sock'), 'ems ems 660\n')

    def restart_what_ends(self):
        """kill -9: systemd starts it again, and what was promised is there."""
        for unit in UNITS:
            killed = self.pid(unit)
            self.run_in('kill', '-9', str(killed))
            self.machine.until(lambda unit=unit, killed=killed: self.pid(unit) not in (0, killed) and self.show(unit, 'ActiveState') == 'active', unit)
        self.wait_serving()
        self.assert_kept('on-ssd')
        print('kill -9: started again, the value on the SSD is there')

    def leave_what_is_misconfigured(self):
        before = self.edit('server.yaml', 'bytes: 128MiB', 'bytes: a lot')
        self.assertNotEqual(self.machine.ask('systemctl', 'restart', 'mp-server').returncode, 0)
        self.assertEqual(self.show('mp-server', 'ExecMainStatus'), '2')
        self.assertEqual(self.show('mp-server', 'ActiveState'), 'failed')
        self.assertIn('server.yaml', self.run_in('journalctl', '--no-pager', '-n', '20', '-u', 'mp-server'))
        with open(os.path.join(self.machine.root, 'etc', 'ems', 'server.yaml'), 'w', encoding='utf-8') as file:
            file.write(before)
        self.run_in('systemctl', 'restart', 'mp-server')
        self.wait_serving()
        print('wrong configuration: exit 2, not tried again')

    def ask_for_the_page(self):
        """docs/OPERATIONS.md: a password for the page of the cluster."""
        self.run_in('sh', '-c', '(umask 077; openssl rand -hex 16 >/etc/ems/page_password); chown ems: /etc/ems/page_password; '
                    "echo 'page_password_file: /etc/ems/page_password' >>/etc/ems/controller.yaml; systemctl restart mp-controller")
        self.wait_serving()
        code = ('curl', '-s', '-o', '/dev/null', '-w', '%{http_code}')
        self.assertEqual(self.run_in(*code, 'http://127.0.0.1:7401/state'), '401')
        self.assertEqual(self.run_in('sh', '-c', f'{" ".join(code)} -u "ems:$(cat /etc/ems/page_password)" http://127.0.0.1:7401/state'), '200')
        self.assertEqual(self.run_in(*code, 'http://127.0.0.1:7401/metrics'), '200')

    def upgrade(self):
        # A controller that was started again gives leases after 3 s: no Put before.
        self.machine.until(lambda: self.machine.ask('emsctl', 'put', 'in-dram', '/work/value').returncode == 0, 'Put')
        old = {unit: self.pid(unit) for unit in UNITS}
        said = self.run_in(*APT, 'install', *self.second)
        self.assertIn('restart mp-server', said)
        versions = self.run_in('dpkg-query', '-W', '-f', '${Version} ', *PACKAGES).split()
        self.assertTrue(all(version.endswith('+2') for version in versions), versions)
        for unit, pid in old.items():
            self.assertEqual(self.show(unit, 'ActiveState'), 'active')
            self.assertEqual(self.pid(unit) == pid, unit == 'mp-server', f'{unit}: a server goes on, the others begin again')
        self.wait_serving()
        self.assert_kept('in-dram')  # the pool is still there
        with open(os.path.join(self.machine.root, 'etc', 'ems', 'server.yaml'), encoding='utf-8') as file:
            self.assertIn('name: a\n', file.read())
        self.assertEqual(self.show('mp-server', 'NeedDaemonReload'), 'no')
        self.run_in('systemctl', 'restart', 'mp-server')
        self.wait_serving()
        self.assertNotEqual(self.pid('mp-server'), old['mp-server'])
        self.assert_kept('on-ssd')
        print('upgrade: the server goes on until it is restarted, edited configuration stays')

    def reboot(self):
        self.machine.power_off()
        self.machine.boot()
        for unit in UNITS:
            self.machine.until(lambda unit=unit: self.show(unit, 'ActiveState') == 'active', unit + ' after the boot')
        self.wait_serving()
        self.assert_kept('on-ssd')
        print('reboot: all three are there, the value on the SSD too')

    def purge(self, before):
        self.run_in('rm', '/etc/ems/page_password')  # the operator's own
        self.run_in('dpkg', '--purge', *PACKAGES)
        for unit in UNITS:
            self.assertEqual(self.machine.ask('systemctl', 'is-active', unit).stdout, 'inactive\n')
            self.assertEqual(self.show(unit, 'LoadState'), 'not-found')
        self.assertEqual(self.machine.ask('pgrep', '-x', 'mp-server|mp-controller|ems-pdc').stdout, '')
        self.assertEqual(sorted(self.content() - before), [])
        self.assertEqual(self.machine.state(), 'running')
        print('purge: nothing is left')


if __name__ == '__main__':
    missing = [program for program in ('debootstrap', 'systemd-nspawn') if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        print(f'skipped: needs root and {" and ".join(missing) or "nothing else"}')
    else:
        unittest.main()
