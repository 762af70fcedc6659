"""Monitoring as it is installed: rules, dashboards and configurations are what Prometheus takes, name only metrics and labels that exist, and
each alert has a test in which it fires (alerts.test.yaml), healthy series in which it does not, and a section of the runbook."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

SOURCE_DIR = os.environ.get('EMS_SOURCE_DIR', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
MONITORING = os.path.join(SOURCE_DIR, 'deploy', 'monitoring')
RULES = os.path.join(MONITORING, 'ems.rules.yaml')
ALERT_TESTS = os.path.join(SOURCE_DIR, 'tests', 'deploy', 'alerts.test.yaml')
sys.path.insert(0, os.path.join(SOURCE_DIR, 'tools'))
import check_layers  # noqa: E402

ALERTS_WANTED = {'NodeDown', 'ViewFrozen', 'ControllerDown', 'LeaseLost', 'SsdDegraded', 'DiskFull', 'EvictionStorm', 'HitRateDrop', 'P99High',
                 'DamagedObjects', 'ConnectionsRefused', 'PoolRefused'}
OF_EACH = {'job', 'instance', 'cluster'}  # labels that scraping adds
WORDS = {'and', 'or', 'unless', 'on', 'by', 'offset'}
needs_promtool = unittest.skipUnless(shutil.which('promtool'), 'promtool is not installed (Debian: prometheus)')


def read(*path):
    with open(os.path.join(SOURCE_DIR, *path), encoding='utf-8') as file:
        return file.read()


def rules():
    return [rule for group in yaml.safe_load(read(RULES))['groups'] for rule in group['rules']]


def alerts():
    return [rule for rule in rules() if 'alert' in rule]


def known_metrics():
    """Metric → labels: of the daemons' tables, of those that Prometheus makes, and of the recording rules."""
    known = {'up': set(OF_EACH), 'ALERTS': OF_EACH | {'alertstate', 'alertname'}}
    for name, labels, kind in re.findall(r'^(\w+?)(?:\{(.*)\})? (counter|gauge|histogram)$', read('docs', 'METRICS.md'), re.M):
        for suffix, more in (('_bucket', {'le'}), ('_count', set()), ('_sum', set())) if kind == 'histogram' else (('', set()),):
            known[name + suffix] = set(filter(None, labels.split(','))) | OF_EACH | more
    for name, kind in re.findall(r'^\| `(ems_pdc_\w+)` \| (\w+) \|', read('docs', 'SERVING_API.md'), re.M):
        known[name + ('_bucket' if kind == 'histogram' else '')] = OF_EACH | {'model_name', 'finished_reason', 'path', 'code', 'le'}
    for rule in rules():
        if 'record' in rule:
            known[rule['record']] = set(re.split(r', *', re.search(r'by \((.*?)\)', rule['expr'] + ' by (cluster, namespace)').group(1)))
    return known


def metrics_of(expression):
    """Metric → labels that the expression selects by; and the labels that it groups by."""
    text = re.sub(r'"[^"]*"', '""', expression)
    text = re.sub(r'\[[^]]*\]|\boffset \w+', '', text)
    groups = re.findall(r'\b(?:by|on) \(([^)]*)\)', text)
    text = re.sub(r'\b(?:by|on) \([^)]*\)', '', text)
    used = {}
    for name, calls, labels in re.findall(r'([a-zA-Z_:][\w:]*)\s*(\()?(?:\{([^}]*)\})?', text):
        if not calls and name not in WORDS and not re.fullmatch(r'e\d+', name):
            used.setdefault(name, set()).update(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)', labels))
    return used, {label.strip() for group in groups for label in group.split(',')}


def problems(expression, known):
    """What an expression names that does not exist."""
    used, groups = metrics_of(expression)
    found = [f'no metric {name}' for name in used if name not in known]
    found += [f'{name} has no label {label}' for name in used if name in known for label in labels_beyond(used[name], known[name])]
    every = set().union(*(known.get(name, set()) for name in used))
    return found + [f'no label {label} to group by' for label in labels_beyond(groups, every)]


