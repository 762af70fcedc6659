"""vLLM's own tiering manager, MultiConnector and scheduler over EMS, where its sources are (EMS_HOST_VLLM, EMS_HOST_VLLM_OLDER).

Without them the calls are made again that vLLM made then: vllm_calls.json. EMS_HOST_RECORD=1 writes it.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from types import SimpleNamespace
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '..', 'integrations', 'engines')]

# pylint: disable=wrong-import-position
import fake_vllm
import numpy
from fake_vllm import LookupResult, OffloadingGroup, OffloadingModel, OffloadingParallel, Request, TransferJob
from harness import Cluster, filled, until

fake_vllm.install()

import ems.vllm
from ems.engine_queue import hasher_of

RECORD = os.path.join(HERE, 'vllm_calls.json')
RELEASES = {'2026-08': 'EMS_HOST_VLLM', '2026-02': 'EMS_HOST_VLLM_OLDER'}
BLOCKS, SIZE = 32, 4096


def recorded():
    if not os.path.exists(RECORD):
        return {}
    with open(RECORD, encoding='utf-8') as file:
        return json.load(file)


class HostTest(unittest.TestCase):
    """Each release in a process of its own: all have the same module names."""

    def check_release(self, release):
        folder = os.environ.get(RELEASES[release])
        if not folder:
            self.skipTest(f'{RELEASES[release]} names no folder')
        with tempfile.TemporaryDirectory() as temporary:
            calls = os.path.join(temporary, 'calls.json')
            ran = subprocess.run([sys.executable, '-B', os.path.join(HERE, 'vllm_host_cases.py')], capture_output=True, text=True,
                                 env={**os.environ, 'EMS_HOST_FOLDER': folder, 'EMS_HOST_CALLS': calls}, timeout=150, check=False)
            self.assertEqual(ran.returncode, 0, ran.stderr[-5000:])
            with open(calls, encoding='utf-8') as file:
                made = json.load(file)
        if os.environ.get('EMS_HOST_RECORD'):
            with open(RECORD, 'w', encoding='utf-8') as file:
                json.dump({**RECORDED, release: made}, file, separators=(',', ':'))
            RECORDED[release] = made

    def test_release_of_august_2026(self):
        self.check_release('2026-08')

    def test_release_of_february_2026(self):
        self.check_release('2026-02')

    def check_schedules(self, release):
        folder = os.environ.get(RELEASES[release])
        if not folder:
            self.skipTest(f'{RELEASES[release]} names no folder')
        for cases in ('vllm_host_schedule_cases.py', 'vllm_host_tier_cases.py'):
            ran = subprocess.run([sys.executable, '-B', os.path.join(HERE, cases)], capture_output=True, text=True,
                                 env={**os.environ, 'EMS_HOST_FOLDER': folder}, timeout=150, check=False)
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr[-5000:])

    def test_schedules_of_august_2026(self):
        self.check_schedules('2026-08')

    def test_schedules_of_february_2026(self):
        self.check_schedules('2026-02')


RECORDED = recorded()


class Tier:
    """Does what vLLM did with one engine's tier, and checks answers and bytes."""

    def __init__(self, test, options):
        self._test = test
        self._memory = numpy.zeros((BLOCKS, SIZE), numpy.uint8)
        said = dict(options)
        spec = fake_vllm.offloading_spec(
            model=OffloadingModel(said.pop('model', 'llama'), said.pop('dtype', 'bfloat16')),
            parallel=OffloadingParallel(tp_size=said.pop('tp_size', 1)),
            groups=(OffloadingGroup(layer_names=tuple(said.pop('layers', ('a', 'b')))),))
        self._manager = fake_vllm.SecondaryTierFactory.create_secondary_tier(
            {'type': 'EmsTierManager', 'module_path': 'ems.vllm', 'controller': test.cluster.address, **said},
            memoryview(self._memory), spec)
        test.addCleanup(self._manager.shutdown)

    def lookup(self, name, answer):
        found = []

        def is_answered():
            found.append(self._manager.lookup(bytes.fromhex(name), None))
            self._manager.on_schedule_end(None)
            return found[-1] is not LookupResult.RETRY
        until(is_answered, 20, 'the look-up is answered')
        self._test.assertEqual(found[-1].name, answer, name)

    def submit_store(self, names, ids):
        for name, block in zip(names, ids):
            self._memory[block] = numpy.frombuffer(filled(name, SIZE), numpy.uint8)
        self._test.assertTrue(self._carried(self._manager.submit_store, names, ids).success)

    def submit_load(self, names, ids):
        self._memory[ids] = 0
        result = self._carried(self._manager.submit_load, names, ids)
        arrived = names if result.success else [one.hex() for one in result.successful_keys or ()]
        for name, block in zip(names, ids):
            if name in arrived:
                self._test.assertEqual(bytes(self._memory[block]), filled(name, SIZE))

    def _carried(self, submit, names, ids):
        submit(TransferJob(1, [bytes.fromhex(name) for name in names], numpy.array(ids)))
        self._manager.drain_jobs()
        [result] = self._manager.get_finished_jobs()
        return result

    def put(self, name):
        self._client().put(self._own(name), b'of another size')

    def remove(self, name):
        self._client().remove(self._own(name))

    def _client(self):
        return self._manager._queue.client

    def _own(self, name):
        return hasher_of(self._manager.domain).own_key(bytes.fromhex(name))


