#!/usr/bin/python3
"""What context caching costs a Python engine: look-ups and submissions, on a cluster of its own.

Figures are of calls as a caller sees them, in microseconds. --gate checks the targets of EMS. Needs PYTHONPATH (the package) and EMS_BIN (the daemons); docs/BENCHMARKS.md says how to read it.
"""
import array
import gc
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..', 'tests', 'integrations', 'python'))

# pylint: disable=wrong-import-position
import ems
import script
from cluster import Cluster
from npu_tensor import NpuTensor

LOOKUP_KEYS = 1000
BLOCK_TOKENS = 128
LARGE, SMALL = 256, 24  # blocks of a submission
PAGES = 2 * LARGE
HEAD_SIZE = 8  # a block is 128 x 8 x 2 bytes: what is moved is not what is measured
TIMEOUT_MS = 300
STEP_SECONDS = 0.002
GATES = [('lookup_1000_python_p50_us', '<=', 600, 'timed')] + [
    (f'submit_{size}{what}_p99_us', '<=', 100, 'timed') for what in ('', '_stopped') for size in ('small', 'large_array')]


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
    return {'p50_us': script.percentile(took, 0.5), 'p99_us': script.percentile(took, 0.99)}


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


def measure(quick):
    rounds = 50 if quick else 500
    with Cluster(servers=1, dram='512MiB') as cluster:
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
    flat = {f'{name}_{which}': value for name, two in figures.items() for which, value in two.items()}
    return {'lookup_1000_python_p50_us': flat['drop_in_exists_1000_p50_us'], **flat}


if __name__ == '__main__':
    script.run(__doc__, measure, GATES)
