"""The manifests of deploy/kubernetes/: fields that exist, names and ports that agree with each other, configurations that the daemons
accept, and probes that a daemon with that configuration answers."""
import copy
import glob
import json
import os
import re
import subprocess
import tempfile
import unittest

import yaml

from cluster import BIN, Daemon, until
from kubernetes_shapes import problems_of
from packages import SOURCE_DIR, output, unit_of

READY_SECONDS = 30
ENVIRONMENT = {'NODE_NAME': 'node-1.example', 'POD_IP': '10.1.2.3'}
KEPT_CAPABILITIES = {'folders': ['CHOWN', 'FOWNER']}  # of the init container; no other has any
GIB = 1 << 30


def documents():
    found = []
    for path in sorted(glob.glob(os.path.join(SOURCE_DIR, 'deploy', 'kubernetes', '*.yaml'))):
        with open(path, encoding='utf-8') as file:
            found += list(yaml.safe_load_all(file))
    return found


DOCUMENTS = documents()


def of_kind(kind):
    return {document['metadata']['name']: document for document in DOCUMENTS if document['kind'] == kind}


def pods():
    """Name of the workload → its pod template."""
    return {name: document['spec']['template'] for kind in ('StatefulSet', 'DaemonSet', 'Deployment')
            for name, document in of_kind(kind).items()}


def container(name):
    return pods()[name]['spec']['containers'][0]


def config_text(name):
    text, = of_kind('ConfigMap')[name]['data'].values()
    return text


def ports(name):
    return {port['name']: port['containerPort'] for port in container(name)['ports']}


def effective(name):
    """The configuration that the daemon makes of the ConfigMap and its arguments."""
    program, flag, path, *more = (re.sub(r'\$\((\w+)\)', lambda match: ENVIRONMENT[match.group(1)], word)
                                  for word in container(name)['args'])
    data, = of_kind('ConfigMap')[name]['data']
    mounted = {mount['name']: mount['mountPath'] for mount in container(name)['volumeMounts']}
    assert (flag, path) == ('--config', os.path.join(mounted['config'], data)), path
    with tempfile.NamedTemporaryFile('w', suffix='.yaml') as file:
        file.write(config_text(name))
        file.flush()
        return yaml.safe_load(output(os.path.join(BIN, program), '--config', file.name, '--check-config', *more))