class Connector:
    """Does what vLLM's scheduler did with one engine's connector; blocks that are saved have bytes of their names."""
    LAYERS, BLOCKS, BLOCK = ('a', 'b'), 64, 16

    def __init__(self, test, options):
        self._test = test
        said = {name: value for name, value in options.items() if name != 'several'}
        config = fake_vllm.config(test.cluster.address, lookup_wait=0.5, **said)
        self._scheduler, self._worker = (
            ems.vllm.EmsConnector(config, role, SimpleNamespace(num_blocks=self.BLOCKS, kv_cache_groups=[None]))
            for role in fake_vllm.KVConnectorRole)
        for connector in (self._scheduler, self._worker):
            test.addCleanup(connector.shutdown)
        self._kv = {layer: numpy.zeros((2, self.BLOCKS, self.BLOCK, 2, 8), numpy.float16) for layer in self.LAYERS}
        with mock.patch.object(fake_vllm, 'transfer_group', object() if options['several'] else None):
            self._worker.register_kv_caches(self._kv)
            handshake = self._worker.get_handshake_metadata()
        if handshake is not None:
            self._scheduler.set_xfer_handshake_metadata({0: handshake})
        self._failed = set()

    def get_num_new_matched_tokens(self, name, prompt, computed, tokens):
        request, found = Request(name, prompt), []

        def is_answered():
            found.append(self._scheduler.get_num_new_matched_tokens(request, computed)[0])
            return found[-1] is not None
        until(is_answered, 20, 'the look-up is answered')
        self._test.assertEqual(found[-1], tokens, name)

    def update_state_after_alloc(self, name, ids, tokens):
        blocks = SimpleNamespace(get_block_ids=lambda: (ids,))
        self._scheduler.update_state_after_alloc(Request(name, []), blocks, tokens)

    def build_connector_meta(self, plain, moved):
        cached = SimpleNamespace(req_ids=plain['req_ids'], num_computed_tokens=plain['num_computed_tokens'],
                                 new_block_ids=plain['new_block_ids'], resumed_req_ids=set(plain['resumed']))
        metadata = self._scheduler.build_connector_meta(SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id=name, block_ids=(ids,), num_computed_tokens=computed)
                                for name, ids, computed in plain['new']],
            scheduled_cached_reqs=cached, num_scheduled_tokens=plain['scheduled']))
        self._test.assertEqual([metadata.step.loads.block_ids, metadata.step.saves.block_ids], moved)
        self._worker.bind_connector_metadata(metadata)

    def run(self):
        """The worker's part of the step that was built last."""
        step = self._worker._get_connector_metadata().step
        self._worker.start_load_kv(None)
        self._failed = self._worker.get_block_ids_with_load_errors()
        for name, block in zip(step.loads.names, step.loads.block_ids):
            if block not in self._failed:
                for kv in self._kv.values():
                    self._test.assertTrue((kv[:, block] == self._value(name)).all(), 'another block')
        for name, block in zip(step.saves.names, step.saves.block_ids):
            for kv in self._kv.values():
                kv[:, block] = self._value(name)
        self._worker.wait_for_save()
        worker = self._worker._worker
        while worker._under_way:
            self._test.assertTrue(worker._queue.wait(20))
            worker._drain()

    @staticmethod
    def _value(name):
        return int.from_bytes(name[:4], 'big') % 2000

    def update_connector_output(self, invalid):
        self._test.assertEqual(sorted(self._failed), invalid)
        self._scheduler.update_connector_output(SimpleNamespace(invalid_block_ids=set(invalid)))
        self._failed = set()

    def request_finished(self, name):
        self._scheduler.request_finished(Request(name, []), [])

    def reset_cache(self):
        self._test.assertIs(self._scheduler.reset_cache(), True)

    def evict(self, name):
        worker = self._worker._worker
        self._test.assertEqual(worker._queue.run_at('remove', worker._keys([bytes.fromhex(name)]), hashed=True)[0], [True])


class RecordedTest(unittest.TestCase):
    """The calls of then have the answers and bytes of then."""

    def check_calls(self, release):
        self.cluster = Cluster(servers=2, dram='128MiB')
        self.cluster.__enter__()
        self.addCleanup(self.cluster.stop)
        kinds, engines = {'tier': Tier, 'connector': Connector}, {}
        for engine, what, *given in RECORDED[release]:
            if what in kinds:
                engines[engine] = kinds[what](self, *given)
            else:
                getattr(engines[engine], what)(*given)
        self.assertGreater(len(engines), 5)

    def test_release_of_august_2026(self):
        self.check_calls('2026-08')

    def test_release_of_february_2026(self):
        self.check_calls('2026-02')


if __name__ == '__main__':
    unittest.main()
