"""omni-infer's own callers of the original SDK, from a folder of its sources, without an NPU and without vLLM.

Real are the modules of REAL; all else of these packages is a stand-in: classes that take anything, functions that do nothing.
Tensors are those of tests/integrations/python/device_tensor.py: on a device for the second generation, whose connector gives
tensors, and in host memory for the first one, whose adapter gives addresses.
"""
import importlib
import sys
import threading
from types import SimpleNamespace

import numpy
import stand_ins
from device_tensor import DeviceTensor, HostTensor
from ems import ContextCache_v1, ContextCaching

REAL = {'omni.accelerators.pd.cc_connector', 'omni.adaptors.vllm.ems.ems_adapter', 'omni.adaptors.vllm.ems.ems_env',
        'omni.adaptors.vllm.ems.ems_metrics', 'omni.adaptors.vllm.ems.ems_utils', 'omni.adaptors.vllm.ems.zmq_comm'}
STAND_INS = {'omni', 'vllm', 'torch', 'llm_datadist', 'zmq', 'blake3'}
BLOCKS, BLOCK_SIZE, LAYERS = 60, 128, 2
COLUMNS = 8  # kv heads × head size / 16, as use_tnd_pa shapes them
PROMPT_BLOCKS = 24  # the least that the first generation loads; the second wants 2048 tokens
TOKENS = list(range(500, 500 + PROMPT_BLOCKS * BLOCK_SIZE + 1))


class _Zmq:
    """Sockets of one rank: nobody sends."""

    def __getattr__(self, name):
        return lambda *_, **__: _Zmq()

    def poll(self, milliseconds):
        threading.Event().wait(milliseconds / 1000)
        return False


def install(folder):
    """Imports of omni and of what it needs come from `folder`, or are stand-ins. Once a process."""
    stand_ins.install(folder, REAL, STAND_INS)
    sys.modules['zmq'] = zmq = stand_ins.StandIn('zmq')
    zmq.Context, zmq.Poller, zmq.PULL, zmq.PUSH, zmq.POLLIN = _Zmq, _Zmq, 1, 2, 3
    distributed, logging = importlib.import_module('vllm.distributed'), importlib.import_module('vllm.logger')
    group = SimpleNamespace(rank=0, local_rank=0, world_size=1, rank_in_group=0)
    distributed.get_tp_group = distributed.get_pp_group = lambda: group
    logging.logger = SimpleNamespace(**{level: _log(level) for level in ('debug', 'info', 'warning', 'error', 'exception')})
    for module, name in (('vllm.distributed.kv_transfer.kv_connector.v1.base', 'KVConnectorBase_V1'),
                         ('vllm.distributed.kv_transfer.kv_connector.v1.base', 'KVConnectorMetadata')):
        setattr(importlib.import_module(module), name, type(name, (), {}))
    importlib.import_module('vllm.distributed.kv_transfer.kv_connector.v1.base').KVConnectorRole = SimpleNamespace(
        SCHEDULER='scheduler', WORKER='worker')


def _log(level):
    return lambda text, *_: print(f'{level}: {text}', file=sys.stderr) if level in ('error', 'exception') else None


def config():
    return SimpleNamespace(
        model_config=SimpleNamespace(use_mla=False, hf_config=SimpleNamespace(model_type='dense')),
        parallel_config=SimpleNamespace(rank=0, world_size=1, data_parallel_rank_local=0, pipeline_parallel_size=1,
                                        tensor_parallel_size=1),
        cache_config=SimpleNamespace(block_size=BLOCK_SIZE),
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config={}))


def new_request(name, block_ids):
    """(a request, and the scheduler's word of it in the step that computes it)"""
    request = SimpleNamespace(request_id=name, req_id=name, prompt_token_ids=TOKENS, num_computed_tokens=0, block_ids=[block_ids])
    return request, SimpleNamespace(scheduled_new_reqs=[request], num_scheduled_tokens={name: len(TOKENS)})


def filled(tensors):
    rng = numpy.random.default_rng(11)
    for tensor in tensors:
        tensor.copy_(HostTensor(rng.integers(1, 65535, tensor.shape, numpy.uint16)))


def runs_of(slots, offsets):
    """Slots token by token → [first slot, tokens] for each block, whose slots follow each other."""
    runs, at = [], 0
    for tokens in offsets:
        assert slots[at:at + tokens] == list(range(slots[at], slots[at] + tokens))
        runs.append([slots[at], tokens])
        at += tokens
    return runs