class KubernetesTest(unittest.TestCase):
    def test_fields_exist(self):
        for document in DOCUMENTS:
            self.assertEqual(problems_of(document), [], document['metadata']['name'])

    def test_a_misspelt_field_and_a_wrong_type_are_found(self):
        wrong = copy.deepcopy(of_kind('DaemonSet')['mp-server'])
        wrong['spec']['template']['spec']['containers'][0]['livenesProbe'] = {}
        wrong['spec']['template']['spec']['terminationGracePeriodSeconds'] = '20'
        self.assertEqual(len(problems_of(wrong)), 2)
        self.assertEqual(len(problems_of({**wrong, 'apiVersion': 'v1'})), 1)

    def test_selectors_find_their_pods_and_ports_are_theirs(self):
        by_labels = [template['metadata']['labels'] for template in pods().values()]

        def chosen(selector):
            found = [name for name, labels in zip(pods(), by_labels) if selector.items() <= labels.items()]
            self.assertTrue(found, selector)
            return found

        for kind in ('StatefulSet', 'DaemonSet', 'Deployment'):
            for name, document in of_kind(kind).items():
                self.assertEqual(chosen(document['spec']['selector']['matchLabels']), [name])
        for name, service in of_kind('Service').items():
            pod, = chosen(service['spec']['selector'])
            for port in service['spec']['ports']:
                self.assertEqual(ports(pod)[port['targetPort']], port['port'], name)
        chosen(of_kind('PodDisruptionBudget')['mp-server']['spec']['selector']['matchLabels'])
        self.assertIn(of_kind('StatefulSet')['mp-controller']['spec']['serviceName'], of_kind('Service'))
        for name in ('mp-controller', 'mp-server'):
            policy = of_kind('NetworkPolicy')[name]['spec']
            self.assertEqual(chosen(policy['podSelector']['matchLabels']), [name])
            allowed = [(rule['from'][0].get('podSelector', {}).get('matchLabels'), rule['ports'][0]['port']) for rule in policy['ingress']]
            self.assertEqual(sorted(port for _, port in allowed), sorted(ports(name).values()))
            client, = (labels for labels, port in allowed if port != ports(name)['http'])
            for labels in by_labels:  # the controller does not ask itself, but may, for emsctl
                self.assertLessEqual(client.items(), labels.items())

    def test_daemons_accept_their_configuration_which_fits_the_pods(self):
        for name in ('mp-controller', 'mp-server'):
            config, spec = effective(name), pods()[name]['spec']
            for option, port in (('listen', 'control' if name == 'mp-controller' else 'data'), ('http_listen', 'http')):
                self.assertEqual(config[option], f'0.0.0.0:{ports(name)[port]}')
            writable = [mount['mountPath'] for mount in container(name)['volumeMounts'] if not mount.get('readOnly')]
            for path in [config['data_dir']] + ([config['ssd']['path'], config['unix_path']] if name == 'mp-server' else []):
                self.assertTrue(any(path == folder or path.startswith(folder + '/') for folder in writable), path)
            unit = unit_of(os.path.join(SOURCE_DIR, 'deploy', 'systemd', name + '.service'))['Service']
            self.assertGreater(spec['terminationGracePeriodSeconds'], int(unit['TimeoutStopSec']))
            volumes = {volume['name'] for volume in spec.get('volumes', [])}
            claims = of_kind('StatefulSet').get(name, {'spec': {}})['spec'].get('volumeClaimTemplates', [])
            volumes |= {claim['metadata']['name'] for claim in claims}
            for part in spec['containers'] + spec.get('initContainers', []):
                self.assertLessEqual({mount['name'] for mount in part['volumeMounts']}, volumes)
        self.assertEqual(effective('mp-controller')['page'], 'off')  # its port is not loopback's

    def test_the_server_finds_the_controller_and_its_memory_is_what_the_pod_may_have(self):
        config, part = effective('mp-server'), container('mp-server')
        self.assertEqual((config['name'], config['advertise']), ('node-1.example', f"10.1.2.3:{ports('mp-server')['data']}"))
        service = of_kind('Service')['mp-controller']
        address = f"mp-controller.{service['metadata']['namespace']}:{service['spec']['ports'][0]['port']}"
        self.assertEqual(config['controller'], address)
        self.assertIn(address, container('engine')['args'][-1])
        self.assertEqual(config['dram']['bytes'], int(part['resources']['limits']['hugepages-2Mi'].removesuffix('Gi')) * GIB)
        self.assertEqual(config['dram']['huge_pages'], 'require')
        self.assertLess(config['ssd']['index_memory_bytes'], int(part['resources']['limits']['memory'].removesuffix('Gi')) * GIB)
        folders, = pods()['mp-server']['spec']['initContainers']
        made = {word for word in folders['command'] if word.startswith('/')}
        self.assertEqual(made, {os.path.dirname(config['unix_path']), config['data_dir'], config['ssd']['path']})

    def test_containers_may_do_little(self):
        for name, template in pods().items():
            if name == 'engine':
                continue  # the operator's
            spec = template['spec']
            self.assertTrue(spec['securityContext']['runAsNonRoot'])
            self.assertEqual(spec['securityContext']['seccompProfile'], {'type': 'RuntimeDefault'})
            for part in spec['containers'] + spec.get('initContainers', []):
                context = part['securityContext']
                self.assertFalse(context['allowPrivilegeEscalation'])
                self.assertTrue(context['readOnlyRootFilesystem'])
                self.assertEqual(context['capabilities']['drop'], ['ALL'])
                self.assertEqual(context['capabilities'].get('add', []), KEPT_CAPABILITIES.get(part['name'], []))

    def test_the_engine_reaches_the_socket_of_its_node(self):
        engine, server = pods()['engine']['spec'], pods()['mp-server']['spec']
        socket = os.path.dirname(effective('mp-server')['unix_path'])
        for spec in (engine, server):
            path, = (volume['hostPath']['path'] for volume in spec['volumes'] if volume['name'].endswith('socket'))
            mount, = (mount['mountPath'] for mount in spec['containers'][0]['volumeMounts'] if mount['name'].endswith('socket'))
            self.assertEqual((path, mount), (socket, socket))
        self.assertNotIn('hostname', engine)
        self.assertEqual(engine['nodeSelector'], server['nodeSelector'])
        self.assertIn(server['securityContext']['runAsGroup'], engine['securityContext']['supplementalGroups'])
        self.assertNotEqual(engine['securityContext']['runAsUser'], server['securityContext']['runAsUser'])
        connector = json.loads(container('engine')['args'][-1])
        self.assertEqual(connector['kv_connector_module_path'], 'ems.vllm')

    def test_probes_are_answered_by_daemons_of_these_configurations(self):
        with tempfile.TemporaryDirectory(prefix='ems-k8s-') as folder:
            more = {'mp-controller': [], 'mp-server': [
                'name=a', 'dram.bytes=128MiB', 'dram.huge_pages=try', f'unix_path={folder}/s.sock', f'ssd.path={folder}/ssd',
                'ssd.capacity_bytes=256MiB', 'ssd.index_memory_bytes=64MiB']}
            controller = None
            for name, flags in more.items():
                path = os.path.join(folder, name + '.yaml')
                with open(path, 'w', encoding='utf-8') as file:
                    file.write(config_text(name))
                flags = flags + ['http_listen=127.0.0.1:0', f'data_dir={folder}/{name}']
                if controller is not None:
                    flags.append(f'controller={controller.address}')
                daemon = Daemon(folder, name, name, flags, config=path)
                self.addCleanup(daemon.terminate)
                daemon.start()
                daemon.wait_ready()
                controller = controller or daemon
                with open(os.path.join(folder, name + '.ready'), encoding='utf-8') as file:
                    http = json.load(file)['http']
                for probe in ('startupProbe', 'livenessProbe', 'readinessProbe'):
                    get = container(name)[probe]['httpGet']
                    self.assertEqual(get['port'], 'http')
                    asked = ['curl', '-sSf', '--max-time', '5', f"http://{http}{get['path']}"]
                    until(lambda command=asked: subprocess.run(command, capture_output=True, check=False).returncode == 0, READY_SECONDS, asked)
            controller.terminate()
            daemon.terminate()


if __name__ == '__main__':
    unittest.main()
