#!/usr/bin/env python3
"""Writes the Grafana dashboards of EMS, or says which of them are not what this program would write.

    deploy/monitoring/make_dashboards.py            writes grafana/dashboards/*.json beside this file
    deploy/monitoring/make_dashboards.py --check    writes nothing; exit code 1: a file differs

A panel is one line below. In its queries `{}` stands for what the variables of the dashboard select, and `{},` begins a longer list of labels.
"""
import json
import os
import sys

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'grafana', 'dashboards')
SOURCE = {'type': 'prometheus', 'uid': '${datasource}'}
COLUMNS, HEIGHT = 24, 8
# Variable → the metric whose label of this name it lists
VARIABLES = {'cluster': 'ems_server_view_epoch', 'instance': 'process_start_time_seconds{cluster=~"$cluster"}',
             'namespace': 'ems_server_objects{cluster=~"$cluster"}'}


def graph(title, unit, *queries, stack=False):
    """A panel over time. Queries: (PromQL, legend)."""
    custom = {'fillOpacity': 20 if stack else 5, 'stacking': {'mode': 'normal' if stack else 'none'}}
    return {'type': 'timeseries', 'title': title, 'queries': queries, 'width': 12,
            'fieldConfig': {'defaults': {'unit': unit, 'min': 0, 'custom': custom}, 'overrides': []},
            'options': {'legend': {'displayMode': 'list', 'placement': 'bottom'}, 'tooltip': {'mode': 'multi'}}}


def stat(title, unit, query, bad_from=None):
    """One number, red from `bad_from` on."""
    steps = [{'color': 'green', 'value': None}] + ([] if bad_from is None else [{'color': 'red', 'value': bad_from}])
    return {'type': 'stat', 'title': title, 'queries': ((query, ''),), 'width': 4,
            'fieldConfig': {'defaults': {'unit': unit, 'thresholds': {'mode': 'absolute', 'steps': steps}}, 'overrides': []},
            'options': {'reduceOptions': {'calcs': ['lastNotNull']}}}


def each(name, *by):
    """How fast a counter grows, summed by labels."""
    return f'sum by ({", ".join(by)}) (rate({name}{{}}[$__rate_interval]))'


def quantiles(title, name, *by, where=''):
    """Median and 99th percentile of a histogram. `where`: further labels."""
    legend = ''.join(' {{%s}}' % label for label in by)
    inner = f'sum by ({", ".join(("le", *by))}) (rate({name}_bucket{{}}[$__rate_interval]))'.replace('{}', '{{}%s}' % where)
    return graph(title, 's', *((f'histogram_quantile({q}, {inner})', f'p{round(100 * q)}{legend}') for q in (0.5, 0.99)))


