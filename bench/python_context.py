#!/usr/bin/python3
"""What context caching costs a Python engine: look-ups and submissions, on a cluster of its own.

Figures are of calls as a caller sees them, in microseconds. --gate checks what EMS promises, as ems-bench does: one line each,
and exit code 1 if one fails. Needs PYTHONPATH (the package) and EMS_BIN (the daemons); docs/BENCHMARKS.md says how to read it.
"""
import argparse
import array
import gc
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'tests', 'integrations', 'python'))

# pylint: disable=wrong-import-position
import ems
from cluster import Cluster
from npu_tensor import NpuTensor

LOOKUP_KEYS = 1000
BLOCK_TOKENS = 128
LARGE, SMALL = 256, 24  # blocks of a submission
PAGES = 2 * LARGE
HEAD_SIZE = 8  # a block is 128 x 8 x 2 bytes: what is moved is not what is measured
TIMEOUT_MS = 300
STEP_SECONDS = 0.002
GATES = {'lookup_1000_python_p50_us': 600, 'submit_small_p99_us': 100, 'submit_large_array_p99_us': 100,
         'submit_small_stopped_p99_us': 100, 'submit_large_array_stopped_p99_us': 100}


def timed(count, call, after=lambda result: None):
    """{'p50_us', 'p99_us'} of `count` calls; what `after` does with a result is not counted.

    Without Python's garbage collection, as timeit does it: a pass over all objects of numpy takes 2 ms.
    """
    took = []
    gc.disable()
    for i in range(count):
        begin = time.perf_counter()
        result = call(i)
        took.append((time.perf_counter() - begin) * 1e6)
        after(result)
    gc.enable()
    took.sort()
    return {'p50_us': took[len(took) // 2], 'p99_us': took[min(len(took) - 1, int(len(took) * 0.99))]}


def hashes_of(batch, blocks):
    """As engines have them: signed 64-bit ints, from Python's own hash."""
    return [hash((batch, block)) for block in range(blocks)]


def save_all(cc, hashes):
    """Saves blocks in turns of what the pages hold."""
    option = ems.CcKvOption(timeout=20000)
    for first in range(0, len(hashes), PAGES):
        part = hashes[first:first + PAGES]
        chunks = [[(i * BLOCK_TOKENS, BLOCK_TOKENS) for i in range(len(part))]]
        saved = cc.save(hashes=part, chunk_descs=chunks, option=option).success
        if saved != len(part):
            raise SystemExit(f'{saved} of {len(part)} blocks were saved')


def lookups(cc, rounds):
    hashes = hashes_of(-1, LOOKUP_KEYS)
    save_all(cc, hashes)
    option = ems.CcKvOption(timeout=2000)

    def all_there(found):
        if found != LOOKUP_KEYS:
            raise SystemExit(f'{found} of {LOOKUP_KEYS} blocks were found')
    timed(20, lambda i: cc.exists(hashes, option))
    figures = {'drop_in_exists_1000': timed(rounds, lambda i: cc.exists(hashes, option).success, all_there)}
    with ems.Client() as client:
        cache = ems.ContextCache(client, model='bench', dtype='bf16', block_tokens=BLOCK_TOKENS)
        keys = [cache.own_key(str(number)) for number in hashes]
        cache.save(keys, [b'x'] * len(keys))
        timed(20, lambda i: cache.lookup_keys(keys))
        figures['context_cache_lookup_1000'] = timed(rounds, lambda i: cache.lookup_keys(keys), all_there)
    return figures


def submissions(cc, rounds, what):
    """Small and large batches, saves and loads in turn, slots as a list and as an array."""
    figures = {}
    option = ems.CcKvOption(timeout=TIMEOUT_MS)

    def finish(future):
        try:
            future.result()
        except ems.EmsException as error:
            if error.status_code() is not ems.EmsErrorCode.EMS_IO_TIMEOUT:
                raise

    for size, blocks in (('small', SMALL), ('large', LARGE)):
        slots = list(range(blocks * BLOCK_TOKENS))
        offsets = [BLOCK_TOKENS] * blocks
        for kind, mapping in (('', slots), ('_array', array.array('q', slots))):
            batches = [hashes_of(batch, blocks) for batch in range(8)]

            def submit(i, mapping=mapping, offsets=offsets, batches=batches):
                call = cc.async_save if i % 2 else cc.async_load
                return call(slot_mapping=mapping, hashes=batches[i % len(batches)], offsets=offsets, option=option)
            # Stopped: futures are left to their timeout; what waits is bounded by the pool's queue.
            kept = []

            def pause(future, kept=kept):
                (kept.append if what else finish)(future)
                time.sleep(STEP_SECONDS)  # as an engine, which computes something in between
            figures[f'submit_{size}{kind}{what}'] = timed(rounds, submit, pause)
            for future in kept:
                finish(future)
    return figures


def measure(rounds, servers):
    with Cluster(servers=servers, dram='512MiB') as cluster:
        os.environ['EMS_CONTROLLER'] = cluster.address
        tensor = NpuTensor((PAGES, BLOCK_TOKENS, 1, HEAD_SIZE))
        ems.Ems.init(ems.EmsConfig(cc_config=ems.CcConfig_v1(rank_id=0, device_id=0, model_id='bench')))
        try:
            cc = ems.Ems.get_cc()
            cc.register_kvcache([[tensor]])
            figures = lookups(cc, rounds)
            figures.update(submissions(cc, rounds, ''))
            cluster.stand_still()
            try:
                figures.update(submissions(cc, rounds, '_stopped'))
            finally:
                cluster.go_on()
        finally:
            ems.Ems.shutdown()
    return figures


def gate(figures):
    """Prints a line a promise; whether all are kept."""
    values = {'lookup_1000_python_p50_us': figures['drop_in_exists_1000']['p50_us']}
    for what in ('', '_stopped'):
        for size in ('small', 'large_array'):
            values[f'submit_{size}{what}_p99_us'] = figures[f'submit_{size}{what}']['p99_us']
    kept = True
    for name, bound in GATES.items():
        passes = values[name] <= bound
        kept = kept and passes
        print(f'gate {name} {values[name]:.1f} <= {bound} {"pass" if passes else "fail"}')
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--gate', action='store_true', help='check what EMS promises')
    parser.add_argument('--quick', action='store_true', help='a tenth of the calls')
    parser.add_argument('--json', metavar='FILE', help='all figures')
    parser.add_argument('--servers', type=int, default=1)
    args = parser.parse_args()
    figures = measure(50 if args.quick else 500, args.servers)
    print(f'{"":30} {"p50 us":>9} {"p99 us":>9}')
    for name, figure in figures.items():
        print(f'{name:30} {figure["p50_us"]:9.1f} {figure["p99_us"]:9.1f}')
    if args.json:
        with open(args.json, 'w', encoding='utf-8') as file:
            json.dump(figures, file, indent=1)
    if args.gate and not gate(figures):
        sys.exit(1)


if __name__ == '__main__':
    main()
