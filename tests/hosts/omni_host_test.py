"""omni-infer's connector and adapters over EMS, where its sources are (EMS_HOST_OMNI, and EMS_HOST_OMNI_V0 of the first generation).

Without them the calls are made again that they made when they were: omni_calls.json. EMS_HOST_RECORD=1 writes it.
"""
import json
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '..', 'integrations', 'python')]

# pylint: disable=wrong-import-position
import numpy
import omni_host as host
from cluster import Cluster
from device_tensor import DeviceTensor
from recorded_calls import RecordedCallsTest

from ems import CcConfig, CcConfig_v1, CcKvOption, Ems, EmsConfig, KvBufferWrapper

RECORD = os.path.join(HERE, 'omni_calls.json')
GENERATIONS = {'second_generation': 'EMS_HOST_OMNI', 'first_generation': 'EMS_HOST_OMNI_V0'}
OPTION = CcKvOption(timeout=5000)


def replay_second(calls):
    """The calls by slots, of tensors of our own shaped alike; what they get."""
    Ems.init(EmsConfig(access_id='omni@1', access_key='', cc_config_v1=CcConfig_v1(
        rank_id=0, device_id=0, model_id='omni', llm_engine='vllm@deepseek')))
    cc = Ems.get_cc()
    shape = (host.BLOCKS, host.COLUMNS, host.BLOCK_SIZE, 16)
    layers = [[DeviceTensor(shape) for _ in 'kv'] for _ in range(host.LAYERS)]
    every = [tensor for layer in layers for tensor in layer]
    host.filled(every)
    cc.register_kvcache(layers)
    before, saved, results = [tensor.numpy() for tensor in every], {}, []
    for name, hashes, runs, _ in calls:
        slots = [slot for first, tokens in runs for slot in range(first, first + tokens)]
        result = cc.get_result(getattr(cc, name)(slot_mapping=slots, hashes=hashes, offsets=[n for _, n in runs], option=OPTION))
        results.append([result.success, result.total])
        pages = [first // host.BLOCK_SIZE for first, _ in runs[:result.success]]
        if name == 'async_save':
            saved = dict(zip(hashes, pages))
        else:
            host.check_moved([tensor.numpy() for tensor in every], before, [(saved[h], page) for h, page in zip(hashes, pages)])
    return results


def replay_first(calls):
    """The calls by keys, with buffers of as many bytes; what they get."""
    Ems.init(EmsConfig(access_id='omni@1', access_key='', cc_config=CcConfig(rank_id=0, device_id=0, model_id='omni')))
    cc, saved, results = Ems.get_cc(), {}, []
    for name, keys, sizes, _ in calls:
        values = [[numpy.full(size, 0, numpy.uint8) for size in value] for value in sizes]
        if name == 'async_save':
            for number, value in enumerate(values):
                for part in value:
                    part[:] = numpy.arange(part.size) + number
            saved.update(zip(keys, values))
        wrapped = [[KvBufferWrapper(part.ctypes.data, part.size) for part in value] for value in values]
        result = getattr(cc, name)(OPTION, keys, wrapped).result()
        results.append([result.success, result.total])
        for key, value in zip(keys[:result.success], values):
            assert all((part == was).all() for part, was in zip(value, saved[key])), key
    return results


class OmniHostTest(RecordedCallsTest):
    ENGINE, RECORD = 'omni-infer', RECORD

    def test_calls_of_each_generation(self):
        self.assertEqual(set(self.recorded), set(GENERATIONS))
        for generation, replay in (('second_generation', replay_second), ('first_generation', replay_first)):
            with self.subTest(generation), Cluster(servers=1) as cluster:
                os.environ['EMS_CONTROLLER'] = cluster.address
                self.addCleanup(os.environ.pop, 'EMS_CONTROLLER', None)
                self.addCleanup(Ems.shutdown)
                calls = self.recorded[generation]
                self.assertEqual(replay(calls), [result for *_, result in calls])
                Ems.shutdown()

    @unittest.skipUnless(any(map(os.environ.get, GENERATIONS.values())), 'no sources of omni-infer: EMS_HOST_OMNI is not set')
    def test_its_own_modules(self):
        for generation, variable in GENERATIONS.items():
            if not os.environ.get(variable):
                continue
            with self.subTest(generation), Cluster(servers=1) as cluster:
                self.check_host(generation, generation, os.environ[variable], EMS_CONTROLLER=cluster.address)


if __name__ == '__main__':
    if sys.argv[1:2] == ['--host']:
        host.install(sys.argv[3])
        print(json.dumps(getattr(host, sys.argv[2])()))
        sys.stdout.flush()
        Ems.shutdown()
        os._exit(0)  # its threads never end
    else:
        unittest.main()