# Title, file, variables, panels
DASHBOARDS = (
    ('EMS: cluster', 'cluster', ('cluster', 'instance'), (
        stat('Servers live', 'none', 'sum(ems_controller_nodes{cluster=~"$cluster",state="live"})'),
        stat('Servers down', 'none', 'sum(ems_controller_nodes{cluster=~"$cluster",state="down"})', 1),
        stat('Servers parked', 'none', 'sum(ems_controller_nodes{cluster=~"$cluster",state="ahead"})', 1),
        stat('View frozen', 'none', 'max(ems_controller_view_frozen{cluster=~"$cluster"})', 1),
        stat('Servers without a lease', 'none', 'count(ems_server_lease_valid{cluster=~"$cluster"} == 0) or vector(0)', 1),
        stat('Alerts firing', 'none', 'count(ALERTS{alertstate="firing",cluster=~"$cluster"}) or vector(0)', 1),
        graph('Servers by state', 'none', ('sum by (state) (ems_controller_nodes{cluster=~"$cluster"})', '{{state}}'), stack=True),
        graph('Hit rate', 'percentunit',
              ('sum by (cluster) (rate(ems_server_lookups_total{cluster=~"$cluster",op="get",result="hit"}[$__rate_interval])) / '
               'sum by (cluster) (rate(ems_server_lookups_total{cluster=~"$cluster",op="get"}[$__rate_interval]))', '{{cluster}}')),
        graph('Pool in use', 'bytes', ('ems_server_pool_used_bytes{}', '{{instance}}'), stack=True),
        graph('Pool', 'bytes', ('ems_server_pool_bytes{}', '{{instance}}'), stack=True),
        graph('Values sent', 'Bps', (each('ems_server_sent_bytes_total', 'instance'), '{{instance}}'), stack=True),
        graph('Values received', 'Bps', (each('ems_server_received_bytes_total', 'instance'), '{{instance}}'), stack=True),
        graph('Slots owned', 'none', ('ems_server_owned_slots{}', '{{instance}}')),
        graph('Epoch of the view', 'none', ('ems_server_view_epoch{}', '{{instance}}'),
              ('ems_controller_epoch{cluster=~"$cluster"}', 'controller')),
        graph('Slots moved', 'none', ('increase(ems_controller_slots_moved_total{cluster=~"$cluster"}[$__rate_interval])', '{{cluster}}')),
        graph('Drains', 'none', ('ems_controller_draining_slots{cluster=~"$cluster"}', 'slots to go'),
              ('ems_controller_draining_nodes{cluster=~"$cluster"}', 'servers being drained'),
              ('increase(ems_controller_drains_total{cluster=~"$cluster",what!="begun"}[$__rate_interval])', '{{what}}')),
        graph('Heartbeats', 'ops', (each('ems_server_heartbeats_total', 'result'), '{{result}}')),
        graph('CPU', 'none', (each('process_cpu_seconds_total', 'job', 'instance'), '{{job}} {{instance}}')),
        graph('Resident memory', 'bytes', ('process_resident_memory_bytes{}', '{{job}} {{instance}}')),
        graph("Free where the controller's data_dir lies", 'bytes',
              ('ems_controller_disk_free_bytes{cluster=~"$cluster"}', '{{cluster}}')),
        graph('Versions', 'none', ('count by (version, commit) (ems_build_info{cluster=~"$cluster"})', '{{version}} {{commit}}'), stack=True),
    )),
    ('EMS: namespaces', 'namespaces', ('cluster', 'instance', 'namespace'), (
        graph('Hit rate', 'percentunit', ('namespace:ems_hit_ratio:rate5m{cluster=~"$cluster",namespace=~"$namespace"}', '{{namespace}}')),
        graph('Gets', 'ops', ('namespace:ems_lookups:rate5m{cluster=~"$cluster",namespace=~"$namespace"}', '{{namespace}}'), stack=True),
        graph('Gets by result and path', 'ops',
              (each('ems_server_lookups_total', 'result', 'path').replace('{}', '{{},op="get"}'), '{{result}} {{path}}'), stack=True),
        graph('Values read', 'Bps', (each('ems_server_lookup_bytes_total', 'namespace', 'path'), '{{namespace}} {{path}}'), stack=True),
        graph('Values in DRAM', 'bytes', ('sum by (namespace) (ems_server_value_bytes{})', '{{namespace}}'), stack=True),
        graph('DRAM quota', 'bytes', ('sum by (namespace) (ems_server_quota_bytes{})', '{{namespace}}')),
        graph('DRAM in segments', 'bytes', ('sum by (namespace) (ems_server_segment_bytes{})', '{{namespace}}'), stack=True),
        graph('Objects in DRAM', 'none', ('sum by (namespace) (ems_server_objects{})', '{{namespace}}'), stack=True),
        graph('Evicted', 'Bps', ('namespace:ems_evicted_bytes:rate5m{cluster=~"$cluster",namespace=~"$namespace"}', '{{namespace}}')),
        graph('Unused before it was evicted', 's', ('min by (namespace) (ems_server_eviction_age_seconds{})', '{{namespace}}')),
        graph('Evicted for too many objects', 'ops', (each('ems_server_count_evictions_total', 'namespace'), '{{namespace}}')),
        graph('Held by clients after eviction', 'bytes', ('sum by (namespace) (ems_server_retired_bytes{})', '{{namespace}}')),
        graph('Damaged objects dropped', 'none',
              ('sum by (namespace, instance) (increase(ems_server_damaged_objects_total{}[$__rate_interval]))', '{{namespace}} {{instance}}')),
        graph('Objects without a place in the shared index', 'ops',
              (each('ems_server_shared_index_left_out_total', 'namespace'), '{{namespace}}')),
    )),
    ('EMS: SSD tier', 'ssd', ('cluster', 'instance'), (
        graph('State (1 ok, 2 degraded, 3 offline)', 'none', ('ems_server_ssd_state{}', '{{instance}}')),
        graph('Disk: taken and free', 'bytes', ('ems_server_ssd_disk_bytes{}', 'taken {{instance}}'),
              ('ems_server_ssd_capacity_bytes{}', 'may take {{instance}}'), ('ems_server_ssd_free_bytes{}', 'free {{instance}}')),
        graph('Values stored', 'bytes', ('ems_server_ssd_value_bytes{}', '{{instance}}'), stack=True),
        graph('Objects stored', 'none', ('ems_server_ssd_objects{}', '{{instance}}'), stack=True),
        graph('Values written', 'Bps', (each('ems_server_ssd_written_bytes_total', 'instance'), '{{instance}}'), stack=True),
        graph('Values read', 'Bps', (each('ems_server_ssd_read_bytes_total', 'instance'), '{{instance}}'), stack=True),
        graph('Hits', 'ops', (each('ems_server_ssd_hits_total', 'instance'), '{{instance}}'), stack=True),
        graph('Bytes to the disk for one of values', 'none',
              (f'{each("ems_server_ssd_log_bytes_total", "instance")} / {each("ems_server_ssd_written_bytes_total", "instance")}', '{{instance}}')),
        graph('Waits to be written', 'bytes', ('ems_server_ssd_dirty_bytes{}', 'dirty {{instance}}'),
              ('ems_server_ssd_held_back_bytes{}', 'overwritten {{instance}}')),
        graph('Objects that stayed in DRAM alone', 'ops', (each('ems_server_ssd_shed_objects_total', 'instance'), 'not ready {{instance}}'),
              (each('ems_server_ssd_refused_small_objects_total', 'instance'), 'too small {{instance}}')),
        graph('Regions reclaimed', 'ops', (each('ems_server_ssd_reclaimed_regions_total', 'instance'), '{{instance}}')),
        graph('Objects of reclaimed regions', 'ops', (each('ems_server_ssd_reclaimed_objects_total', 'instance'), 'lost {{instance}}'),
              (each('ems_server_ssd_moved_objects_total', 'instance'), 'kept {{instance}}')),
        graph('Failures', 'ops', (each('ems_server_ssd_failed_objects_total', 'instance'), 'writes {{instance}}'),
              (each('ems_server_ssd_reads_failed_total', 'instance'), 'reads {{instance}}'),
              (each('ems_server_ssd_reads_refused_total', 'instance'), 'reads refused {{instance}}'),
              (each('ems_server_ssd_dropped_damaged_total', 'instance'), 'damaged {{instance}}')),
        graph('Memory of the index', 'bytes', ('ems_server_ssd_index_memory_bytes{}', 'takes {{instance}}'),
              ('ems_server_ssd_index_memory_bytes_max{}', 'may take {{instance}}')),
        graph('Scrubbed', 'Bps', (each('ems_server_ssd_scrubbed_bytes_total', 'instance'), '{{instance}}')),
        quantiles('Requests that the SSD answered', 'ems_server_request_seconds', 'op', where=',tier="ssd"'),
    )),
    ('EMS: serving', 'serving', ('cluster', 'instance'), (
        graph('Requests', 'ops', ('op_tier:ems_requests:rate5m{cluster=~"$cluster"}', '{{op}} {{tier}}'), stack=True),
        graph('Answers that are neither hit nor miss', 'ops',
              (each('ems_server_answers_total', 'op', 'status').replace('{}', '{{},status!~"ok|miss"}'), '{{op}} {{status}}')),
        graph('Median', 's', ('op_tier:ems_request_seconds:p50{cluster=~"$cluster"}', '{{op}} {{tier}}')),
        graph('99th percentile', 's', ('op_tier:ems_request_seconds:p99{cluster=~"$cluster"}', '{{op}} {{tier}}')),
        quantiles('By server', 'ems_server_request_seconds', 'instance'),
        quantiles('By transport', 'ems_server_request_seconds', 'transport'),
        graph('Connections', 'none', ('ems_server_connections{}', '{{instance}}'), ('ems_server_shm_sessions{}', 'shared memory {{instance}}')),
        graph('Refused or held back', 'ops', (each('ems_server_connections_refused_total', 'instance'), 'connections {{instance}}'),
              (each('ems_server_puts_held_back_total', 'instance'), 'Puts {{instance}}'),
              (each('ems_server_reads_held_back_total', 'instance'), 'reads {{instance}}'),
              (each('ems_server_pool_refused_total', 'instance'), 'memory {{instance}}')),
        quantiles('Time to the first token (ems-pdc)', 'ems_pdc_time_to_first_token_seconds'),
        quantiles('Time between tokens (ems-pdc)', 'ems_pdc_inter_token_latency_seconds'),
        graph('Prompt tokens from the cache (ems-pdc)', 'percentunit',
              (f'{each("ems_pdc_prefix_cache_hits_total", "instance")} / {each("ems_pdc_prefix_cache_queries_total", "instance")}', '{{instance}}')),
        graph('Requests (ems-pdc)', 'none', ('sum(ems_pdc_num_requests_running{})', 'running'), ('sum(ems_pdc_num_requests_waiting{})', 'waiting')),
        graph('Tokens (ems-pdc)', 'ops', (each('ems_pdc_prompt_tokens_total', 'instance'), 'prompt {{instance}}'),
              (each('ems_pdc_generation_tokens_total', 'instance'), 'generated {{instance}}')),
        graph('Ended requests (ems-pdc)', 'ops', (each('ems_pdc_request_success_total', 'finished_reason'), '{{finished_reason}}')),
    )),
)


