"""A caller as engines write them, from what is public of the original SDK: an adapter with a worker thread, a health thread, and a
circuit breaker that initialises again. Nothing here knows how the package works."""
import os
import threading
import unittest

import numpy
from cluster import Cluster, until
from ems import (CcConfig, CcConfig_v1, CcKvOption, ContextCache_v1, ContextCaching, Ems, EmsConfig, EmsErrorCode,
                 EmsException, KvBufferWrapper)
from ems.cc_v1.cc_config import KVCacheType
from ems.common.exception import EmsErrorCode as DocumentedErrorCode
from npu_tensor import NpuTensor

LAYERS, BLOCKS, BLOCK_SIZE = 3, 32, 16


def mla_layer():
    """No-rope and rope parts, as MLA engines keep them."""
    return (NpuTensor((BLOCKS, BLOCK_SIZE, 1, 64)), NpuTensor((BLOCKS, BLOCK_SIZE, 1, 8)))


def chained_hashes(tokens):
    """Python's own hash over the chain: signed, and often negative."""
    hashes, previous = [], 0
    for start in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
        previous = hash((previous, *tokens[start:start + BLOCK_SIZE]))
        hashes.append(previous)
    return hashes


class Adapter:
    """An engine's side of the second generation."""

    def __init__(self, kv_caches, model_id='cc_kvstore@_@ds_default_ns_001'):
        config = CcConfig_v1(rank_id=0, device_id=0, model_id=model_id, tp_world_size=1, pp_world_size=1, rank_in_tp_group=0,
                             rank_in_pp_group=0, llm_engine='vllm@deepseek')
        config.kvcache_type = KVCacheType.MLA
        self.config = EmsConfig(access_id='cc_kvstore@_@ds_default_ns_001', access_key='', cc_config_v1=config)
        self.kv_caches = kv_caches
        self.option = CcKvOption(write_rcache=True, read_local_only=False, timeout=5000)
        self.cc = None
        self.inited = self.need_reinit = False
        self.codes = []
        self._stop = threading.Event()
        self.init()
        self._health = threading.Thread(target=self._watch_health)
        self._health.start()

    def init(self):
        try:
            Ems.init(self.config)
            self.cc = Ems.get_cc()
            self.cc.register_kvcache([[layer[i] for i in range(len(layer))] for layer in self.kv_caches])
            self.inited = True
        except EmsException as error:
            self.codes.append(error.status_code().name)
            if error.status_code() == EmsErrorCode.EMS_RECOVERD_ERROR:
                self.need_reinit = True

    def _watch_health(self):
        while not self._stop.wait(0.1):
            if Ems.check_health() and not self.inited and self.need_reinit:
                self.init()

    def close(self):
        self._stop.set()
        self._health.join()

    def slots(self, block_ids):
        return (numpy.array(block_ids)[:, numpy.newaxis] * BLOCK_SIZE + numpy.arange(BLOCK_SIZE)).ravel().tolist()

    def async_load(self, hashes, block_ids):
        return self.cc.async_load(slot_mapping=self.slots(block_ids), hashes=hashes, offsets=[BLOCK_SIZE] * len(block_ids),
                                  option=self.option)

    def async_save(self, hashes, block_ids):
        return self.cc.async_save(slot_mapping=self.slots(block_ids), hashes=hashes, offsets=[BLOCK_SIZE] * len(block_ids),
                                  option=self.option)

    def finished(self, future):
        """As an engine's step does: polls, then takes the result."""
        until(lambda: self.cc.is_ready(future), 10, 'the future is ready')
        return self.cc.get_result(future)


