"""All packages in a Debian of their own: installed by apt with what they need, used, upgraded in place, purged.

Needs root, debootstrap and a mirror of Debian; elsewhere it is skipped. What it has downloaded stays in EMS_CHROOT_CACHE
(~/.cache/ems/chroot), for the next run. A few minutes.
"""
import os
import shutil
import subprocess
import tempfile
import unittest

from debian_base import CACHE, unpack
from packages import SOURCE_DIR, make_debs, output

APT = ('apt-get', '-q', '-y', '--no-install-recommends', '-o', 'Dpkg::Use-Pty=0')
TOOLS = ('cmake', 'curl', 'g++', 'ninja-build')  # what the programs below are built and asked with
CONTENT = ('/etc', '/home', '/lib', '/opt', '/root', '/run', '/srv', '/usr', '/var')
# Of apt and dpkg themselves, and copies that useradd and userdel keep of what was there before.
NOT_OURS = ('/var/cache/', '/var/lib/apt/', '/var/lib/dpkg/', '/var/log/', '/etc/passwd-', '/etc/group-', '/etc/shadow-', '/etc/gshadow-')
ACCOUNTS = ('passwd', 'group', 'shadow', 'gshadow')


class ChrootTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix='ems-chroot-')
        cls.addClassCleanup(shutil.rmtree, cls.root, ignore_errors=True)
        unpack(cls.root)
        os.makedirs(os.path.join(CACHE, 'archives', 'partial'), exist_ok=True)
        shutil.copy('/etc/resolv.conf', os.path.join(cls.root, 'etc'))
        cls.work = os.path.join(cls.root, 'work')
        shutil.copytree(os.path.join(SOURCE_DIR, 'examples'), os.path.join(cls.work, 'examples'))
        for name in ('packages.py', 'in_chroot.py'):
            shutil.copy(os.path.join(SOURCE_DIR, 'tests', 'deploy', name), cls.work)
        make_debs(os.path.join(cls.work, 'first'))
        make_debs(os.path.join(cls.work, 'second'), suffix='+2')

    def inside(self, *command, network=True):
        """Runs it in the chroot; what it leaves running ends with it. Without `network` it has a loopback of its own."""
        # Of the machine's devices a few, each mounted: what runs in there as root cannot take them away.
        enter = ('set -e; mount -t tmpfs dev "$1/dev"; for node in null zero full random urandom; do '
                 'touch "$1/dev/$node"; mount --bind "/dev/$node" "$1/dev/$node"; done; mkdir "$1/dev/shm"; mount --bind "$2" "$1/var/cache/apt/archives"; '
                 '[ "$3" = True ] || ip link set lo up; chroot="$1"; shift 3; exec chroot "$chroot" "$@"')
        return output('unshare', '--mount', '--pid', '--fork', '--kill-child', f'--mount-proc={self.root}/proc',
                      *([] if network else ['--net']), 'sh', '-c', enter, 'sh', self.root, os.path.join(CACHE, 'archives'),
                      str(network), *command, env={'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'DEBIAN_FRONTEND': 'noninteractive',
                                                   'LC_ALL': 'C.UTF-8', 'HOME': '/root'})

    def install(self, folder):
        names = sorted(os.listdir(os.path.join(self.work, folder)))
        return self.inside(*APT, 'install', *(f'/work/{folder}/{name}' for name in names))

    def purge(self):
        names = {name.split('_')[0] for name in os.listdir(os.path.join(self.work, 'first'))}
        self.inside('dpkg', '--purge', *sorted(names))

    def content(self):
        """Paths of all that is installed or was made, and the accounts."""
        listed = self.inside('find', *CONTENT, '-xdev').splitlines()
        accounts = {}
        for name in ACCOUNTS:
            with open(os.path.join(self.root, 'etc', name), encoding='utf-8') as file:
                accounts[name] = file.read()
        return {path for path in listed if not path.startswith(NOT_OURS)}, accounts

    def test_installed_used_upgraded_and_purged(self):
        self.inside(*APT, 'update')
        self.install('first')  # brings what they need
        self.inside(*APT, 'install', *TOOLS)
        self.purge()
        before = self.content()
        self.assertEqual([path for path in before[0] if '/ems' in path or 'libems' in path or '/mp-' in path], [])

        self.assertIn('systemctl enable --now mp-server', self.install('first'))
        print(self.inside('python3', '-B', '/work/in_chroot.py', network=False), end='')

        config = os.path.join(self.root, 'etc', 'ems', 'server.yaml')
        with open(config, encoding='utf-8') as file:
            edited = file.read()
        self.assertIn('name: a\n', edited)  # by in_chroot.py
        self.assertIn('not started', self.install('second'))  # no systemd here: nothing runs
        versions = self.inside('dpkg-query', '-W', '-f', '${Version}\n', 'ems-*', 'libems*', 'python3-ems').split()
        self.assertEqual(set(versions), {'0.2.0+2'})
        with open(config, encoding='utf-8') as file:
            self.assertEqual(file.read(), edited)
        print(self.inside('python3', '-B', '/work/in_chroot.py', network=False), end='')

        self.purge()
        after = self.content()
        self.assertEqual(sorted(after[0] ^ before[0]), [])
        self.assertEqual(after[1], before[1])  # the user ems stays
        self.assertIn('\nems:', after[1]['passwd'])


if __name__ == '__main__':
    if os.geteuid() != 0 or shutil.which('debootstrap') is None:
        print('skipped: needs root and debootstrap')
    else:
        unittest.main()