def expression(query, variables):
    """`{}` and `{{},…}` filled in."""
    labels = ','.join(f'{name}=~"${name}"' for name in variables)
    return query.replace('{{}', '{' + labels).replace('{}', '{' + labels + '}')


def placed(panels, variables):
    """With ids, queries and places: from left to right, rows of HEIGHT."""
    x = y = 0
    for number, panel in enumerate(panels, 1):
        if x + panel['width'] > COLUMNS:
            x, y = 0, y + HEIGHT
        targets = [{'refId': chr(ord('A') + i), 'expr': expression(query, variables), 'legendFormat': legend, 'datasource': SOURCE}
                   for i, (query, legend) in enumerate(panel['queries'])]
        yield {'id': number, 'datasource': SOURCE, 'gridPos': {'x': x, 'y': y, 'w': panel['width'], 'h': HEIGHT}, 'targets': targets,
               **{key: panel[key] for key in ('type', 'title', 'fieldConfig', 'options')}}
        x += panel['width']


def variable(name):
    query = f'label_values({VARIABLES[name]}, {name})'
    return {'name': name, 'type': 'query', 'datasource': SOURCE, 'query': {'query': query, 'refId': name}, 'refresh': 2, 'sort': 1,
            'multi': True, 'includeAll': True, 'allValue': '.*', 'current': {'text': 'All', 'value': '$__all'}}