class SecondGenerationTest(unittest.TestCase):
    def setUp(self):
        self.addCleanup(Ems.shutdown)

    def use(self, cluster):
        os.environ['EMS_CONTROLLER'] = cluster.address
        self.addCleanup(os.environ.pop, 'EMS_CONTROLLER', None)

    def fill(self, kv_caches):
        for n, layer in enumerate(kv_caches):
            for t, tensor in enumerate(layer):
                flat = tensor.host().reshape(-1)
                flat[:] = (numpy.arange(flat.size) * 7 + 1000 * n + 100 * t) % 65536

    def test_an_engine_saves_and_another_request_loads(self):
        with Cluster(servers=2) as cluster:
            self.use(cluster)
            kv_caches = [mla_layer() for _ in range(LAYERS)]
            self.fill(kv_caches)
            adapter = Adapter(kv_caches)
            self.addCleanup(adapter.close)
            self.assertTrue(adapter.inited)
            self.assertIsInstance(adapter.cc, ContextCache_v1)
            hashes = chained_hashes(list(range(1000, 1000 + 6 * BLOCK_SIZE)))
            self.assertTrue(any(h < 0 for h in hashes + [-1]))

            future = adapter.async_load(hashes, [10, 11, 12, 13, 14, 15])
            self.assertTrue(future)
            self.assertEqual(adapter.finished(future).success, 0)
            saved = adapter.finished(adapter.async_save(hashes[:4], [0, 1, 2, 3]))
            self.assertEqual((saved.success, saved.total), (4, 4))
            loaded = adapter.finished(adapter.async_load(hashes, [13, 12, 11, 10, 14, 15]))
            self.assertEqual((loaded.success, loaded.total), (4, 6))
            self.assertIn('4', str(loaded))
            for layer in kv_caches:
                for tensor in layer:
                    for source, target in ((0, 13), (1, 12), (2, 11), (3, 10)):
                        self.assertTrue((tensor.host()[source] == tensor.host()[target]).all())
            found = adapter.cc.exists(hashes, adapter.option)
            self.assertEqual((found.success, found.total), (4, 6))
            self.assertEqual(adapter.cc.exists(hashes=hashes[1:]).success, 3)

            # Positionally, synchronously, and as chunks of a layer group.
            result = adapter.cc.save(adapter.slots([4]), [-2 ** 63], [BLOCK_SIZE], adapter.option)
            self.assertEqual(result.success, 1)
            result = adapter.cc.load(hashes=[-2 ** 63, 0xABCD], chunk_descs=[[(20 * BLOCK_SIZE, BLOCK_SIZE), (0, BLOCK_SIZE)]],
                                     option=adapter.option)
            self.assertEqual((result.success, result.total), (1, 2))
            self.assertTrue((kv_caches[1][0].host()[20] == kv_caches[1][0].host()[4]).all())
            with self.assertRaises(EmsException) as caught:
                adapter.cc.save(slot_mapping=[0, 1], hashes=[1], offsets=[BLOCK_SIZE], option=adapter.option)
            self.assertEqual(caught.exception.status_code(), EmsErrorCode.EMS_INVALID_ARGUMENT)
            self.assertIsInstance(caught.exception.message(), str)

    def test_a_pool_that_comes_later_is_found_by_the_health_thread(self):
        self.assertFalse(Ems.check_health())
        self.assertIsNone(Ems.get_cc())
        with Cluster(servers=1, controller_flags=['damping_ms=0']) as cluster:
            self.use(cluster)
            address = cluster.controller.address
            cluster.kill_servers()
            cluster.controller.kill()
            adapter = Adapter([mla_layer()])
            self.addCleanup(adapter.close)
            self.assertFalse(adapter.inited)
            self.assertEqual(adapter.codes[0], 'EMS_RECOVERD_ERROR')
            self.assertIsNone(Ems.get_cc())
            cluster.controller.start()
            cluster.controller.wait_ready()
            self.assertEqual(cluster.controller.address, address)
            cluster.start_servers()
            until(lambda: adapter.inited, 20, 'the health thread has initialised')
            until(lambda: adapter.finished(adapter.async_save([5], [0])).success == 1, 10, 'a save works')
            self.assertEqual(adapter.cc.exists([5], adapter.option).success, 1)

    def test_health_is_asked_from_other_threads_while_data_moves(self):
        with Cluster(servers=2) as cluster:
            self.use(cluster)
            adapter = Adapter([mla_layer() for _ in range(LAYERS)])
            self.addCleanup(adapter.close)
            answers, stop = [], threading.Event()

            def ask():
                while not stop.is_set():
                    answers.append(Ems.check_health())
            threads = [threading.Thread(target=ask) for _ in range(3)]
            for thread in threads:
                thread.start()
            for round_number in range(40):
                hashes = [round_number * 100 - 5000 + i for i in range(8)]
                saved, loaded = adapter.async_save(hashes, list(range(8))), adapter.async_load(hashes, list(range(8, 16)))
                self.assertEqual(adapter.finished(saved).success, 8)
                adapter.finished(loaded)
                self.assertEqual(adapter.finished(adapter.async_load(hashes, list(range(16, 24)))).success, 8)
            stop.set()
            for thread in threads:
                thread.join()
            self.assertTrue(answers and all(answers))


