"""deploy/container/ without making an image: the Containerfile, compose.yaml and the manifests of Kubernetes name what exists and agree.
tests/deploy/image_test.py makes and runs it."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import yaml

from cluster import BIN, Cluster
from packages import SOURCE_DIR, output, unit_of

CONTAINER = os.path.join(SOURCE_DIR, 'deploy', 'container')
HEALTHY = os.path.join(CONTAINER, 'ems-healthy')
CONFIGS = {'mp-controller': 'controller.yaml', 'mp-server': 'server.yaml'}
USER = 7400


def read(*path):
    with open(os.path.join(SOURCE_DIR, *path), encoding='utf-8') as file:
        return file.read()


def compose():
    return yaml.safe_load(read('deploy', 'container', 'compose.yaml'))


def effective(command):
    """The configuration that the daemon makes of a service's command, with the package's file."""
    program, _, path, *more = command
    config = os.path.join(SOURCE_DIR, 'deploy', 'config', CONFIGS[program])
    assert path == '/etc/ems/' + CONFIGS[program]
    return yaml.safe_load(output(os.path.join(BIN, program), '--config', config, '--check-config', *more))


def port(address):
    return int(address.rsplit(':', 1)[1])


class ContainerTest(unittest.TestCase):
    def test_the_image_is_made_of_what_exists(self):
        text = read('deploy', 'container', 'Containerfile')
        for sources in re.findall(r'^COPY (?!--)(.*) \S+$', text, re.M):
            for source in sources.split():
                self.assertTrue(source == 'packages/' or os.path.exists(os.path.join(SOURCE_DIR, source)), source)
        program = read('deploy', 'make_debs.py')
        for name in re.findall(r'/packages/(\S+)_\*\.deb', text):
            self.assertIn(f"'{name}'", program)
        ports = [port(effective([program, '--config', '/etc/ems/' + config])[key]) for program, config in CONFIGS.items()
                 for key in ('listen', 'http_listen')]
        self.assertEqual(re.search(r'^EXPOSE (.*)$', text, re.M).group(1).split(), [str(number) for number in ports])
        self.assertEqual(set(re.findall(r':-(\d+)}', read('deploy', 'container', 'ems-healthy'))), {'7401', '7501'})
        self.assertLess(text.index('useradd'), text.index('apt-get install'))
        self.assertIn(f'USER {USER}:{USER}\n', text)
        for ignored in ('.git', 'build'):
            self.assertIn(f'\n{ignored}\n', read('.containerignore'))

    def test_its_number_and_name_are_those_that_pods_and_services_use(self):
        version = re.search(r'^project\(ems VERSION (\S+)', read('CMakeLists.txt'), re.M).group(1)
        self.assertIn(f'image.version="{version}"', read('deploy', 'container', 'Containerfile'))
        images = [service['image'] for service in compose()['services'].values()]
        for name in ('controller.yaml', 'server.yaml'):
            text = read('deploy', 'kubernetes', name)
            images += re.findall(r'image: (\S+)', text)
            self.assertEqual(set(re.findall(r'(?:runAsUser|runAsGroup|fsGroup): (\d+)', text)) - {'0'}, {str(USER)})
        self.assertEqual(set(images), {f'ems:{version}'})

    def test_services_have_ports_folders_and_names_of_their_own_and_are_asked_on_theirs(self):
        services = {name: service for name, service in compose()['services'].items() if name != 'tools'}
        configs = {name: effective(service['command']) for name, service in services.items()}
        taken = [config[key] for config in configs.values() for key in ('listen', 'http_listen')]
        self.assertEqual(len(set(map(port, taken))), len(taken))
        for name, service in services.items():
            config, program = configs[name], service['command'][0]
            for key in ('listen', 'http_listen'):  # the host's network: nothing but loopback
                self.assertTrue(config[key].startswith('127.0.0.1:'), config[key])
            self.assertEqual(service['healthcheck']['test'], ['CMD', 'ems-healthy', str(port(config['http_listen']))])
            mounts = dict(reversed(volume.split(':')[:2]) for volume in service['volumes'])
            self.assertEqual(mounts['/var/lib/ems'], name)
            self.assertTrue(config['data_dir'].startswith('/var/lib/ems/'))
            unit = unit_of(os.path.join(SOURCE_DIR, 'deploy', 'systemd', program + '.service'))['Service']
            self.assertGreater(int(service['stop_grace_period'].removesuffix('s')), int(unit['TimeoutStopSec']))
            if program == 'mp-server':
                self.assertEqual((config['name'], config['unix_path']), (name, f'/run/ems/{name}.sock'))
                self.assertEqual(port(config['controller']), port(configs['controller']['listen']))
                self.assertEqual((mounts['/run/ems'], service['uts']), ('sockets', 'host'))
        tools = compose()['services']['tools']
        self.assertEqual(tools['environment']['EMS_CONTROLLER'], configs['controller']['listen'])
        self.assertEqual((tools['uts'], tools['user'].split(':')[1]), ('host', str(USER)))
        named = {volume.split(':')[0] for service in services.values() for volume in service['volumes'] if volume[0] != '/'}
        self.assertEqual(named, set(compose()['volumes']))

    def test_the_health_check_tells_a_daemon_from_none_and_from_another_page(self):
        with Cluster(servers=1) as cluster:
            shown = output(os.path.join(BIN, 'emsctl'), '--controller', cluster.address, '--json', 'node', 'show', 'server-0')
            http = str(port(yaml.safe_load(shown)['http_address']))
            self.assertEqual(subprocess.run([HEALTHY, http], check=False).returncode, 0)
            self.assertEqual(subprocess.run([HEALTHY, str(port(cluster.address))], check=False).returncode, 1)  # gRPC
        self.assertEqual(subprocess.run([HEALTHY, http], check=False).returncode, 1)

    def test_the_script_gives_the_tool_a_context_with_the_packages(self):
        with tempfile.TemporaryDirectory() as folder:
            debs = os.path.join(folder, 'debs')
            os.makedirs(debs)
            for name in ('controller', 'server', 'tools'):
                shutil.copy(HEALTHY, os.path.join(debs, f'ems-{name}_1_all.deb'))
            with open(os.path.join(folder, 'buildah'), 'w', encoding='utf-8') as file:
                file.write('#!/bin/sh\necho "$*"; shift $(($# - 1)); find "$1" -type f\n')
            os.chmod(file.name, 0o755)
            said = output(os.path.join(CONTAINER, 'build.sh'), '--with', 'buildah', '--packages', debs, '--base', 'debian:x',
                          env={**os.environ, 'PATH': folder + ':' + os.environ['PATH']})
            for wanted in ('--format docker', '--build-arg BASE=debian:x', '--build-arg PACKAGES=given', '-t ems:0.2.0',
                           '/packages/ems-tools_1_all.deb', '/deploy/container/ems-healthy'):
                self.assertIn(wanted, said)


if __name__ == '__main__':
    unittest.main()
