"""The alerts on real daemons, by a real Prometheus: servers that are stopped in order and deleted while the controller restarts raise
nothing; one that is killed raises NodeDown, and nothing else. The rules are those of deploy/monitoring, twelve times as quick."""
import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import unittest
import urllib.parse
import urllib.request

import yaml

from cluster import BIN, Cluster, Daemon, until

SOURCE_DIR = os.environ.get('EMS_SOURCE_DIR', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
RULES = os.path.join(SOURCE_DIR, 'deploy', 'monitoring', 'ems.rules.yaml')
QUICKER = 12
SECONDS_MAX = 40  # for what Prometheus has to see
UNITS = {'m': 60, 'h': 3600}


def free_port():
    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        return one.getsockname()[1]


class Prometheus:
    """Scrapes `targets` (job → addresses) twice a second, and judges by the rules. Ends with its `with`."""

    def __init__(self, targets):
        self._folder = tempfile.mkdtemp(prefix='ems-prometheus-')
        with open(RULES, encoding='utf-8') as file:
            rules = re.sub(r'for: (\d+)([mh])', lambda m: f'for: {int(m[1]) * UNITS[m[2]] // QUICKER}s', file.read())
        self._write('rules.yaml', rules)
        jobs = [{'job_name': job, 'static_configs': [{'targets': list(addresses), 'labels': {'cluster': 'ems'}}]}
                for job, addresses in targets.items()]
        self._write('prometheus.yml', json.dumps({'global': {'scrape_interval': '500ms', 'scrape_timeout': '400ms', 'evaluation_interval': '500ms'},
                                                  'rule_files': ['rules.yaml'], 'scrape_configs': jobs}))  # JSON is YAML
        self._address = f'127.0.0.1:{free_port()}'
        self._process = None

    def _write(self, name, text):
        with open(os.path.join(self._folder, name), 'w', encoding='utf-8') as file:
            file.write(text)

    def __enter__(self):
        with open(os.path.join(self._folder, 'log'), 'wb') as log:
            self._process = subprocess.Popen(
                ['prometheus', f'--config.file={self._folder}/prometheus.yml', f'--storage.tsdb.path={self._folder}/data',
                 f'--web.listen-address={self._address}', '--log.level=warn'], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def __exit__(self, *unused):
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def get(self, path, **parameters):
        with urllib.request.urlopen(f'http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}', timeout=10) as answer:
            return json.load(answer)['data']

    def value(self, query):
        """Of a query with one sample at most; None without."""
        with contextlib.suppress(OSError):  # it begins, still
            samples = self.get('query', query=query)['result']
            return float(samples[0]['value'][1]) if samples else None
        return None

    def wait(self, query, wanted):
        until(lambda: self.value(query) == wanted, SECONDS_MAX, f'{query} is {wanted}')

    def fired(self):
        """Alerts that have fired since the start."""
        samples = self.get('query', query='count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[10m]))')['result']
        return {sample['metric']['alertname'] for sample in samples}


@unittest.skipUnless(shutil.which('prometheus'), 'prometheus is not installed')
class AlertsLiveTest(unittest.TestCase):
    def emsctl(self, *arguments):
        return subprocess.run([os.path.join(BIN, 'emsctl'), '--controller', self.cluster.address, *arguments], capture_output=True, text=True,
                              check=False, timeout=30)

    def delete(self, name):
        until(lambda: self.emsctl('node', 'delete', name).returncode == 0, SECONDS_MAX, f'{name} is deleted')

    def start(self):
        """Three servers without an SSD tier, and one with: that keeps its slots when it is stopped."""
        http = [free_port() for _ in range(5)]
        self.cluster = self.enterContext(Cluster(servers=0, controller_flags=[f'http_listen=127.0.0.1:{http[0]}', 'lease_ms=2000']))
        folder = self.cluster.folder
        for i, port in enumerate(http[1:]):
            flags = [f'name=server-{i}', f'controller={self.cluster.address}', f'data_dir={folder}/server-{i}', f'http_listen=127.0.0.1:{port}',
                     'dram.bytes=32MiB', f'ssd.capacity_bytes={"128MiB" if i == 3 else 0}']
            self.cluster.servers.append(Daemon(folder, f'server-{i}', 'mp-server', flags))
        self.cluster.start_servers()
        addresses = [f'127.0.0.1:{port}' for port in http]
        prometheus = self.enterContext(Prometheus({'ems-controller': addresses[:1], 'ems-server': addresses[1:]}))
        prometheus.wait('sum(up)', 5)
        prometheus.wait('ems_controller_nodes{state="live"}', 4)
        prometheus.wait('count(ALERTS)', None)
        return prometheus

    def test_what_is_planned_is_silent_and_a_killed_server_is_told(self):
        prometheus = self.start()
        self.assertGreater(prometheus.value('ems_controller_disk_free_bytes'), 0)
        self.assertGreater(prometheus.value('ems_server_ssd_free_bytes'), 0)

        self.cluster.servers[2].terminate()
        self.cluster.servers[3].terminate()
        prometheus.wait('ems_controller_nodes{state="left"}', 1)
        self.cluster.controller.terminate()
        prometheus.wait('sum(up)', 2)
        self.cluster.controller.start()
        self.cluster.controller.wait_ready()
        prometheus.wait('ems_controller_nodes{state="stopped"}', 1)
        # Both are away for longer than NodeDown waits.
        prometheus.wait(f'time() - ALERTS_FOR_STATE{{alertname="NodeStopped"}} > bool {90 / QUICKER}', 1)
        self.delete('server-2')
        self.delete('server-3')
        prometheus.wait('sum(ems_controller_nodes{state!="live"})', 0)
        prometheus.wait('count(ALERTS)', None)  # nothing is even pending
        self.assertEqual(prometheus.value('sum(up)'), 3, 'what was removed is a target still')
        self.assertEqual(prometheus.fired(), set())

        self.cluster.servers[1].kill()
        prometheus.wait('count(ALERTS{alertname="NodeDown",alertstate="firing"})', 1)
        self.assertEqual(prometheus.fired(), {'NodeDown'})
        alert, = (one for one in prometheus.get('alerts')['alerts'] if one['state'] == 'firing')
        self.assertEqual(alert['annotations']['summary'], '1 EMS server(s) down')
        self.assertIn('Cluster ems: 1 server(s)', alert['annotations']['description'])


class ComposeTest(unittest.TestCase):
    def test_the_daemons_take_the_flags_that_it_gives_them(self):
        with open(os.path.join(SOURCE_DIR, 'deploy', 'monitoring', 'compose.yaml'), encoding='utf-8') as file:
            services = yaml.safe_load(file)['services']
        for name in ('controller', 'server-1'):
            command = services[name]['entrypoint'] + services[name].get('command', [])
            line = command[2].replace('$$', '$') if command[0] == 'sh' else shlex.join(command)
            run = subprocess.run(['sh', '-c', line + ' --check-config'], capture_output=True, text=True, check=False, timeout=30,
                                 env={'PATH': BIN + ':/usr/bin:/bin', 'HOSTNAME': name})
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            self.assertIn('7400', run.stdout)


if __name__ == '__main__':
    unittest.main()
