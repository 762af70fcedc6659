#!/usr/bin/python3
"""What must hold of bench/plot.py: each size and reuse rate has its place, each side its line, a figure that is missing is a gap,
and what has no plot is refused by name. Drawing itself needs matplotlib, which is optional."""
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
PLOT = os.path.join(ROOT, 'bench', 'plot.py')
CHARTS = ('peers', 'ttft')
sys.path.insert(0, os.path.dirname(PLOT))
import plot  # pylint: disable=wrong-import-position


def read(*path):
    with open(os.path.join(ROOT, *path), encoding='utf-8') as file:
        return file.read()


def chart(name):
    return json.loads(read('docs', 'figures', f'{name}.json'))


def lane(side, operation, size, threads=1, **figures):
    return {'side': side, 'operation': operation, 'value_bytes': size, 'threads': threads, **figures}


LOCAL = {'command': 'local', 'settings': {'working_set_bytes': 1 << 30, 'rounds': 7}, 'lanes': [
    lane('EMS', 'Get', 1 << 20, gb_per_second=9.5, p50_us=100), lane('EMS', 'Get', 4096, gb_per_second=4, p50_us=1.2),
    lane('EMS', 'Get', 4096, threads=2, gb_per_second=99, p50_us=99), lane('EMS', 'GetView', 4096, gb_per_second=0, p50_us=0.4),
    lane('redis unix', 'Get', 1 << 20, gb_per_second=3, p50_us=300)]}
PAPER = {'command': 'paper', 'rows': [{'id': 'fig23_ttft_none_ms', 'paper': 2542}, {'id': 'fig23_90', 'paper': 2.28},
                                      {'id': 'fig23_ttft_50_ms', 'paper': 861}, {'id': 'fig23_ttft_90_ms', 'paper': 1505}],
         'fig23': [{'reuse': reuse, 'ub': {'throughput': 1 + reuse, 'ttft_ms': 2500 - reuse},
                    'vpc': {'throughput': 1, 'ttft_ms': 2500}} for reuse in (0, 0.125, 0.5, 0.9)]}


class PlotTest(unittest.TestCase):
    def test_local_has_a_place_a_size_and_a_figure_where_there_is_one(self):
        title, (speed, latency) = plot.panels_of(LOCAL)
        self.assertIn('working set 1 GiB, medians of 7 rounds', title)
        self.assertEqual(speed['places'], ['4 KiB', '1 MiB'])
        self.assertTrue(latency['log'] and not speed['log'])
        values = {name: figures for name, _, _, figures in speed['lines']}
        self.assertEqual(len(values), 8)
        self.assertEqual(values['EMS Get'], [4, 9.5], 'of one caller')
        self.assertEqual(values['redis, Unix'], [None, 3])
        self.assertEqual(values['EMS GetView, in place'], [None, None], 'copies nothing')
        self.assertEqual(dict((line[0], line[3]) for line in latency['lines'])['EMS GetView, in place'], [0.4, None])

    def test_paper_has_ours_at_each_rate_and_the_points_of_the_text(self):
        _, (throughput, ttft) = plot.panels_of(PAPER)
        self.assertEqual(throughput['places'], ['0', '12.5', '50', '90'])
        self.assertEqual([line[3] for line in throughput['lines']], [[1, 1.125, 1.5, 1.9], [1] * 4, [1, None, None, 2.28]])
        self.assertEqual(ttft['lines'][2][3], [2542, None, 2542 - 861, 2542 - 1505])

    def test_bars_have_a_value_a_place_and_one_reference_line(self):
        _, (get, put) = plot.panels_of(chart('peers'))
        self.assertEqual([line[0] for line in get['lines']], ['1 caller', '2 callers', '8 callers', 'the faster of Redis and memcached'])
        self.assertEqual([len(line[3]) for line in put['lines']], [len(put['places'])] * 3 + [1])
        _, (ttft,) = plot.panels_of(chart('ttft'))
        self.assertEqual([line[3] for line in ttft['lines']], [[529.8, 642.0, 60.0]])

    def test_charts_of_readme_show_figures_that_the_documents_report(self):
        rows = {cells[1].strip(): cells[2:5] for cells in (line.split('|') for line in read('docs', 'BENCHMARKS.md').split('\n'))
                if len(cells) == 6}
        for panel in chart('peers')['panels']:
            reported = rows[f"{panel['title']} {', '.join(panel['places'])}"]
            self.assertEqual([[float(value) for value in cell.split(',')] for cell in reported], [one['values'] for one in panel['series']])
        reported = re.findall(r'^with.*? ([\d.]+) ms', read('docs', 'engines', 'LLAMA_CPP.md'), re.M)
        self.assertEqual([float(value) for value in reported], chart('ttft')['panels'][0]['series'][0]['values'])

    def test_drawn_charts_are_those_of_their_figures(self):
        for name in CHARTS:
            figures, drawn = chart(name), re.findall(r'>([\d.]+)</text>', read('docs', 'figures', f'{name}.svg'))
            shown = [figures['format'] % value for panel in figures['panels'] for one in panel['series'] for value in one['values']]
            self.assertFalse([text for text in set(shown) if drawn.count(text) < shown.count(text)],
                             f'bench/plot.py docs/figures/{name}.json docs/figures/{name}.svg')

    def test_what_has_no_plot_is_refused_by_name(self):
        with self.assertRaisesRegex(SystemExit, 'not flowers'):
            plot.panels_of({'command': 'flowers'})
        self.assertIn('plot.py FIGURES.json', subprocess.run([PLOT], capture_output=True, text=True, check=False).stderr)

    @unittest.skipUnless(importlib.util.find_spec('matplotlib'), 'matplotlib is not installed')
    def test_draws_what_there_is(self):
        with tempfile.TemporaryDirectory() as folder:
            for figures in (LOCAL, PAPER, *map(chart, CHARTS)):
                path = os.path.join(folder, figures['command'] + '.svg')
                plot.draw(*plot.panels_of(figures), path)
                with open(path, encoding='utf-8') as file:
                    self.assertIn('</svg>', file.read())


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0]] + sys.argv[1:])
