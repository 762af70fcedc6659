#!/usr/bin/python3
"""Draws what `ems-bench local --json` or `ems-bench paper --json` has written: plot.py FIGURES.json PLOT.svg (or .png, .pdf).

local: GB/s and p50 by value size, one caller: EMS, memcpy, redis and memcached. paper: Fig. 23a and 23b of CM, ours over UB and
over VPC, beside the points that the paper's text names. bars: the charts of README, from docs/figures/*.json. Plots have no background
and grey text, which is readable on light and dark pages. Needs matplotlib (Debian: python3-matplotlib), which nothing else does.
"""
import json
import sys

import plot_commands

GREY, BLUE, LIGHT, VIOLET, RED, GREEN, ORANGE = '#6e7781', '#0969da', '#54aeff', '#8250df', '#cf222e', '#1a7f37', '#bf5700'
BOLD, DASHED = {'linewidth': 3}, {'linestyle': '--'}
LOCAL_LINES = (  # name, side, operation, colour, style
    ('memcpy', 'memcpy', 'Get', GREY, DASHED),
    ('EMS Get', 'EMS', 'Get', BLUE, BOLD),
    ('EMS Get, checksum verified', 'EMS', 'GetChecked', LIGHT, BOLD),
    ('EMS GetView, in place', 'EMS', 'GetView', VIOLET, BOLD),
    ('redis, Unix', 'redis unix', 'Get', RED, {}),
    ('redis, TCP', 'redis tcp', 'Get', RED, DASHED),
    ('memcached, Unix', 'memcached unix', 'Get', GREEN, {}),
    ('memcached, TCP', 'memcached tcp', 'Get', GREEN, DASHED))


def size_text(size):
    for unit, name in ((1 << 30, 'GiB'), (1 << 20, 'MiB'), (1 << 10, 'KiB')):
        if size >= unit:
            return f'{size / unit:g} {name}'
    return f'{size} B'


def panel(title, x_label, y_label, places, lines, log=False, bars=None, marks=()):
    """`lines`: name, colour, style, and a value or None for each place. `bars`: draw bars, each with its value in this format.
    `marks`: upright lines, each with its place, fractions included, and its name."""
    return {'title': title, 'x_label': x_label, 'y_label': y_label, 'places': places, 'lines': lines, 'log': log, 'bars': bars, 'marks': marks}


def local_panels(figures):
    measured = {(row['side'], row['operation'], row['value_bytes']): row for row in figures['lanes'] if row['threads'] == 1}
    sizes = sorted({row['value_bytes'] for row in figures['lanes']})

    def lines(field):  # 0: nothing of the kind, such as the GB/s of a view
        return [(name, colour, style, [measured.get((side, operation, size), {}).get(field) or None for size in sizes])
                for name, side, operation, colour, style in LOCAL_LINES]
    places = [size_text(size) for size in sizes]
    return [panel('Reading: throughput', 'value size', 'GB/s', places, lines('gb_per_second')),
            panel('Reading: median latency', 'value size', 'p50, microseconds (logarithmic)', places, lines('p50_us'), log=True)]


def paper_panels(figures):
    points = figures['fig23']
    paper = {row['id']: row['paper'] for row in figures['rows']}
    none = paper['fig23_ttft_none_ms']
    text = {0: (1, none), 0.5: (None, none - paper['fig23_ttft_50_ms']), 0.9: (paper['fig23_90'], none - paper['fig23_ttft_90_ms'])}
    panels = []
    for number, (title, y_label, field) in enumerate((('Fig. 23a: prefill throughput', 'over no EMS', 'throughput'),
                                                      ('Fig. 23b: TTFT', 'ms', 'ttft_ms'))):
        lines = [('EMS over UB', BLUE, BOLD, [point['ub'][field] for point in points]),
                 ('EMS over VPC', ORANGE, {}, [point['vpc'][field] for point in points]),
                 ("paper's text, UB", GREY, DASHED, [text.get(point['reuse'], (None, None))[number] for point in points])]
        panels.append(panel(title, 'reuse rate, %', y_label, [f'{100 * point["reuse"]:g}' for point in points], lines))
    return panels


