"""SGLang's own controller, factory, host pools and threads over EMS, where its sources are (EMS_HOST_SGLANG, EMS_HOST_SGLANG_OLDER).

Without them the calls are made again that they made when they were: sglang_calls.json. EMS_HOST_RECORD=1 writes it.
"""
import json
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '..', 'integrations', 'engines')]

# pylint: disable=wrong-import-position
import fake_sglang
from harness import Cluster

RECORD = os.path.join(HERE, 'sglang_calls.json')
RELEASES = {'2026-08': 'EMS_HOST_SGLANG', '2026-02': 'EMS_HOST_SGLANG_OLDER'}
PAGE, PAGES = 16, 6
TOKENS = list(range(1000, 1000 + PAGE * PAGES))


def plain(value):
    """What JSON has of arguments and results: pages of memory by their numbers."""
    if hasattr(value, 'kv_hit_pages'):
        return [value.kv_hit_pages, plain(value.extra_pool_hit_pages)]
    if hasattr(value, 'hit_policy'):
        return {'name': value.name.value, 'keys': plain(value.keys), 'indices': plain(value.host_indices),
                'policy': value.hit_policy.value}
    if hasattr(value, 'tolist'):
        return value.tolist()
    if isinstance(value, dict):
        return {getattr(name, 'value', name): plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


class Tape:
    """Writes down what SGLang calls, and what it gets."""
    ARGUMENTS = {'batch_exists': 1, 'batch_get_v1': 2, 'batch_set_v1': 2, 'batch_exists_v2': 2, 'batch_get_v2': 1,
                 'batch_set_v2': 1}

    def __init__(self, storage, who):
        self.calls = []
        for name, count in self.ARGUMENTS.items():
            setattr(storage, name, self._taped(getattr(storage, name), count, [who, name]))

    def _taped(self, call, count, what):
        def taped(*arguments):
            result = call(*arguments)
            self.calls.append([*what, plain(arguments[:count]), plain(result)])
            return result
        return taped


def run_host(folder, address):
    """In a process of its own. Prompts go out by one controller, and come back by another; returns the calls."""
    import sglang_host as host  # pylint: disable=import-outside-toplevel
    import torch  # pylint: disable=import-outside-toplevel
    host.install(folder)
    hybrid = host.is_hybrid()
    tapes, sides = [], []
    for who in ('writer', 'reader'):
        device, pools = host.hybrid_group() if hybrid else host.mla_pool()
        side = host.controller(device, pools, address)
        tapes.append(Tape(side.storage_backend, who))
        sides.append((side, pools))
    (writer, full), (reader, empty) = sides
    buffers = [host.memory_of(pools, hybrid) for pools in (full, empty)]
    for number, buffer in enumerate(buffers[0]):
        buffer.copy_(torch.randint(1, 255, buffer.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(number)))

    indices = full.alloc(len(TOKENS))
    keys = host.hashes(TOKENS, PAGE)
    more = {'extra_pools': host.transfers(full, keys, indices)} if hybrid else {}
    writer.write_storage(indices, TOKENS, hash_value=keys, **more)
    stored = writer.ack_backup_queue.get(timeout=30)
    assert stored.completed_tokens == len(TOKENS), stored.completed_tokens

    into = empty.alloc(len(TOKENS))
    if hybrid:
        operation = reader.prefetch('request', TOKENS + [7] * PAGE, extra_pools=host.transfers(empty, keys, into))
        found = reader.prefetch_hit_queue.get(timeout=30)
        assert found.storage_hit_count == len(TOKENS), found.storage_hit_count
        operation.host_indices = into
        reader.prefetch_buffer.put(operation)
    else:
        operation = reader.prefetch('request', into, TOKENS)
    host.until(lambda: operation.completed_tokens == len(TOKENS) and getattr(operation, 'pool_transfers_done', True))
    for was, came in zip(host.pages_of(buffers[0], indices), host.pages_of(buffers[1], into)):
        assert torch.equal(was, came) and came.any()
    for side, _ in sides:
        alive = [thread.is_alive() for thread in (side.prefetch_thread, side.backup_thread)]
        assert all(alive), alive
        side.detach_storage_backend()
    return tapes[0].calls + tapes[1].calls


def replay(calls, address):
    """The calls, of pools of our own with as many pages; what they get."""
    fake_sglang.install()
    sides, results = {}, []
    for who, name, arguments, _ in calls:
        if who not in sides:
            kv, states, indexer = fake_sglang.HostPool(2 * PAGES), fake_sglang.StatePool(8), fake_sglang.HostPool(2 * PAGES)
            for number, pool in enumerate((kv, states, indexer)):
                pool.memory[:] = 0 if who == 'reader' else number + 1
            sides[who] = fake_sglang.backend(address, fake_sglang.PoolGroup(kv, mamba=states, indexer=indexer)), kv, states, indexer
        storage, *pools = sides[who]
        if name.endswith('v2'):
            arguments = [*arguments[:-1], [transfer_of(one) for one in arguments[-1]]]
        results.append(plain(getattr(storage, name)(*arguments)))
        if who == 'reader' and name.startswith('batch_get'):
            for pool, mark in zip(pools, (1, 2, 3)):
                assert set(pool.memory.flat) <= {0, mark}, 'bytes of another pool'
    for storage, *_ in sides.values():
        storage.close()
    return results


def transfer_of(made):
    return fake_sglang.PoolTransfer(fake_sglang.PoolName(made['name']), made['indices'], made['keys'],
                                    fake_sglang.PoolHitPolicy(made['policy']))


class SglangHostTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.recorded = {}
        if os.path.exists(RECORD):
            with open(RECORD, encoding='utf-8') as file:
                cls.recorded = json.load(file)

    def test_calls_of_each_release(self):
        self.assertEqual(set(self.recorded), set(RELEASES))
        for release, calls in self.recorded.items():
            with self.subTest(release), Cluster(servers=1) as cluster:
                self.assertEqual(replay(calls, cluster.address), [result for *_, result in calls])

    @unittest.skipUnless(any(map(os.environ.get, RELEASES.values())), 'no sources of SGLang: EMS_HOST_SGLANG is not set')
    def test_its_own_modules(self):
        for release, variable in RELEASES.items():
            if not os.environ.get(variable):
                continue
            with self.subTest(release), Cluster(servers=1) as cluster:
                ran = subprocess.run([sys.executable, '-B', __file__, '--host', os.environ[variable], cluster.address],
                                     capture_output=True, text=True, timeout=120, check=False)
                self.assertEqual(ran.returncode, 0, ran.stderr)
                calls = json.loads(ran.stdout.splitlines()[-1])
                if os.environ.get('EMS_HOST_RECORD'):
                    self.recorded[release] = calls
                    with open(RECORD, 'w', encoding='utf-8') as file:
                        json.dump(self.recorded, file, indent=None, separators=(',', ':'))
                self.assertEqual(calls, self.recorded[release], 'SGLang calls otherwise than it did')


if __name__ == '__main__':
    if sys.argv[1:2] == ['--host']:
        print(json.dumps(run_host(*sys.argv[2:])))
    else:
        unittest.main()