def dashboard(title, file, variables, panels):
    source = {'name': 'datasource', 'type': 'datasource', 'query': 'prometheus', 'label': 'Data source'}
    return {'title': title, 'uid': 'ems-' + file, 'tags': ['ems'], 'schemaVersion': 39, 'editable': True, 'refresh': '30s',
            'time': {'from': 'now-6h', 'to': 'now'}, 'templating': {'list': [source, *map(variable, variables)]},
            'panels': list(placed(panels, variables))}


def main():
    check = sys.argv[1:] == ['--check']
    if sys.argv[1:] and not check:
        print(__doc__, file=sys.stderr)
        return 2
    os.makedirs(FOLDER, exist_ok=True)
    old = 0
    for title, file, variables, panels in DASHBOARDS:
        path = os.path.join(FOLDER, file + '.json')
        text = json.dumps(dashboard(title, file, variables, panels), indent=1) + '\n'
        try:
            with open(path, encoding='utf-8') as stored:
                same = stored.read() == text
        except FileNotFoundError:
            same = False
        if same:
            continue
        if check:
            print(f'{path} is not what deploy/monitoring/make_dashboards.py writes')
            old += 1
        else:
            with open(path, 'w', encoding='utf-8') as out:
                out.write(text)
    return 1 if old else 0


if __name__ == '__main__':
    sys.exit(main())
