"""vLLM's own tiering manager, MultiConnector and scheduler over EMS; the folder of its sources is EMS_HOST_FOLDER.

Run by vllm_host_test.py, each release in a process of its own.
"""
import json
import os
import pickle
import sys
import unittest

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '..', 'integrations', 'engines')]

# pylint: disable=wrong-import-position,wrong-import-order
import vllm_host as host
from fake_vllm import Engine as Model
from harness import Cluster, filled, until

host.install(os.environ['EMS_HOST_FOLDER'])

from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1, KVConnectorHandshakeMetadata,
                                                               KVConnectorMetadata, KVConnectorRole)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from ems.engine_queue import hasher_of
from ems.vllm_connector import block_bytes_of

SIZE = 4096
CALLS = []  # of vLLM, and what the cases do besides: [engine, what, …]


def key(number):
    return number.to_bytes(32, 'big') + (0).to_bytes(4, 'big')


def said(answer):
    """A look-up's answer as vLLM's releases have it."""
    return getattr(answer, 'name', {True: 'HIT', False: 'MISS', None: 'RETRY'}.get(answer))


class Engine:
    """The offloading connector's part: what it asks vLLM's manager, and the GPU's bytes."""

    def __init__(self, test, name, **options):
        made = host.tier_engine(test.cluster.address, size=SIZE, **options)
        self.manager, self.tier, self.memory, self.region = made.manager, made.tier, made.memory, made.region
        test.addCleanup(self.close)
        self._is_open = True
        self.name = f'{name}-{len(CALLS)}'
        CALLS.append([self.name, 'tier', options])
        for method in ('submit_store', 'submit_load', 'lookup'):
            setattr(self.tier, method, self._taped(method, getattr(self.tier, method)))

    def _taped(self, method, call):
        def taped(what, *rest):
            answer = call(what, *rest)
            if method != 'lookup':
                CALLS.append([self.name, method, [one.hex() for one in what.keys], [int(one) for one in what.block_ids]])
            elif said(answer) != 'RETRY':
                CALLS.append([self.name, method, what.hex(), said(answer)])
            return answer
        return taped

    def request(self, name):
        from vllm.v1.kv_offload.base import ReqContext  # pylint: disable=import-outside-toplevel
        context = ReqContext(req_id=name)
        if hasattr(self.manager, 'on_new_request'):
            self.manager.on_new_request(context)
        return context

    def step_ends(self):
        if not hasattr(self.manager, 'on_schedule_end'):  # the first releases say so when events are taken
            list(self.manager.take_events())
            return
        from vllm.v1.kv_offload.base import ScheduleEndContext  # pylint: disable=import-outside-toplevel
        self.manager.on_schedule_end(ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))

    def store(self, context, numbers):
        """Computed on the GPU, copied to the CPU tier, and from there to the pool."""
        keys = [key(number) for number in numbers]
        output = self.manager.prepare_store(keys, context)
        for one, block in zip(output.keys_to_store, output.store_spec.block_ids):
            self.region.mmap_obj[int(block) * SIZE:(int(block) + 1) * SIZE] = bytes(filled(one.hex(), SIZE))
        self.manager.complete_store(keys, context)
        until(lambda: self.step_ends() or not self.jobs(), 20, 'the pool has them')

    def jobs(self):
        return getattr(self.manager, '_jobs', None) or getattr(self.manager, '_transfer_jobs', None)

    def find(self, context, number, steps=2000):
        """As the scheduler asks, in each step, until there is an answer. Returns it, and how many steps it took."""
        for step in range(1, steps + 1):
            answer = said(self.manager.lookup(key(number), context))
            self.step_ends()
            if answer in ('HIT', 'MISS'):
                return answer, step
            self.tier._queue.wait(0.05)
        return 'never', steps

    def read(self, context, number):
        [block] = self.manager.prepare_load([key(number)], context).block_ids
        value = bytes(self.region.mmap_obj[int(block) * SIZE:(int(block) + 1) * SIZE])
        self.manager.complete_load([key(number)], context)
        return value

    def close(self):
        if self._is_open:
            self._is_open = False
            self.memory = None
            self.manager.shutdown()


