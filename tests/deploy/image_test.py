"""The container image, built by deploy/container/build.sh of this build's packages, and the services of compose.yaml run from it.

Needs root, buildah, debootstrap and a mirror of Debian; elsewhere it is skipped. Where there is no registry, the base is what
debootstrap makes. Processes get what a container run-time gives them: process 1, a root that is read-only, volumes, no capability,
and a network of their own, which all services share.
"""
import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import unittest

import yaml

from cluster import until
from debian_base import base
from packages import SOURCE_DIR, make_debs, output

CONTAINER = os.path.join(SOURCE_DIR, 'deploy', 'container')
CLONE_NEWNET = 0x40000000
HEALTHY_SECONDS = 60
STOP_SECONDS = 20  # stop_grace_period
DEVICES = ('null', 'zero', 'full', 'random', 'urandom')
# $1 the image's root, $2 user, $3 group; then volumes as HOST:INSIDE, --, and what runs.
ENTER = f'''set -e
root=$1 user=$2 group=$3; shift 3
mount --bind "$root" "$root"; mount -t proc proc "$root/proc"; mount -t tmpfs dev "$root/dev"
for node in {" ".join(DEVICES)}; do touch "$root/dev/$node"; mount --bind "/dev/$node" "$root/dev/$node"; done
while [ "$1" != -- ]; do mount --bind "${{1%%:*}}" "$root${{1#*:}}"; shift; done
shift; mount -o remount,bind,ro "$root"
exec chroot "$root" setpriv --reuid "$user" --regid "$group" --clear-groups --no-new-privs --bounding-set=-all "$@"'''


class Service:
    """A service of compose.yaml, or what is run beside it. Ends with the test that made it."""

    def __init__(self, image, name, command, volumes, user):
        self._log = os.path.join(image.folder, name + '.log')
        self._enter = ['unshare', '--mount', '--pid', '--fork', '--kill-child', 'sh', '-c', ENTER, 'sh', image.root, *user.split(':'),
                       *volumes, '--', *image.config['Entrypoint'], *command]
        self._env = dict(word.split('=', 1) for word in image.config['Env'])
        self._process = None

    def run(self, more=None):
        return output(*self._enter, env={**self._env, **(more or {})})

    def start(self):
        with open(self._log, 'wb') as log:
            self._process = subprocess.Popen(self._enter, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env)

    def stop(self):
        """SIGTERM to the container's process 1, as a run-time does; returns the exit code."""
        pid = self._process.pid
        with open(f'/proc/{pid}/task/{pid}/children', encoding='ascii') as file:
            os.kill(int(file.read()), signal.SIGTERM)
        return self._process.wait(STOP_SECONDS)

    def kill(self):
        if self._process is not None and self._process.poll() is None:
            self._process.kill()  # --kill-child
            self._process.wait()

    def said(self):
        with open(self._log, encoding='utf-8', errors='replace') as log:
            return log.read()[-3000:]


