#!/usr/bin/python3
"""What must hold of bench/plot_commands.py: each command of ems-bench has a plot, what a quick run of it wrote is drawn, and figures
are those of their rows. tests/bench/plot/ has such documents, the first rows of each table. Drawing needs matplotlib."""
import importlib.util
import json
import os
import re
import sys
import tempfile
import unittest

TESTS = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.join(TESTS, '..', '..', 'bench')
sys.path.insert(0, BENCH)
import plot  # pylint: disable=wrong-import-position
import plot_commands  # pylint: disable=wrong-import-position


def recorded(command):
    with open(os.path.join(TESTS, 'plot', f'{command}.json'), encoding='utf-8') as file:
        return json.load(file)


class PlotCommandsTest(unittest.TestCase):
    def test_each_command_of_ems_bench_has_a_plot(self):
        with open(os.path.join(BENCH, 'main.cc'), encoding='utf-8') as file:
            commands = {name.lower() for name in re.findall(r'Add(\w+)Command\(', file.read())}
        self.assertEqual(commands, {*plot_commands.COMMANDS, 'local', 'paper'})

    def test_what_each_command_has_recorded_has_panels(self):
        for command in plot_commands.COMMANDS:
            title, panels = plot.panels_of(recorded(command))
            self.assertTrue(title.startswith(f'ems-bench {command}'))
            self.assertGreaterEqual(len(panels), 2, command)
            for panel in panels:
                for name, _, _, values in panel['lines']:
                    self.assertEqual(len(values), len(panel['places']), (command, panel['title'], name))
                self.assertTrue(any(value is not None for _, _, _, values in panel['lines'] for value in values), (command, panel['title']))

    def test_figures_come_from_the_rows_that_have_them(self):
        figures = recorded('trace')
        title, (hits, calls, _) = plot.panels_of(figures)
        self.assertIn('a CPU, 2 cores, EMS 0.1.0 0123456789ab, 2026-01-02', title)
        self.assertEqual(hits['lines'][0][3], [figures['hit_rate'][f'loaded_{of}_percent'] for of in ('blocks', 'tokens')])
        self.assertEqual(calls['lines'][1][3], [figures[call]['p99_ms'] for call in ('lookup', 'load', 'save')])
        _, (throughput, _) = plot.panels_of(recorded('store'))
        self.assertEqual(throughput['places'], ['Store\n4 KiB', 'Load\n4 KiB'])

    def test_the_hit_rate_of_a_scenario_stands_beside_the_undisturbed_one(self):
        figures = recorded('elastic')
        _, (join, _) = plot.panels_of(figures)
        undisturbed, run = figures['runs']
        self.assertEqual([line[3] for line in join['lines']], [undisturbed['hit_percent'][:len(run['hit_percent'])], run['hit_percent']])
        self.assertEqual(join['marks'], [(figures['changes'][0]['at_s'] - 0.5, 'join')])

    def test_peers_are_drawn_and_a_document_without_figures_is_refused(self):
        row = {'value_bytes': 4096, 'callers': 2, 'side': 'EMS', 'gb_per_second': 1.5, 'p50_us': 20}
        _, (throughput, latency) = plot.panels_of({'command': 'store', 'get': [row], 'put': [{**row, 'gb_per_second': 0}]})
        self.assertEqual(throughput['places'], ['get 4 KiB\nEMS, 2', 'put 4 KiB\nEMS, 2'])
        self.assertEqual(throughput['lines'][0][3], [1.5, None])
        self.assertEqual(latency['lines'][0][3], [20, 20])
        with self.assertRaisesRegex(SystemExit, 'no figures of ems-bench engines'):
            plot.panels_of({'command': 'engines'})

    def test_what_can_be_drawn_is_said_in_one_line(self):
        with self.assertRaisesRegex(SystemExit, '^plot.py draws what ems-bench context, .*local, .*trace write, not flowers$'):
            plot.panels_of({'command': 'flowers'})

    @unittest.skipUnless(importlib.util.find_spec('matplotlib'), 'matplotlib is not installed')
    def test_draws_each(self):
        with tempfile.TemporaryDirectory() as folder:
            for command in plot_commands.COMMANDS:
                path = os.path.join(folder, command + '.svg')
                plot.draw(*plot.panels_of(recorded(command)), path)
                with open(path, encoding='utf-8') as file:
                    self.assertIn('<svg', file.read(), command)


if __name__ == '__main__':
    unittest.main()