@unittest.skipUnless(host.has('vllm.v1.kv_offload.tiering.manager'), 'a vLLM without tiers')
class TierCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2, dram='128MiB')
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def test_blocks_of_one_engine_reach_another(self):
        first, second = Engine(self, 'first'), Engine(self, 'second')
        first.store(first.request('a'), range(8))
        context = second.request('b')
        for number in range(8):
            self.assertEqual(second.find(context, number)[0], 'HIT')
            self.assertEqual(second.read(context, number), filled(key(number).hex(), SIZE))
        self.assertEqual(second.find(context, 8)[0], 'MISS')

    def test_engines_that_differ_share_nothing(self):
        first = Engine(self, 'first')
        first.store(first.request('a'), range(100, 108))
        for options in ({'model': 'llama2'}, {'dtype': 'fp8'}, {'tp_size': 2}, {'layers': ('a', 'c')}, {'domain': 'revision 2'}):
            other = Engine(self, 'other', **options)
            context = other.request('b')
            self.assertEqual([other.find(context, number)[0] for number in range(100, 108)], ['MISS'] * 8, options)

    def test_block_that_cannot_be_loaded_is_computed(self):
        first, second = Engine(self, 'first'), Engine(self, 'second')
        client = second.tier._queue.client
        own = hasher_of(second.tier.domain).own_key(key(200))
        client.put(own, b'of another size')
        CALLS.append([second.name, 'put', key(200).hex()])
        context = second.request('a')
        answer, steps = second.find(context, 200)
        self.assertEqual(answer, 'MISS')
        self.assertLess(steps, 200)
        loads = [one for one in CALLS if one[:2] == [second.name, 'submit_load'] and key(200).hex() in one[2]]
        self.assertEqual(len(loads), 1)
        client.remove(own)
        CALLS.append([second.name, 'remove', key(200).hex()])
        second.store(context, [200])
        context = first.request('b')
        self.assertEqual(first.find(context, 200)[0], 'HIT')
        self.assertEqual(first.read(context, 200), filled(key(200).hex(), SIZE))

    def test_shutdown_lets_go_of_the_cpu_tier(self):
        engine = Engine(self, 'first')
        engine.store(engine.request('a'), range(300, 304))
        mapped = engine.region.mmap_obj
        engine.close()
        self.assertTrue(mapped.closed)


LAYERS, BLOCKS, BLOCK = ('a', 'b'), 64, 16


class Peer(KVConnectorBase_V1):
    """Another connector beside EMS: it has no KV, sends a handshake, and refuses others', as NIXL's does."""

    class Said(KVConnectorHandshakeMetadata):
        pass

    def get_handshake_metadata(self):
        return self.Said()

    def set_xfer_handshake_metadata(self, metadata):
        if not all(isinstance(one, self.Said) for one in metadata.values()):
            raise ValueError('a handshake of another connector')

    set_xfer_handshake_metadata_pp_aware = set_xfer_handshake_metadata

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return 0, False

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def _nothing(self, *given, **named):
        """Of what is loaded and saved."""

    start_load_kv = wait_for_layer_load = save_kv_layer = wait_for_save = update_state_after_alloc = _nothing
    register_kv_caches = _nothing

    def get_finished(self, finished_req_ids):
        return None, None

    def get_block_ids_with_load_errors(self):
        return set()


