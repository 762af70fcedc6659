"""Charts of the commands of ems-bench that bench/plot.py has no drawing of its own for: figures of a table, row by row.

A chart is a title, what its values are, the rows of the document, a name for each row, the figures to draw by the path of their
fields ('load/p50_ms'), and whether the scale is logarithmic. A figure that a row has not is a gap. With upright lines behind, of a
place and a name each, the rows are on a scale.
"""

COLOURS = ('#0f8a5f', '#2f6fb3', '#d77a1d', '#7b56a5', '#8a949e')
POINTS = {'linestyle': 'none', 'markersize': 7}  # rows that are not on a scale: points, no line between them


def at(row, path):
    for name in path.split('/'):
        if isinstance(row, list):
            row = dict(enumerate(row)).get(int(name))
        else:
            row = row.get(name) if isinstance(row, dict) else None
    return row


def drawn(value, log):
    """A logarithmic scale has no place for zero."""
    return None if log and not value else value


def size(row):
    value = row['value_bytes']
    return f'{value >> 20} MiB' if value >= 1 << 20 else f'{value >> 10} KiB' if value >= 1 << 10 else f'{value} B'


def words(text):
    return text.replace('_', ' ').replace(' ', '\n', 1)


def named(field):
    return lambda row: words(str(row[field]))


def tables(document, *keys):
    """The rows of several tables, each with the name of its table."""
    return [{'table': key, **row} for key in keys for row in document.get(key, [])]


def of_store(document):
    if 'get' in document:  # with --peers
        rows = tables(document, 'get', 'put')
        def place(row):
            return f"{row['table']} {size(row)}\n{row['side']}, {row['callers']}"
        return [('Throughput', 'GB/s', rows, place, {'': 'gb_per_second'}, True), ('Latency', 'us', rows, place, {'p50': 'p50_us', 'p99': 'p99_us'}, True)]
    rows = document['results']
    def place(row):
        return f"{row['section']}\n{size(row)}"
    return [('Throughput', 'GB/s', [row for row in rows if 'gb_per_second' in row], place,
             {'EMS': 'gb_per_second', 'raw socket': 'raw/gb_per_second'}, False),
            ('Latency of a call', 'ms', rows, place,
             {'EMS p50': 'call_latency/p50_ms', 'EMS p99': 'call_latency/p99_ms', 'raw socket p50': 'raw/call_latency/p50_ms'}, True)]


def of_trace(document):
    hits = [{'of': of, 'loaded': at(document, f'hit_rate/loaded_{of}_percent'), 'ideal': at(document, f'hit_rate/ideal_lru_{of}_percent')}
            for of in ('blocks', 'tokens')]
    calls = [{'call': call, **document[call]} for call in ('lookup', 'load', 'save')]
    ttft = [{'side': side.replace('_', ' '), **document['ttft_modelled'][side]} for side in ('with_ems', 'without')]
    return [('Hit rate', '%', hits, named('of'), {'EMS, loaded': 'loaded', 'ideal LRU': 'ideal'}, False),
            ('Calls', 'ms', calls, named('call'), {'p50': 'p50_ms', 'p99': 'p99_ms'}, True),
            ('Modelled TTFT', 'ms', ttft, named('side'), {'mean': 'avg_ms', 'p50': 'p50_ms', 'p99': 'p99_ms'}, False)]


def of_context(document):
    rows = document['workloads']
    return [('Hit rate', '%', rows, named('name'), {'EMS, loaded': 'loaded_blocks_percent', 'ideal LRU': 'ideal_lru_blocks_percent'}, False),
            ('Modelled TTFT', 'ms, mean', rows, named('name'), {'with EMS': 'ttft_cached/avg_ms', 'without': 'ttft_uncached/avg_ms'}, False),
            ('Loading a prefix or computing it', 'ms', document.get('ladder', []), lambda row: str(row['tokens']),
             {'load': 'load_ms', 'compute': 'recompute_ms'}, True)]