def labels_beyond(labels, known):
    return sorted(labels - known)


def promtool(*arguments):
    run = subprocess.run(['promtool', *arguments], capture_output=True, text=True, check=False, timeout=100)
    if run.returncode != 0:
        raise AssertionError(f'promtool {arguments}: exit {run.returncode}\n{run.stdout}{run.stderr}')


def panels():
    """(dashboard, panel) of all dashboards."""
    paths = sorted(glob.glob(os.path.join(MONITORING, 'grafana', 'dashboards', '*.json')))
    return [(dashboard, panel) for dashboard in (json.loads(read(path)) for path in paths) for panel in dashboard['panels']]


class ExpressionTest(unittest.TestCase):
    KNOWN = {'a_total': {'op', 'cluster'}, 'b': {'cluster'}}

    def test_what_does_not_exist_is_found(self):
        for expression, wanted in (('sum by (cluster) (rate(a_total{op="x"}[5m])) / on (cluster) b > 1e9', []),
                                   ('rate(c_total[5m])', ['no metric c_total']),
                                   ('b{op=~"x"}', ['b has no label op']),
                                   ('sum by (op) (b)', ['no label op to group by']),
                                   ('b unless on (path) a_total offset 1h', ['no label path to group by'])):
            self.assertEqual(problems(expression, self.KNOWN), wanted, expression)


class RulesTest(unittest.TestCase):
    @needs_promtool
    def test_prometheus_takes_rules_and_configuration(self):
        promtool('check', 'rules', RULES)
        promtool('check', 'config', os.path.join(MONITORING, 'prometheus.yml'))

    @needs_promtool
    def test_each_alert_fires_and_is_silent_as_its_test_says(self):
        promtool('test', 'rules', ALERT_TESTS)

    def test_rules_name_what_exists(self):
        known = known_metrics()
        for rule in rules():
            self.assertEqual(problems(rule['expr'], known), [], rule)

    def test_the_alerts_that_operators_need_are_among_them(self):
        self.assertLessEqual(ALERTS_WANTED, {rule['alert'] for rule in alerts()})

    def test_each_alert_says_how_bad_it_is_and_what_to_do(self):
        runbook = read('docs', 'RUNBOOK.md')
        anchors = check_layers.anchors_of(runbook)
        for rule in alerts():
            name, notes = rule['alert'], rule['annotations']
            self.assertIn(rule['labels']['severity'], ('critical', 'warning', 'info'), name)
            self.assertRegex(rule['for'], r'^\d+[mh]$', name)
            self.assertTrue(notes['summary'], name)
            self.assertIn('$value', notes['description'], name)
            self.assertEqual(notes['runbook_url'], f'docs/RUNBOOK.md#{name.lower()}')
            self.assertIn(name.lower(), anchors)
            section = re.search(rf'^### {name}\n(.*?)(?=^##|\Z)', runbook, re.M | re.S).group(1)
            for part in ('**Means:**', '**First:** `', '**Fix:**'):
                self.assertIn(part, section, name)

    def test_each_alert_has_a_test_in_which_it_fires_and_healthy_series(self):
        tests = yaml.safe_load(read(ALERT_TESTS))['tests']
        fired = {re.search(r'alertname="(\w+)"', sample['labels']).group(1) for test in tests for query in test['promql_expr_test']
                 for sample in query['exp_samples'] if 'alertname' in sample['labels']}
        self.assertEqual(fired, {rule['alert'] for rule in alerts()})
        healthy = {series['series'].split('{')[0] for series in tests[0]['input_series']} | {rule['record'] for rule in rules() if 'record' in rule}
        for rule in alerts():
            self.assertLessEqual(set(metrics_of(rule['expr'])[0]), healthy, rule['alert'])

    def test_no_alert_is_on_the_scrape_of_a_server_alone(self):
        for rule in alerts():
            if 'ems-server' in rule['expr']:
                self.assertIn('ems_controller_nodes', rule['expr'], rule['alert'])