def bar_panels(figures):
    panels = []
    for one in figures['panels']:
        lines = [(series['name'], colour, {}, series['values']) for series, colour in zip(one['series'], (GREEN, BLUE, VIOLET))]
        if 'reference' in figures:  # the first value is that of the whole line
            lines.append((figures['reference']['name'], RED, DASHED, [figures['reference']['value']]))
        panels.append(panel(one['title'], one['x_label'], one['y_label'], one['places'], lines, bars=figures['format']))
    return panels


def panels_of(figures):
    """Title and panels of what a command has written. SystemExit: a command that has no plot."""
    if figures.get('command') not in ('local', 'paper', 'bars'):
        return plot_commands.panels_of(figures, panel)
    if figures.get('command') == 'local':
        settings = figures['settings']
        return ("Reading a value on the server's host\n"
                f'One caller, working set {size_text(settings["working_set_bytes"])}, medians of {settings["rounds"]} rounds that '
                'alternate in one run. EMS keeps a checksum of each value, the peers keep none.'), local_panels(figures)
    if figures.get('command') == 'paper':
        return ('Context caching in prefill, DeepSeek-R1 on CloudMatrix384\n'
                'cost model in virtual time; 4K prompts, 16K tokens an NPU'), paper_panels(figures)
    if figures.get('command') == 'bars':
        return figures['title'], bar_panels(figures)
    raise SystemExit(f'plot.py draws what ems-bench local and paper write, not {figures.get("command")}')


def draw_lines(axes, one):
    for name, colour, style, values in one['lines']:
        if any(value is not None for value in values):  # a place without a figure is a gap in the line
            axes.plot([float('nan') if value is None else value for value in values], marker='o', color=colour, label=name, **style)


def draw_bars(axes, one):
    series = [line for line in one['lines'] if not line[2]]
    width = 0.84 / max(len(series), 2)
    for number, (name, colour, _, values) in enumerate(series):
        centres = [place + (number - (len(series) - 1) / 2) * width for place in range(len(values))]
        bars = axes.bar(centres, values, 0.92 * width, color=colour, label=name)
        axes.bar_label(bars, labels=[one['bars'] % value for value in values], label_type='center', color='white', fontsize=8)
    for name, colour, style, values in one['lines']:
        if style:
            axes.axhline(values[0], color=colour, label=name, **style)


def draw(title, panels, path):
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use('Agg')
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
    # The same figures give the same file; texts stay texts.
    pyplot.rcParams.update({'svg.fonttype': 'none', 'svg.hashsalt': 'ems', 'savefig.transparent': True, 'legend.labelcolor': GREY} |
                           {key: GREY for key in ('text.color', 'axes.labelcolor', 'axes.edgecolor', 'xtick.color', 'ytick.color')})
    size = (6.2 * len(panels), 5.6) if not panels[0]['bars'] else (5 * max(len(panels), 1.6), 3.9)
    figure, rows = pyplot.subplots(1, len(panels), figsize=size, squeeze=False)
    for axes, one in zip(rows[0], panels):
        (draw_bars if one['bars'] else draw_lines)(axes, one)
        for place, name in one['marks']:
            axes.axvline(place, color=GREY, linestyle=':')
            axes.text(place, 0, f' {name}', rotation=90, verticalalignment='bottom', fontsize=8)
        axes.set(title=one['title'], xlabel=one['x_label'], ylabel=one['y_label'], yscale='log' if one['log'] else 'linear')
        axes.set_xticks(range(len(one['places'])), one['places'])
        if not one['log']:
            axes.set_ylim(bottom=0)
        axes.set_axisbelow(True)
        axes.grid(axis='y', color=GREY, alpha=0.25)
    figure.suptitle(title, fontsize=11 if not panels[0]['bars'] else 9)
    handles = rows[0][-1].get_legend_handles_labels()
    if len(handles[0]) > 1:
        figure.legend(*handles, loc='lower center', ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.1 if len(handles[0]) > 1 else 0, 1, 1))
    figure.savefig(path, metadata={'Date': None} if path.endswith('.svg') else None)


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with open(sys.argv[1], encoding='utf-8') as file:
        title, panels = panels_of(json.load(file))
    try:
        draw(title, panels, sys.argv[2])
    except ImportError as error:
        raise SystemExit(f'plot.py needs matplotlib (Debian: apt-get install python3-matplotlib): {error}') from error


if __name__ == '__main__':
    main()
