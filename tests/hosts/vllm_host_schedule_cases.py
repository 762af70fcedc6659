"""vLLM's own scheduler over EMS with many requests at a time: aborts, pre-emptions, names that come again, blocks that go, ranks.

Run by vllm_host_test.py, each release in a process of its own; the folder of its sources is EMS_HOST_FOLDER. EMS_HOST_SEED repeats
a run.
"""
import collections
import os
import pickle
import random
import time
import unittest

import numpy
import vllm_host_cases as cases
from harness import Cluster
from vllm_host_cases import BLOCK, KVConnectorFactory, KVConnectorOutput, KVConnectorRole, LAYERS, Model, ModelRunnerOutput, host
from vllm.v1.request import RequestStatus

SEED = int(os.environ.get('EMS_HOST_SEED', time.time_ns() % 1_000_000))
PROMPTS, REQUESTS, STEPS_MAX = 8, 150, 20_000


class Crowd:
    """An engine with vLLM's scheduler, workers' connectors, and a forward pass of several requests over paged KV in numpy.

    ahead: steps that are planned before the first one runs. is_mla: one dimension for a token, the same on each rank.
    """

    def __init__(self, test, tp_size=1, blocks=64, ahead=1, is_async=False, is_mla=False, chunk=0, **extra):
        transfer = {'kv_connector': 'EmsConnector', 'kv_connector_module_path': 'ems.vllm', 'kv_role': 'kv_both',
                    'kv_load_failure_policy': 'recompute',
                    'kv_connector_extra_config': {'controller': test.cluster.address, 'lookup_wait': 0.5, 'timeout': 5.0, **extra}}
        shape = (1, blocks, BLOCK, 16) if is_mla else (2, blocks, BLOCK, 2, 8)
        self.kv = [{layer: numpy.full(shape, 666, numpy.float16) for layer in LAYERS} for _ in range(tp_size)]
        self.scheduler, config, kv_cache_config = host.scheduler(transfer, LAYERS, blocks, BLOCK, tp_size, is_mla, is_async, chunk)
        self.workers, said = [], {}
        test.addCleanup(self.close)
        for rank, kv in enumerate(self.kv):
            config.parallel_config.rank = rank
            worker = cases.kv_transfer_state._KV_CONNECTOR_AGENT = KVConnectorFactory.create_connector(
                config, KVConnectorRole.WORKER, kv_cache_config)
            self.workers.append(worker)
            worker.register_kv_caches({layer: cache[0] if is_mla else cache for layer, cache in kv.items()})
            said[0, rank] = pickle.loads(pickle.dumps(worker.get_handshake_metadata()))
        connector = self.scheduler.connector
        if hasattr(connector, 'set_xfer_handshake_metadata_pp_aware'):
            connector.set_xfer_handshake_metadata_pp_aware(said)
        else:
            connector.set_xfer_handshake_metadata({rank: one for (_, rank), one in said.items()})
        self._ahead, self._is_mla = ahead, is_mla
        self._planned = collections.deque()
        self._tokens, self._ids = {}, {}
        self.computed = self.loaded = self.preempted = 0
        self.finished, self.wrong = [], []

    def add(self, name, prompt, tokens=1):
        self._tokens[name] = list(prompt)
        self.scheduler.add_request(host.request(name, prompt, BLOCK, tokens))

    def abort(self, name):
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def step(self, between=lambda: None):
        """As the engine's core does: plans until `ahead` steps are, and takes in the output of the oldest."""
        while len(self._planned) < self._ahead:
            output = self.scheduler.schedule()
            between()
            self._planned.append((output, self._run(output)))
        output, result = self._planned.popleft()
        self.scheduler.update_from_output(output, result)
        # What was computed on a load that failed is computed again: a whole prompt counts when its request is over.
        for name in result.req_ids:
            if name not in self.scheduler.requests and name not in self.finished:
                self.finished.append(name)

    def _run(self, output):
        for worker in self.workers:
            metadata = pickle.loads(pickle.dumps(output.kv_connector_metadata))
            if hasattr(worker, 'handle_preemptions'):
                worker.handle_preemptions(metadata)
            worker.bind_connector_metadata(metadata)
            worker.start_load_kv(None)
        work = [(new.req_id, new.num_computed_tokens, new.block_ids[0]) for new in output.scheduled_new_reqs]
        self.loaded += len(output.kv_connector_metadata.step.loads.names)
        cached = output.scheduled_cached_reqs
        self.preempted += len(getattr(cached, 'resumed_req_ids', ()))
        for at, name in enumerate(cached.req_ids):
            more = list((cached.new_block_ids[at] or ([],))[0])
            is_resumed = name in getattr(cached, 'resumed_req_ids', ())
            work.append((name, cached.num_computed_tokens[at], more if is_resumed else self._ids[name] + more))
        work.sort(key=lambda one: one[0] in {new.req_id for new in output.scheduled_new_reqs})  # who runs comes first
        for name, begin, ids in work:
            self._ids[name] = list(ids)
            self._forward(name, begin, begin + output.num_scheduled_tokens[name])
        done = KVConnectorOutput()
        is_empty = not output.num_scheduled_tokens
        for worker in self.workers:
            if not is_empty:  # a step without tokens has no forward pass, and nothing is saved
                worker.wait_for_save()
            done.invalid_block_ids |= worker.get_block_ids_with_load_errors()
            worker.clear_connector_metadata()
        errors = done.invalid_block_ids
        names, sampled = [name for name, _, _ in work], []
        for name, begin, ids in work:
            end = begin + output.num_scheduled_tokens[name]
            is_whole = end >= len(self._tokens[name])
            sampled.append([7] if is_whole else [])
            if is_whole and not errors & set(ids) and not self._is_right(name):
                self.wrong.append(name)
        is_told = not is_empty or errors  # of an empty step vLLM hands on nothing
        return ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: at for at, name in enumerate(names)}, sampled_token_ids=sampled, logprobs=None,
            prompt_logprobs_dict={}, pooler_output=[], kv_connector_output=done if is_told else None)

    def _token(self, name, at):
        return self._tokens[name][at] if at < len(self._tokens[name]) else 7

    def _forward(self, name, begin, end):
        ids = self._ids[name]
        hidden = numpy.array([self._token(name, at) for at in range(begin, end)], numpy.int64)
        for layer, which in enumerate(LAYERS):
            for rank, kv in enumerate(self.kv):
                mine = Model.value(hidden, layer, 0 if self._is_mla else rank, begin)
                for at, position in enumerate(range(begin, end)):
                    kv[which][:, ids[position // BLOCK], position % BLOCK] = mine[at]
            hidden = Model.attend(hidden, [self._seen(kv[which], ids, end) for kv in self.kv], begin)
        self.computed += end - begin

    @staticmethod
    def _seen(cache, ids, end):
        blocks = numpy.array(cache[:, ids], numpy.float64)
        return blocks.reshape(*blocks.shape[:3], -1).sum(axis=(0, 3)).astype(numpy.int64).reshape(-1)[:end]

    def _is_right(self, name):
        """Whether all KV of the prompt is what computing it from the start gives."""
        ids, hidden = self._ids[name], numpy.array(self._tokens[name], numpy.int64)
        for layer, which in enumerate(LAYERS):
            truth = [Model.value(hidden, layer, 0 if self._is_mla else rank, 0) for rank in range(len(self.kv))]
            for one, kv in zip(truth, self.kv):
                held = kv[which][:, ids].reshape(kv[which].shape[0], len(ids) * BLOCK, -1)[:, :len(one)]
                if (held != one.astype(numpy.float16)[None, :, None]).any():
                    return False
            size = self.kv[0][which][:, 0, 0].size
            hidden = Model.attend(hidden, [one * size for one in truth], 0)
        return True

    def drain(self):
        """Until all requests are over and the pool has what was saved."""
        for _ in range(STEPS_MAX):
            if not self.scheduler.requests:
                break
            self.step()
        else:
            raise AssertionError(f'requests never end: {list(self.scheduler.requests)}')
        for _ in range(8):
            self.step()
        for connector in self.workers:
            worker = connector._worker
            while worker._under_way:
                worker._queue.wait(1)
                worker._drain()

    def evict(self, prompt, at, rank):
        names = self.scheduler.connector._scheduler._names.of(host.request('evicted', prompt, BLOCK))
        worker = self.workers[rank]._worker
        if at < len(names):
            worker._queue.run_at('remove', worker._keys(names[at:at + 1]), hashed=True)

    def close(self):
        for connector in (self.scheduler.connector, *self.workers):
            connector.shutdown()
        cases.kv_transfer_state._KV_CONNECTOR_AGENT = None


class ScheduleCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2, dram='256MiB')
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    @staticmethod
    def prompts(seed, shortest=1):
        """Some begin alike; of all lengths."""
        chosen = random.Random(seed)
        stem = [chosen.randrange(1000) for _ in range(3 * BLOCK)]
        return [stem[:chosen.choice((0, BLOCK, 3 * BLOCK))] + [chosen.randrange(1000) for _ in range(chosen.randrange(shortest, 5 * BLOCK))]
                for _ in range(PROMPTS)]

    def check_pool(self, prompts, **options):
        """What an engine loads whose own cache is empty is right. Returns how many blocks that were."""
        reader = Crowd(self, **options)
        for number, prompt in enumerate(prompts):
            reader.add(f'check-{number}', prompt)
            reader.drain()
            reader.scheduler.reset_prefix_cache()
        self.assertEqual(reader.wrong, [], 'wrong KV is in the pool')
        return reader.loaded

    def run_crowd(self, seed, *, is_checked=True, evicts=True, pauses=False, shortest=1, **options):
        """Random requests, aborts and evictions; all requests end, what is in the pool is right, and what the engine computes."""
        chosen, prompts = random.Random(seed), self.prompts(seed, shortest)
        layout = {name: value for name, value in options.items() if name in ('tp_size', 'is_mla')}
        servers = self.cluster.servers if pauses else ()
        for server in servers:
            self.addCleanup(server.go_on)
        self.check_pool(prompts[::2], **layout)  # stores them
        engine, left = Crowd(self, **options), REQUESTS

        def between():
            if evicts and chosen.random() < 0.3:
                engine.evict(chosen.choice(prompts), chosen.randrange(8), chosen.randrange(len(engine.workers)))
            for server in servers:
                server.go_on()
            if servers and chosen.random() < 0.3:
                chosen.choice(servers).stand_still()
        for _ in range(STEPS_MAX):
            while left and len(engine.scheduler.requests) < 6 and chosen.random() < 0.7:
                left -= 1
                name = f'r{left % 9}'  # names come again once they are free, where no step is under way
                if name in engine.scheduler.requests or options.get('ahead', 1) > 1:
                    name = f'x{left}'
                engine.add(name, chosen.choice(prompts), chosen.choice((1, 1, 3)))
            if chosen.random() < 0.08 and engine.scheduler.requests:
                engine.abort(chosen.choice(list(engine.scheduler.requests)))
            if not engine.scheduler.running:  # else it may not
                engine.scheduler.reset_prefix_cache()
            engine.step(between)
            if not left and not engine.scheduler.requests:
                break
        for server in servers:
            server.go_on()
        engine.drain()
        if is_checked:
            self.assertEqual(engine.wrong, [], f'EMS_HOST_SEED={SEED}')
        self.assertGreater(engine.loaded, 0)
        self.assertGreater(self.check_pool(prompts, **layout), 0, f'EMS_HOST_SEED={SEED}')
        return engine

    def test_many_requests_with_aborts_and_evictions(self):
        self.run_crowd(SEED)

    def test_ranks_and_chunks(self):
        self.run_crowd(SEED + 1, tp_size=2, chunk=24)

    def test_mla_on_two_ranks(self):
        self.run_crowd(SEED + 2, tp_size=2, is_mla=True)

    def test_preempted_requests(self):
        engine = self.run_crowd(SEED + 3, blocks=12, chunk=16, shortest=4 * BLOCK)
        self.assertGreater(engine.preempted, 0)

    def test_servers_that_stand_still_between_look_up_and_load(self):
        self.run_crowd(SEED + 9, evicts=False, pauses=True, timeout=0.2, transport='tcp')

    def test_steps_that_are_planned_ahead(self):
        self.run_crowd(SEED + 4, ahead=2, is_async=True, evicts=False)

    def test_steps_that_are_planned_ahead_of_loads_that_fail_store_nothing_wrong(self):
        for number, tp_size in enumerate((1, 2)):  # what vLLM itself makes of such steps is its own
            self.run_crowd(SEED + 5 + number, ahead=2, is_async=True, tp_size=tp_size, is_checked=False)

    def test_prompts_without_a_whole_block(self):
        engine = Crowd(self)
        for number, tokens in enumerate((1, BLOCK - 1, BLOCK)):
            engine.add(f'short-{number}', range(tokens))
            engine.add(f'again-{number}', range(tokens))
        engine.drain()
        self.assertEqual((engine.wrong, engine.loaded), ([], 0))

    def test_equal_prompts_in_one_step(self):
        prompt = self.prompts(SEED + 8)[0] + list(range(2 * BLOCK))
        writer, reader = Crowd(self), Crowd(self)
        writer.add('a', prompt)
        writer.drain()
        for name in 'bcd':
            reader.add(name, prompt)
        reader.drain()
        self.assertEqual((reader.wrong, sorted(reader.finished)), ([], ['b', 'c', 'd']))
        self.assertGreater(reader.loaded, 0)


if __name__ == '__main__':
    print(f'EMS_HOST_SEED={SEED}')
    unittest.main()