def of_control(document):
    return [('A change on its way', 'ms', document['changes'], named('change'), {'view': 'published_ms', 'watchers p99': 'p99_ms', 'all': 'all_ms'}, False),
            ('Bytes that a change sends', 'bytes', document['placement'], lambda row: f"{row['servers']}\nservers",
             {'join': 'join_bytes', 'leave': 'leave_bytes', 'one slot': 'slot_bytes', 'whole view': 'whole_bytes'}, True)]


def of_elastic(document):
    """The hit rate by second of each scenario beside the undisturbed run, upright lines where servers came or went."""
    undisturbed, *runs = document['runs']
    charts = []
    for run in runs:
        rows = [{'second': second, 'quiet': quiet, 'hit': hit}
                for second, (quiet, hit) in enumerate(zip(undisturbed['hit_percent'], run['hit_percent']))]
        every = max(1, len(rows) // 10)
        def place(row, every=every):
            return '' if row['second'] % every else str(row['second'])
        marks = [(change['at_s'] - 0.5, change['change']) for change in document['changes'] if change['scenario'] == run['scenario']]
        charts.append((f"{run['scenario']}: hit rate by second", '% of the blocks', rows, place, {'undisturbed': 'quiet', 'with the change': 'hit'},
                       False, marks))
    return [*charts, ('Gets', 'p99, ms', document['changes'], named('change'), {'undisturbed, same requests': 'quiet_p99_ms', 'with the change': 'get/p99_ms'},
                      True)]


def of_engine(document):
    passes = [{'pass': f"{row['prompt_tokens']}\n{row['cached_tokens']} cached", **row} for row in tables(document, 'prefill', 'reuse')]
    return [('Arithmetic', 'GFLOP/s', document['arithmetic'], named('kernels'),
             {'product': 'product_gflops', 'Eigen': 'eigen_gflops', 'peak': 'peak_gflops'}, False),
            ('Prefill', 'ms', passes, lambda row: row['pass'], {'': 'ms'}, False),
            ('Decode', 'tokens/s', document['decode'], lambda row: f"batch {row['batch']}\n{row['context_tokens']}", {'': 'tokens_per_s'}, False)]


def of_engines(document):
    rows = [{'name': f'{connector}\n{name}', 'value': value} for connector in ('lmcache', 'llama_cpp', 'python')
            for name, value in document.get(connector, {}).items() if isinstance(value, (int, float)) and value > 0]
    times = [row for row in rows if row['name'].endswith(('_us', '_ms', '_s', ' us', ' ms', ' s'))]
    return [('Times', 'as the name says', times, lambda row: row['name'], {'': 'value'}, True),
            ('Rates and shares', 'as the name says', [row for row in rows if row not in times], lambda row: row['name'], {'': 'value'}, True)]


def of_fabric(document):
    return [('Ring', 'GB/s', document['ring'], lambda row: str(row['bytes']), {'ring': 'send_gb_per_s', 'memcpy': 'memcpy_gb_per_s'}, True),
            ('Emulated links, beside their model', 'of the model', document['pace'], named('transfer'),
             {'bandwidth': 'bandwidth_of_model', 'latency': 'latency_of_model'}, False)]


def of_fairness(document):
    rows = document['calls']
    return [(which, 'us', rows, named('call'), {'quiet': f'quiet_{which}_us', 'beside others': f'busy_{which}_us'}, True) for which in ('p50', 'p99')]


def of_hot(document):
    rows = [{**row, 'name': f'{row["copies"]} copies'} for row in document['sides']]
    return [('Readers of one object', 'GB/s', rows, named('name'), {'all readers': 'gbps', 'limit of one server': 'limit_gbps'}, False),
            ('A read', 'ms', rows, named('name'), {name: f'{name}_ms' for name in ('p50', 'p99')}, False)]


def of_memory(document):
    rows = document['results']
    return [('Memory that holds values', 'share', rows, named('scenario'), {'mean': 'efficiency/mean', 'least': 'efficiency/min'}, False),
            ('Reserve and publish', 'us', rows, named('scenario'), {name: f'reserve_and_publish/{name}_us' for name in ('p50', 'p99', 'p999')}, True),
            ('Hit rate', 'share', rows, named('scenario'), {'EMS': 'hit_rate', 'ideal': 'ideal_hit_rate'}, False)]


def of_model(document):
    rows = document['strategies']
    return [('Cold start', 's', rows, named('strategy'), {'': 'cold_seconds'}, False),
            ('Warm load', 's', rows, named('strategy'), {'p50': 'warm_p50_seconds', 'p99': 'warm_p99_seconds'}, False),
            ('Mean switch', 's', rows, named('strategy'), {'': 'switch_mean_seconds'}, False)]


def of_serve(document):
    rows = [{'phase': phase['name'].replace(', ', '\n'), **{side['side']: side for side in phase['sides']}} for phase in document['phases']]
    sides = [side['side'] for side in document['phases'][0]['sides']]
    spread = {f'{side}, {which}': f'{side}/ttft/{which}_ms' for side in sides for which in ('p50', 'p75')}
    return [('TTFT', 'ms, mean', rows, named('phase'), {side: f'{side}/ttft/avg_ms' for side in sides}, False),
            ('TTFT, spread', 'ms', rows, named('phase'), spread, False),
            ('From the cache', 'share of the prompts', rows, named('phase'), {side: f'{side}/cached_share' for side in sides}, False)]


def of_ssd(document):
    lanes, restarts = document.get('lanes', []), tables(document, 'restarts', 'server_restarts')
    for row in restarts:
        row['took'] = row.get('ready_seconds') or sorted(row['seconds'])[len(row['seconds']) // 2]
    puts = [{'put': f'{kind}\n{size(row)}', **row[kind]} for row in document.get('puts', []) for kind in ('new_keys', 'overwrites')]
    return [('Throughput, first round', 'GB/s', lanes, named('name'), {'EMS': 'ems/0/gb_per_second', 'fio': 'fio/0/gb_per_second'}, False),
            ('Restart', 's', restarts, named('name'), {'': 'took'}, False),
            ('Put, p99', 'ms', puts, named('put'), {'with the tier': 'tier/p99_ms', 'DRAM alone': 'dram/p99_ms'}, True)]


COMMANDS = {'context': of_context, 'control': of_control, 'elastic': of_elastic, 'engine': of_engine, 'engines': of_engines, 'fabric': of_fabric, 'fairness': of_fairness,
            'hot': of_hot, 'memory': of_memory, 'model': of_model, 'serve': of_serve, 'ssd': of_ssd, 'store': of_store, 'trace': of_trace}


def ran_on(document):
    run = document.get('run', {})
    return f"\n{run['cpu']}, {run['cores']} cores, EMS {run['version']} {run['commit']}, {run['date']}" if run else ''


def panels_of(document, panel):
    """Title and panels; `panel` makes one. SystemExit: a command that has no plot, or none of the figures for it."""
    command = document.get('command')
    if command not in COMMANDS:
        raise SystemExit(f"plot.py draws what ems-bench {', '.join(sorted([*COMMANDS, 'local', 'paper']))} write, not {command}")
    panels = []
    for title, y_label, rows, place, figures, log, *marks in COMMANDS[command](document):
        if rows:
            lines = [(name or title, colour, {} if marks else POINTS, [drawn(at(row, path), log) for row in rows])
                     for (name, path), colour in zip(figures.items(), COLOURS)]
            panels.append(panel(title, '', y_label, [place(row) for row in rows], lines, log=log, marks=marks[0] if marks else ()))
    if not panels:
        raise SystemExit(f'there are no figures of ems-bench {command} in it')
    return f'ems-bench {command}{ran_on(document)}', panels