class DashboardsTest(unittest.TestCase):
    def test_they_are_what_their_program_writes(self):
        run = subprocess.run([os.path.join(MONITORING, 'make_dashboards.py'), '--check'], capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual({dashboard['uid'] for dashboard, _ in panels()}, {'ems-cluster', 'ems-namespaces', 'ems-ssd', 'ems-serving'})

    def test_each_panel_has_a_unit_and_selects_its_data_source(self):
        for dashboard, panel in panels():
            self.assertTrue(panel['fieldConfig']['defaults']['unit'], panel['title'])
            self.assertEqual(panel['datasource']['uid'], '${datasource}')
            chosen = {variable['name'] for variable in dashboard['templating']['list']}
            self.assertLessEqual({'datasource', 'cluster', 'instance'}, chosen)
            for target in panel['targets']:
                self.assertLessEqual(set(re.findall(r'\$(\w+)', target['expr'])) - {'__rate_interval'}, chosen, panel['title'])

    def test_queries_and_variables_name_what_exists(self):
        known = known_metrics()
        for dashboard, panel in panels():
            for target in panel['targets']:
                self.assertEqual(problems(target['expr'], known), [], f'{dashboard["title"]}: {panel["title"]}')
            for variable in dashboard['templating']['list'][1:]:
                query, label = re.fullmatch(r'label_values\((.*), (\w+)\)', variable['query']['query']).groups()
                self.assertEqual(problems(f'{query} + sum by ({label}) ({query})', known), [], variable['name'])

    @needs_promtool
    def test_prometheus_parses_each_query(self):
        queries = [re.sub(r'\$__rate_interval', '5m', target['expr']) for _, panel in panels() for target in panel['targets']]
        self.assertGreater(len(queries), 60)
        written = {'groups': [{'name': 'panels', 'rules': [{'record': f'panel:{i}', 'expr': query} for i, query in enumerate(queries)]}]}
        with tempfile.NamedTemporaryFile('w', suffix='.yaml', encoding='utf-8') as file:
            yaml.safe_dump(written, file)
            file.flush()
            promtool('check', 'rules', file.name)


class ComposeTest(unittest.TestCase):
    def test_it_mounts_what_is_here_and_scrapes_what_it_starts(self):
        services = yaml.safe_load(read(MONITORING, 'compose.yaml'))['services']
        for service in services.values():
            for volume in service.get('volumes', ()):
                source = volume.split(':')[0]
                self.assertTrue(not source.startswith('.') or os.path.exists(os.path.join(MONITORING, source)), volume)
        self.assertEqual({service['image'] for name, service in services.items() if name not in ('prometheus', 'grafana')}, {'ems:latest'})
        for path in glob.glob(os.path.join(MONITORING, 'targets', '*.yaml')):
            for group in yaml.safe_load(read(path)):
                self.assertIn('cluster', group['labels'])
                for target in group['targets']:
                    self.assertIn(target.split(':')[0], services)

    def test_grafana_finds_dashboards_where_they_are_mounted(self):
        services = yaml.safe_load(read(MONITORING, 'compose.yaml'))['services']
        provider, = yaml.safe_load(read(MONITORING, 'grafana', 'provisioning', 'dashboards', 'ems.yaml'))['providers']
        self.assertIn(f'./grafana/dashboards:{provider["options"]["path"]}:ro', services['grafana']['volumes'])
        source, = yaml.safe_load(read(MONITORING, 'grafana', 'provisioning', 'datasources', 'prometheus.yaml'))['datasources']
        self.assertEqual(source['url'], 'http://prometheus:9090')


if __name__ == '__main__':
    unittest.main()
