"""SGLang's own controller, factory, host pools and threads over EMS, where its sources are (EMS_HOST_SGLANG, EMS_HOST_SGLANG_OLDER).

Without them the calls are made again that they made when they were: sglang_calls.json. EMS_HOST_RECORD=1 writes it.
"""
import json
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '..', 'integrations', 'engines')]

# pylint: disable=wrong-import-position
import fake_sglang
from harness import Cluster
from recorded_calls import RecordedCallsTest

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
    """In a process of its own; returns the calls."""
    import sglang_host as host  # pylint: disable=import-outside-toplevel
    host.install(folder)
    if not host.is_hybrid():
        return {'mla': there_and_back(host, host.mla_pool, address)}
    return {'glm': there_and_back(host, host.hybrid_group, address),
            'deepseek': there_and_back(host, host.deepseek_group, address)}


def there_and_back(host, make, address):
    """A prompt goes out by one of SGLang's controllers, and comes back by another."""
    import torch  # pylint: disable=import-outside-toplevel
    tapes, sides = [], []
    for who in ('writer', 'reader'):
        device, pools = make()
        side = host.controller(device, pools, address, domain=make.__name__)
        tapes.append(Tape(side.storage_backend, who))
        sides.append((side, pools))
    (writer, full), (reader, empty) = sides
    for number, buffer in enumerate(host.memory_of(full)):
        buffer.copy_(torch.randint(1, 255, buffer.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(number)))

    indices, keys = full.alloc(len(TOKENS)), host.hashes(TOKENS, PAGE)
    more = {'extra_pools': host.transfers(full, keys)} if host.is_hybrid() else {}
    writer.write_storage(indices, TOKENS, hash_value=keys, **more)
    stored = writer.ack_backup_queue.get(timeout=30)
    assert stored.completed_tokens == len(TOKENS), stored.completed_tokens

    into = empty.alloc(len(TOKENS))
    if host.is_hybrid():
        operation = reader.prefetch('request', TOKENS + [7] * PAGE, extra_pools=host.transfers(empty, keys))
        found = reader.prefetch_hit_queue.get(timeout=30)
        assert found.storage_hit_count == len(TOKENS), found.storage_hit_count
        operation.host_indices = into
        reader.prefetch_buffer.put(operation)
    else:
        operation = reader.prefetch('request', into, TOKENS)
    host.until(lambda: operation.completed_tokens == len(TOKENS) and getattr(operation, 'pool_transfers_done', True))
    for was, came in zip(host.memory_of(full), host.memory_of(empty)):  # of some pools the first page alone is the prompt's
        came_pages = [page for page in range(len(came)) if came[page].any()]
        assert came_pages[:1] == [0] and len(came_pages) in (1, PAGES), came_pages
        assert torch.equal(was[came_pages], came[came_pages])
    for side, _ in sides:
        alive = [thread.is_alive() for thread in (side.prefetch_thread, side.backup_thread)]
        assert all(alive), alive
        side.detach_storage_backend()
    return tapes[0].calls + tapes[1].calls


def replay(model, calls, address):
    """The calls, of pools of our own; what they get."""
    fake_sglang.install()
    sides, results = {}, []
    for who, name, arguments, _ in calls:
        if who not in sides:
            sides[who] = own_pools(model)
            for number, pool in enumerate(sides[who][1:]):
                pool.memory[:] = 0 if who == 'reader' else number + 1
            sides[who][0] = fake_sglang.backend(address, sides[who][0])
        storage, *pools = sides[who]
        if name.endswith('v2'):
            arguments = [*arguments[:-1], [transfer_of(one) for one in arguments[-1]]]
        results.append(plain(getattr(storage, name)(*arguments)))
        if who == 'reader' and name.startswith('batch_get'):
            for number, pool in enumerate(pools):
                assert set(pool.memory.flat) <= {0, number + 1}, 'bytes of another pool'
    for storage, *_ in sides.values():
        storage.close()
    return results


def own_pools(model):
    """[group, pools that have memory]"""
    first, second, states = fake_sglang.HostPool(2 * PAGES), fake_sglang.HostPool(2 * PAGES), fake_sglang.StatePool(8)
    if model == 'deepseek':
        return [fake_sglang.PoolGroup(fake_sglang.LogicalPool(), deepseek_v4_c4=first, swa=second), first, second]
    return [fake_sglang.PoolGroup(first, indexer=second, mamba=states), first, second, states]


def transfer_of(made):
    return fake_sglang.PoolTransfer(fake_sglang.PoolName(made['name']), made['indices'], made['keys'],
                                    fake_sglang.PoolHitPolicy(made['policy']))


class SglangHostTest(RecordedCallsTest):
    ENGINE, RECORD = 'SGLang', RECORD

    def test_calls_of_each_release(self):
        self.assertEqual(set(self.recorded), set(RELEASES))
        for release, models in self.recorded.items():
            for model, calls in models.items():
                with self.subTest(release, model=model), Cluster(servers=1) as cluster:
                    self.assertEqual(replay(model, calls, cluster.address), [result for *_, result in calls])

    @unittest.skipUnless(any(map(os.environ.get, RELEASES.values())), 'no sources of SGLang: EMS_HOST_SGLANG is not set')
    def test_its_own_modules(self):
        for release, variable in RELEASES.items():
            if not os.environ.get(variable):
                continue
            with self.subTest(release), Cluster(servers=1) as cluster:
                self.check_host(release, os.environ[variable], cluster.address)


if __name__ == '__main__':
    if sys.argv[1:2] == ['--host']:
        print(json.dumps(run_host(*sys.argv[2:])))
    else:
        unittest.main()
