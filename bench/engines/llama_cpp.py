#!/usr/bin/python3
"""Time to the first token of node-llama-cpp on this machine, with EMS and without: a model of random weights, real daemons.

A conversation whose prompts grow to 2,048 tokens, 90 % or more of each from the one before. One engine process computes and saves
each turn, another one, which saves nothing, loads it for the next turn; then the server is killed, started again on its SSD, and
loaded from once more. Each prompt is computed cold by the same process right beside, and the tokens must be the same. Prints one JSON object a line for each prompt,
then each figure that has a gate. docs/BENCHMARKS.md says how to read it.

Needs EMS_BIN (the daemons), EMS_LIBRARY (libems.so) and tests/node_modules (tests/run.sh --only deps).
"""
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, '..', '..', 'tests', 'integrations', 'python'), os.path.join(HERE, '..', '..', 'tests', 'support')]

# pylint: disable=wrong-import-position
import random_gguf
import script
from cluster import Cluster, until
from llama_testing import Engine, prompt

TURNS = (1280, 1408, 1536, 1664, 1792, 1920, 2048)
QUICK_TURNS = (640, 704)
TOKENS = 8  # generated for each prompt
ROUNDS = 2
SEED = 1
GATES = [gate for phase in ('llama_two_engines', 'llama_after_restart') for gate in (
    (phase + '_ttft_ratio', '<=', 0.2, 'timed'), (phase + '_misses', '<=', 0, 'exact'), (phase + '_unequal_tokens', '<=', 0, 'exact'))]


def say(**row):
    print(json.dumps(row), flush=True)


def measured(loader, phase, tokens, rounds):
    """A row of one prompt, in turns once cold and twice from the pool: the fastest cold one, the lower median of the others."""
    colds, warms = [], []
    for _ in range(rounds):
        colds.append(loader.run(tokens, generate=TOKENS, cache=False))
        warms += [loader.run(tokens, generate=TOKENS) for _ in range(2)]
    cold = min(one['ttftMs'] for one in colds)
    warm = sorted(one['ttftMs'] for one in warms)[(len(warms) - 1) // 2]
    row = {'row': 'prompt', 'phase': phase, 'prompt_tokens': len(tokens),
           'cached_tokens': min(one['cachedTokens'] for one in warms), 'ttft_cold_ms': round(cold, 1),
           'ttft_ems_ms': round(warm, 1), 'lookup_ms': round(min(one['lookupMs'] for one in warms), 2),
           'restore_ms': round(min(one['restoreMs'] for one in warms), 2), 'ttft_ratio': round(warm / cold, 4),
           'tokens_equal': all(one['tokens'] == colds[0]['tokens'] for one in colds + warms)}
    say(**row)
    return row


def conversation(saver, loader, turns, rounds):
    """Rows of all turns but the first one; what the saver has of it is the turn before, and the loader nothing of its own."""
    rows = []
    for before, length in zip(turns, turns[1:]):
        saver.run(prompt(before, SEED), generate=TOKENS, keep=True)
        saver.flush()
        rows.append(measured(loader, 'two engines', prompt(length, SEED), rounds))
    return rows


def after_restart(loader, turns, cluster, rounds):
    """The server comes back with what its SSD has: rows of a second loading."""
    cluster.kill_servers()
    cluster.start_servers()
    until(lambda: loader.run(prompt(256, SEED), generate=1)['cachedTokens'] > 0, 60, 'the server serves')
    # From here on all of the conversation is there: of each turn the loader finds what ends before it.
    return [measured(loader, 'after restart', prompt(length, SEED), rounds) for length in turns[1::2]]


def sums(rows, phase):
    """Figures of a phase, each of which has a gate."""
    name = 'llama_' + phase
    return {name + '_ttft_ratio': sum(row['ttft_ems_ms'] for row in rows) / sum(row['ttft_cold_ms'] for row in rows),
            name + '_misses': sum(row['cached_tokens'] == 0 for row in rows),
            name + '_unequal_tokens': sum(not row['tokens_equal'] for row in rows)}


def measure(quick):
    turns, rounds = (QUICK_TURNS, 1) if quick else (TURNS, ROUNDS)
    threads = 1 if quick else len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix='ems-llama-bench-') as folder:
        model = os.path.join(folder, 'model.gguf')
        random_gguf.write(model, layers=2 if quick else 8)
        with Cluster(servers=1, dram='512MiB', server_flags=['ssd.capacity_bytes=1GiB'],
                     controller_flags=['damping_ms=0']) as cluster:
            cache = {'controller': cluster.address, 'durability': 'ssd', 'saveEveryTokens': 0, 'lookupTimeoutMs': 1000}
            with (Engine(model, cache, threads=threads) as saver,
                  Engine(model, {**cache, 'savesMax': 0}, threads=threads) as loader):
                # The first prompt of a process is slower; and the shortest of the conversation says when a server is back.
                loader.run(prompt(512, SEED + 1), generate=1, cache=False)
                saver.run(prompt(256, SEED), generate=1)
                figures = {**sums(conversation(saver, loader, turns, rounds), 'two_engines'),
                           **sums(after_restart(loader, turns, cluster, rounds), 'after_restart')}
                for name, engine in (('saver', saver), ('loader', loader)):
                    say(row='stats', engine=name, **engine.stats())
    return figures


if __name__ == '__main__':
    script.run(__doc__, measure, GATES)