class Served:
    """vLLM's scheduler and factory, workers' connectors, and a forward pass over paged KV in numpy, as in fake_vllm.Engine.

    What is asked of one worker's is written down.
    """

    def __init__(self, test, connectors, tp_size=1, **extra):
        ours = {'kv_connector': 'EmsConnector', 'kv_connector_module_path': 'ems.vllm', 'kv_role': 'kv_both',
                'kv_load_failure_policy': 'recompute',
                'kv_connector_extra_config': {'controller': test.cluster.address, 'lookup_wait': 0.5, **extra}}
        peer = {'kv_connector': 'Peer', 'kv_connector_module_path': __name__, 'kv_role': 'kv_both'}
        entries = [ours if name == 'ems' else peer for name in connectors]
        transfer = entries[0] if len(entries) == 1 else {
            'kv_connector': 'MultiConnector', 'kv_role': 'kv_both', 'kv_load_failure_policy': 'recompute',
            'kv_connector_extra_config': {'connectors': entries}}
        self.kv = [{layer: numpy.zeros((2, BLOCKS, BLOCK, 2, 8), numpy.float16) for layer in LAYERS} for _ in range(tp_size)]
        self.scheduler, config, kv_cache_config = host.scheduler(transfer, LAYERS, BLOCKS, BLOCK, tp_size)
        self.workers, said = [], {}
        test.addCleanup(self.close)
        for rank, kv in enumerate(self.kv):
            config.parallel_config.rank = rank
            worker = kv_transfer_state._KV_CONNECTOR_AGENT = KVConnectorFactory.create_connector(
                config, KVConnectorRole.WORKER, kv_cache_config)
            self.workers.append(worker)
            worker.register_kv_caches(kv)
            test.assertEqual(block_bytes_of(kv_cache_config), self.ours(worker)._worker._row)
            said[0, rank] = pickle.loads(pickle.dumps(worker.get_handshake_metadata()))
        said = {ranks: metadata for ranks, metadata in said.items() if metadata is not None}
        if said:  # as the engine's core does
            connector = self.scheduler.connector
            if hasattr(connector, 'set_xfer_handshake_metadata_pp_aware'):
                connector.set_xfer_handshake_metadata_pp_aware(said)
            else:
                connector.set_xfer_handshake_metadata({rank: metadata for (_, rank), metadata in said.items()})
        self._tokens, self._ids = {}, {}
        self.computed = 0
        self.name = f'connector-{len(CALLS)}'
        self._is_taped = tp_size == 1
        if self._is_taped:
            CALLS.append([self.name, 'connector', {'several': len(entries) > 1, **extra}])
            self._tape(self.ours(self.scheduler.connector))

    def _tape(self, connector):
        """Writes down what vLLM's scheduler asks and tells."""
        def taped(method, plain):
            call = getattr(connector, method)

            def carried(*given):
                answer = call(*given)
                entry = plain(answer, *given)
                if entry is not None:
                    CALLS.append([self.name, method, *entry])
                return answer
            setattr(connector, method, carried)
        taped('get_num_new_matched_tokens', lambda answer, request, computed: None if answer[0] is None else (
            request.request_id, list(request.prompt_token_ids), computed, answer[0]))
        taped('update_state_after_alloc', lambda _, request, blocks, tokens: (
            request.request_id, list(blocks.get_block_ids()[0]), tokens))
        taped('build_connector_meta', lambda answer, output: (plain_step(output), [
            list(answer.step.loads.block_ids), list(answer.step.saves.block_ids)]))
        taped('update_connector_output', lambda _, output: (sorted(output.invalid_block_ids),))
        taped('request_finished', lambda _, request, ids: (request.request_id,))
        taped('reset_cache', lambda _: ())

    def ours(self, connector):
        return next(one for one in getattr(connector, '_connectors', [connector]) if type(one).__name__ == 'EmsConnector')

    def serve(self, name, prompt, between=lambda: None):
        """A request, and one token. Returns (tokens that were not computed, whether all KV is right)."""
        for kv in self.kv:
            for cache in kv.values():
                cache[:] = 666  # of other requests
        request = host.request(name, prompt, BLOCK)
        self.scheduler.add_request(request)
        self._tokens[name] = prompt
        before = self.computed
        for _ in range(200):
            output = self.scheduler.schedule()
            between()
            between = lambda: None  # pylint: disable=unnecessary-lambda-assignment
            self._run(output)
            if not self.scheduler.requests:
                break
        else:
            raise AssertionError('it never ends')
        is_right = self._is_right(name)
        self._run(self.scheduler.schedule())  # tells the workers that it is over
        self.scheduler.reset_prefix_cache()
        return len(prompt) - (self.computed - before), is_right

    def _run(self, output):
        if self._is_taped:
            CALLS.append([self.name, 'run'])
        for worker in self.workers:
            worker.bind_connector_metadata(pickle.loads(pickle.dumps(output.kv_connector_metadata)))
            worker.start_load_kv(None)
        work = [(new.req_id, new.num_computed_tokens, new.block_ids[0]) for new in output.scheduled_new_reqs]
        cached = output.scheduled_cached_reqs
        for at, name in enumerate(cached.req_ids):
            more = (cached.new_block_ids[at] or ([],))[0]
            is_resumed = name in getattr(cached, 'resumed_req_ids', ())
            work.append((name, cached.num_computed_tokens[at], list(more) if is_resumed else self._ids[name] + list(more)))
        for name, begin, ids in work:
            self._ids[name] = list(ids)
            self._forward(name, begin, begin + output.num_scheduled_tokens[name])
        done = KVConnectorOutput()
        for worker in self.workers:
            worker.wait_for_save()
            done.invalid_block_ids |= worker.get_block_ids_with_load_errors()
            worker.clear_connector_metadata()
        names = [name for name, _, _ in work]
        is_whole = [begin + output.num_scheduled_tokens[name] >= len(self._tokens[name]) for name, begin, _ in work]
        self.scheduler.update_from_output(output, ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=[[7] if whole else [] for whole in is_whole], logprobs=None, prompt_logprobs_dict={},
            pooler_output=[], kv_connector_output=done))

    def _forward(self, name, begin, end):
        tokens, ids = self._tokens[name], self._ids[name]
        hidden = numpy.array(tokens[begin:end], numpy.int64)
        for layer, name in enumerate(LAYERS):
            for rank, kv in enumerate(self.kv):
                mine = Model.value(hidden, layer, rank, begin)
                for at, position in enumerate(range(begin, end)):
                    kv[name][:, ids[position // BLOCK], position % BLOCK] = mine[at]
            hidden = Model.attend(hidden, [Model._read(kv[name], ids, end) for kv in self.kv], begin)
        self.computed += end - begin

    def _is_right(self, name):
        tokens, ids = self._tokens[name], self._ids[name]
        hidden = numpy.array(tokens, numpy.int64)
        for layer, name in enumerate(LAYERS):
            truth = [Model.value(hidden, layer, rank, 0) for rank in range(len(self.kv))]
            hidden = Model.attend(hidden, [one * kv[name][:, 0, 0].size for one, kv in zip(truth, self.kv)], 0)
            for one, kv in zip(truth, self.kv):
                if any((kv[name][:, ids[at // BLOCK], at % BLOCK] != value).any() for at, value in enumerate(one)):
                    return False
        return True

    def settle(self):
        """Until the pool has what was saved."""
        for _ in range(5):
            self._run(self.scheduler.schedule())
        for connector in self.workers:
            worker = self.ours(connector)._worker
            while worker._under_way:
                worker._queue.wait(1)
                worker._drain()

    def evict(self, prompt, at, rank=0):
        """Takes a rank's part of a block out of the pool."""
        name = self.ours(self.scheduler.connector)._scheduler._names.of(host.request('evicted', prompt, BLOCK))[at]
        worker = self.ours(self.workers[rank])._worker
        assert worker._queue.run_at('remove', worker._keys([name]), hashed=True)[0] == [True]
        if self._is_taped:
            CALLS.append([self.name, 'evict', name.hex()])

    def close(self):
        for connector in (self.scheduler.connector, *self.workers):
            connector.shutdown()
        kv_transfer_state._KV_CONNECTOR_AGENT = None


def plain_step(output):
    cached = output.scheduled_cached_reqs
    return {'new': [[new.req_id, list(new.block_ids[0]), new.num_computed_tokens] for new in output.scheduled_new_reqs],
            'req_ids': list(cached.req_ids), 'num_computed_tokens': list(cached.num_computed_tokens),
            'new_block_ids': [None if more is None else [list(more[0])] for more in cached.new_block_ids],
            'resumed': sorted(getattr(cached, 'resumed_req_ids', ())), 'scheduled': dict(output.num_scheduled_tokens)}


class ConnectorCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2, dram='128MiB')
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    @staticmethod
    def prompt(seed):
        return [(seed * 1000 + i * 31) % 100000 for i in range(5 * BLOCK + 3)]

    def test_another_engine_loads_the_prefix(self):
        first = Served(self, ['ems'])
        self.assertEqual(first.serve('a', self.prompt(1)), (0, True))
        first.settle()
        second = Served(self, ['ems'])
        self.assertEqual(second.serve('b', self.prompt(1)), (5 * BLOCK, True))
        self.assertIs(getattr(second.scheduler, 'requires_kv_delivery', False), False)

    def test_block_that_is_evicted_before_its_load_is_computed(self):
        first = Served(self, ['ems'])
        first.serve('a', self.prompt(2))
        first.settle()
        second = Served(self, ['ems'])
        loaded, is_right = second.serve('b', self.prompt(2), lambda: second.evict(self.prompt(2), 2))
        self.assertTrue(is_right)
        second.settle()
        self.assertEqual(first.serve('c', self.prompt(2)), (5 * BLOCK, True))

    def test_two_ranks_of_which_one_loses_a_block(self):
        first, second = (Served(self, ['ems'], tp_size=2) for _ in 'xy')
        self.assertEqual(first.serve('a', self.prompt(4)), (0, True))
        first.settle()
        self.assertEqual(second.serve('b', self.prompt(4)), (5 * BLOCK, True))
        first.evict(self.prompt(4), 3, rank=1)
        self.assertEqual(second.serve('c', self.prompt(4)), (3 * BLOCK, True), 'it is not promised')
        second.settle()
        self.assertTrue(first.serve('d', self.prompt(4), lambda: first.evict(self.prompt(4), 1, rank=1))[1])
        first.settle()
        self.assertEqual(second.serve('e', self.prompt(4)), (5 * BLOCK, True))

    def test_reset_after_an_update_of_the_weights(self):
        first, second = Served(self, ['ems']), Served(self, ['ems'])
        first.serve('a', self.prompt(3))
        first.settle()
        self.assertTrue(first.scheduler.reset_prefix_cache(reset_connector=True))
        self.assertEqual(first.serve('b', self.prompt(3)), (0, True))
        first.settle()
        self.assertEqual(first.serve('c', self.prompt(3)), (5 * BLOCK, True))
        self.assertEqual(second.serve('d', self.prompt(3)), (5 * BLOCK, True))

    def test_beside_another_connector(self):
        for seed, order in enumerate((['ems', 'peer'], ['peer', 'ems'])):
            first = Served(self, order, layout='ours')
            self.assertEqual(first.serve('a', self.prompt(10 + seed)), (0, True))
            first.settle()
            second = Served(self, order, layout='ours')
            self.assertEqual(second.serve('b', self.prompt(10 + seed)), (5 * BLOCK, True))
            silent = Served(self, order)  # nobody says the layout: nothing is loaded, and all goes on
            self.assertEqual(silent.serve('c', self.prompt(10 + seed)), (0, True))


def main():
    ran = unittest.main(exit=False)
    path = os.environ.get('EMS_HOST_CALLS')
    if path and ran.result.wasSuccessful():
        with open(path, 'w', encoding='utf-8') as file:
            json.dump(CALLS, file)
    sys.exit(not ran.result.wasSuccessful())


if __name__ == '__main__':
    main()