class FirstGenerationTest(unittest.TestCase):
    def test_ranks_save_shares_under_rank_0s_keys_and_all_load(self):
        with Cluster(servers=2) as cluster:
            os.environ['EMS_CONTROLLER'] = cluster.address
            self.addCleanup(os.environ.pop, 'EMS_CONTROLLER', None)
            tensors = [NpuTensor((8, 512)) for _ in range(LAYERS)]
            for n, tensor in enumerate(tensors):
                tensor.host()[:] = numpy.arange(8 * 512).reshape(8, 512) + n

            def buffers(block):
                return [KvBufferWrapper(t.data_ptr() + block * 1024, 1024) for t in tensors]
            keys = [f'vllm@cc_kvstore@_@ns@pp1@tp2@0@{-block * 977}' for block in range(4)]
            option = CcKvOption(timeout=3000)
            for rank in range(2):
                config = CcConfig(rank_id=rank, device_id=rank, model_id='llama2-13b', tp_world_size=2)
                Ems.init(EmsConfig(cc_config=config, access_id='cc@a', access_key=''))
                cc = Ems.get_cc()
                self.assertIsInstance(cc, ContextCaching)
                mine = [block for block in range(4) if block % 2 == rank]
                future = cc.async_save(option, [keys[b] for b in mine], [buffers(b) for b in mine])
                self.assertEqual(future.result().success, 2)
                Ems.shutdown()
            Ems.init(EmsConfig(cc_config=CcConfig(rank_id=1, device_id=1, model_id='llama2-13b', tp_world_size=2),
                               access_id='cc@a'))
            self.addCleanup(Ems.shutdown)
            cc = Ems.get_cc()
            future = cc.async_load(option, key_list=keys + ['absent'], value_list=[buffers(b) for b in (4, 5, 6, 7, 0)])
            result = future.result()
            self.assertEqual((result.success, result.total), (4, 5))
            for tensor in tensors:
                self.assertTrue((tensor.host()[:4] == tensor.host()[4:]).all())
            self.assertEqual(cc.load(option, keys[:1], [buffers(7)]).success, 1)
            self.assertEqual(cc.save(option, ['absent'], [buffers(7)]).success, 1)


class NamesTest(unittest.TestCase):
    def test_codes_are_an_enum_and_one(self):
        self.assertIs(EmsErrorCode, DocumentedErrorCode)
        self.assertEqual({code.name for code in EmsErrorCode},
                         {'EMS_INVALID_ARGUMENT', 'EMS_IO_ERROR', 'EMS_IO_TIMEOUT', 'EMS_INTERNAL_ERROR', 'EMS_RECOVERD_ERROR'})

    def test_defaults(self):
        option, config = CcKvOption(), CcConfig_v1(rank_id=8, device_id=0, model_id='llama2-13b')
        self.assertEqual((option.write_rcache, option.read_local_only, option.timeout), (True, False, 5000))
        self.assertEqual((config.tp_world_size, config.pp_world_size, config.rank_in_tp_group, config.rank_in_pp_group,
                          config.llm_engine), (1, 1, 0, 0, 'vllm'))
        whole = EmsConfig()
        self.assertEqual((whole.cc_config, whole.cc_config_v1, whole.access_id, whole.access_key), (None,) * 4)
        self.assertEqual(CcConfig(rank_id=8, device_id=0, model_id='llama2-13b').tp_world_size, 1)


if __name__ == '__main__':
    unittest.main()