class Tape:
    """Writes down what is called of a class of the SDK; results come at the end of futures."""

    def __init__(self, of, describe):
        self.calls, self._describe = [], describe
        for name in ('async_save', 'async_load'):
            setattr(of, name, self._taped(getattr(of, name), name))

    def _taped(self, call, name):
        def taped(cc, *args, **kwargs):
            future = call(cc, *args, **kwargs)
            self.calls.append([name, *self._describe(*args, **kwargs), future])
            return future
        return taped

    def plain(self):
        return [[*call, [future.result().success, future.result().total]] for *call, future in self.calls]


def second_generation():
    """A scheduler's and a worker's connector: a prompt misses, is saved, and comes back into other blocks. Returns the calls."""
    cc_connector = importlib.import_module('omni.accelerators.pd.cc_connector')
    ems_adapter = importlib.import_module('omni.adaptors.vllm.ems.ems_adapter')
    ems_adapter.PeriodicTaskManager.HEALTH_CHECK_INTERVAL = 0.01
    tape = Tape(ContextCache_v1, lambda slot_mapping, hashes, offsets, option: [hashes, runs_of(slot_mapping, offsets)])
    scheduler = cc_connector.CcConnector(config(), 'scheduler')
    worker = cc_connector.CcConnector(config(), 'worker')
    adapter = worker.connector_worker.ems_adapter
    caches = {f'layer.{i}': tuple(DeviceTensor((BLOCKS, COLUMNS, BLOCK_SIZE, 16)) for _ in 'kv') for i in range(LAYERS)}
    every = [tensor for layer in caches.values() for tensor in layer]
    filled(every)
    worker.register_kv_caches(caches)
    wait_until(adapter.task_manager.get_status)

    saved, loaded = list(range(PROMPT_BLOCKS)), list(range(50, 50 - PROMPT_BLOCKS, -1))
    before = [tensor.numpy() for tensor in every]
    for name, block_ids in (('first', saved), ('second', loaded)):
        request, output = new_request(name, block_ids)
        tokens, is_async = scheduler.get_num_new_matched_tokens(request, 0)
        assert (tokens, is_async) == (PROMPT_BLOCKS * BLOCK_SIZE, True)
        scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda ids=block_ids: [ids]), tokens)
        worker._connector_metadata = scheduler.build_connector_meta(SimpleNamespace(scheduled_new_reqs=[]))
        worker.start_load_kv(None)
        done = set()
        wait_until(lambda: done.update(worker.get_finished(set())[1]) or done)
        assert done == {f'{name}+@-{0 if name == "first" else PROMPT_BLOCKS * BLOCK_SIZE}'}, done
        if name == 'first':
            worker._connector_metadata = scheduler.build_connector_meta(output)
            worker.wait_for_save()
            adapter.sync_save_reqs()
    check_moved([tensor.numpy() for tensor in every], before, zip(saved, loaded))
    return tape.plain()


class Addressed(HostTensor):
    """What the first generation asks of a tensor."""

    def __len__(self):
        return len(self.numpy())

    def __getitem__(self, part):
        return Addressed(self.numpy()[part])

    def numel(self):
        return self.numpy().size


def first_generation():
    """The adapter of August 2025: a prompt is saved, and comes back into other blocks. Returns the calls."""
    ems_adapter = importlib.import_module('omni.adaptors.vllm.ems.ems_adapter')
    ems_adapter.SLEEP_SECONDS = 0.01
    tape = Tape(ContextCaching, lambda option, keys, values: [keys, [[one.length for one in value] for value in values]])
    adapter = ems_adapter.EmsAdapter(config())
    layers = [tuple(Addressed(numpy.zeros((BLOCKS, BLOCK_SIZE, 1, size), numpy.uint16)) for size in (28, 4)) for _ in range(LAYERS)]
    every = [tensor for layer in layers for tensor in layer]
    filled(every)
    adapter.bind_kvcaches(layers)
    wait_until(adapter.status_checker.get_status)
    _, output = new_request('first', list(range(PROMPT_BLOCKS)))
    before = [tensor.numpy().copy() for tensor in every]
    adapter.async_save(output)
    loaded = list(range(59, 59 - PROMPT_BLOCKS, -1))
    hashes = ems_adapter.cal_hash_blocks(TOKENS, BLOCK_SIZE)
    assert adapter.load([('second', hashes, loaded)]) == [PROMPT_BLOCKS]
    check_moved([tensor.numpy() for tensor in every], before, zip(range(PROMPT_BLOCKS), loaded))
    return tape.plain()


def check_moved(now, before, moved):
    """Targets have the bytes of their sources, and all else has its own."""
    for source, target in moved:
        for old in before:
            old[target] = old[source]
    for array, expected in zip(now, before):
        assert (array == expected).all()


def wait_until(condition):
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError('not within 20 s')