class Image:
    """The image, unpacked below a store of its own."""

    def __init__(self, folder):
        self.folder = folder
        self._env = {**os.environ, 'CONTAINERS_STORAGE_CONF': os.path.join(folder, 'storage.conf'), 'BUILDAH_ISOLATION': 'chroot'}
        with open(self._env['CONTAINERS_STORAGE_CONF'], 'w', encoding='utf-8') as file:
            file.write(f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n')
        debian = self._buildah('from', 'scratch')
        self._buildah('add', debian, base(), '/')
        self._buildah('commit', debian, 'localhost/debian:12')
        make_debs(os.path.join(folder, 'debs'), 'ems-controller', 'ems-server', 'ems-tools')
        output(os.path.join(CONTAINER, 'build.sh'), '--with', 'buildah', '--packages', os.path.join(folder, 'debs'),
               '--base', 'localhost/debian:12', '--tag', 'localhost/ems:test', env=self._env)
        self._container = self._buildah('from', 'localhost/ems:test')
        self.root = self._buildah('mount', self._container)
        self.config = json.loads(self._buildah('inspect', '--type', 'image', 'localhost/ems:test'))['Docker']['config']

    def _buildah(self, *words):
        return output('buildah', *words, env=self._env).strip()

    def close(self):
        self._buildah('rm', '--all')
        subprocess.run(['umount', '--quiet', os.path.join(self.folder, 'store', 'overlay')], check=False)
        shutil.rmtree(self.folder)


class ImageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.image = Image(tempfile.mkdtemp(prefix='ems-image-'))
        cls.addClassCleanup(cls.image.close)
        with open(os.path.join(CONTAINER, 'compose.yaml'), encoding='utf-8') as file:
            cls.services = yaml.safe_load(file)['services']
        # From here on: ports are those of the file, whatever else runs on this machine.
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), 'unshare')
        output('ip', 'link', 'set', 'lo', 'up')

    def volumes(self, name):
        """Those of the service, as folders that belong to the image's user where they are new."""
        made = []
        for volume in self.services[name]['volumes']:
            source, inside = volume.split(':')[:2]
            if not source.startswith('/'):
                source = os.path.join(self.image.folder, 'volumes', source)
                if not os.path.exists(source):
                    os.makedirs(source)
                    os.chown(source, *map(int, self.image.config['User'].split(':')))
            if not os.path.exists(self.image.root + inside):
                with open(self.image.root + inside, 'w', encoding='utf-8'):
                    pass
            made.append(f'{source}:{inside}')
        return made

    def service(self, name, command=None, run=''):
        service = self.services[name]
        return Service(self.image, name + run, command or service['command'], self.volumes(name),
                       service.get('user', self.image.config['User']))

    def test_what_the_image_says_of_itself(self):
        config = self.image.config
        self.assertEqual(config['User'], '7400:7400')
        self.assertEqual(sorted(config['ExposedPorts']), ['7400/tcp', '7401/tcp', '7500/tcp', '7501/tcp'])
        self.assertEqual(sorted(config['Volumes']), ['/run/ems', '/var/lib/ems'])
        self.assertEqual(config['Healthcheck']['Test'], ['CMD', 'ems-healthy'])
        self.assertIn('emsctl', self.service('tools', config['Cmd']).run())

    def test_the_services_run_are_healthy_serve_and_stop_in_order(self):
        daemons = {}
        for name, service in self.services.items():
            if name == 'tools':
                continue
            more = [] if name == 'controller' else ['--set', 'dram.bytes=128MiB']  # of a machine that others use, too
            daemons[name] = self.service(name, service['command'] + more)
            self.addCleanup(daemons[name].kill)
            daemons[name].start()
            self.await_health(name, daemons[name])
        tools = {'EMS_CONTROLLER': self.services['tools']['environment']['EMS_CONTROLLER']}

        def shown(*command):
            return self.service('tools', command, run='-run').run(tools)

        def asked(*command):
            return json.loads(shown('emsctl', '--json', *command))

        until(lambda: asked('status')['servers']['up'] == 3, HEALTHY_SECONDS, 'three servers are up')
        shown('ems-bench', 'trace', '--quick')
        gets = sum(asked('node', 'show', name)['stats']['one_sided_gets'] for name in daemons if name != 'controller')
        print(f'containers: healthy, stopped in order; {gets} one-sided Gets of another container')
        self.assertGreater(gets, 0)
        for name, daemon in reversed(daemons.items()):
            self.assertEqual(daemon.stop(), 0, daemon.said())

    def await_health(self, name, daemon):
        check = self.services[name]['healthcheck']['test'][1:]

        def healthy():
            try:
                self.service(name, check, run='-check').run()
                return True
            except AssertionError:
                return False

        try:
            until(healthy, HEALTHY_SECONDS, f'{name} is healthy')
        except AssertionError as error:
            raise AssertionError(f'{error}\n{daemon.said()}') from None


if __name__ == '__main__':
    if os.geteuid() != 0 or not shutil.which('buildah') or not shutil.which('debootstrap'):
        print('skipped: needs root, buildah and debootstrap')
    else:
        unittest.main()
