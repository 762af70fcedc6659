"""The drop-in surface: what it refuses, what it keeps apart, and its corners."""
import os
import time
import unittest
from unittest import mock

import numpy
from cluster import Cluster
from ems import (CcConfig, CcConfig_v1, CcKvOption, Client, ContextCache, Ems, EmsConfig, EmsErrorCode, EmsException,
                 KvBufferWrapper, KVCacheType, PrimaryKey)
from npu_tensor import NpuTensor

BLOCK_SIZE, BLOCKS = 4, 16
OPTION = CcKvOption(timeout=3000)


def config(**fields):
    return CcConfig_v1(**{**{'rank_id': 0, 'device_id': 0, 'model_id': 'model'}, **fields})


def layers(count=2, heads=2, dtype='bfloat16', blocks=BLOCKS):
    return [[NpuTensor((blocks, BLOCK_SIZE, heads, 8), dtype) for _ in 'kv'] for _ in range(count)]


def pages(*numbers):
    return [page * BLOCK_SIZE + i for page in numbers for i in range(BLOCK_SIZE)]


class DropInTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2).__enter__()
        os.environ['EMS_CONTROLLER'] = cls.cluster.address

    @classmethod
    def tearDownClass(cls):
        del os.environ['EMS_CONTROLLER']
        cls.cluster.stop()

    def setUp(self):
        self.addCleanup(Ems.shutdown)

    def open(self, whole, kvcache=None, order=None):
        Ems.shutdown()
        Ems.init(whole if isinstance(whole, EmsConfig) else EmsConfig(cc_config_v1=whole))
        cc = Ems.get_cc()
        if kvcache is not None:
            cc.register_kvcache(kvcache, order=order)
        return cc

    def refuses(self, call, *args, **kwargs):
        with self.assertRaises(EmsException) as caught:
            call(*args, **kwargs)
        self.assertEqual(caught.exception.status_code(), EmsErrorCode.EMS_INVALID_ARGUMENT)
        self.assertTrue(caught.exception.message())

    def test_bad_configurations_are_refused_before_the_pool_is_asked(self):
        for whole in (None, config(), EmsConfig(cc_config_v1=CcConfig(0, 0, 'm')), EmsConfig(cc_config='x'),
                      EmsConfig(cc_config=config(), cc_config_v1=config()), EmsConfig(access_id='x' * 513), EmsConfig(access_id=5)):
            self.refuses(Ems.init, whole)
        for fields in ({'rank_id': -1}, {'device_id': '0'}, {'model_id': ''}, {'model_id': 'x' * 513}, {'tp_world_size': 0},
                       {'rank_in_tp_group': 1}, {'pp_world_size': 2, 'rank_in_pp_group': 2}, {'llm_engine': ''},
                       {'kvcache_type': 'NONE'}):
            self.refuses(Ems.init, EmsConfig(cc_config=config(**fields)))
        for fields in ({'model_id': '\ud800'}, {'llm_engine': 'vllm\udfff'}, {'tp_world_size': 2 ** 40},
                       {'tp_world_size': 2 ** 40, 'rank_in_tp_group': 2 ** 39}, {'pp_world_size': 2 ** 70}):
            self.refuses(Ems.init, EmsConfig(cc_config=config(**fields)))
        for fields in ({'access_id': '\ud800'}, {'access_key': '\ud800'}):
            self.refuses(Ems.init, EmsConfig(cc_config=config(), **fields))
        with mock.patch.dict(os.environ, {'EMS_NAMESPACE': '\udcff'}):
            self.refuses(Ems.init, EmsConfig(cc_config=config()))
        self.assertIsNone(Ems.get_cc())

    def test_init_again_with_the_same_is_nothing_and_with_another_refused(self):
        cc = self.open(config())
        Ems.init(EmsConfig(cc_config_v1=config()))
        self.assertIs(Ems.get_cc(), cc)
        self.refuses(Ems.init, EmsConfig(cc_config_v1=config(model_id='other')))
        self.assertIs(Ems.get_cc(), cc)

    def test_without_a_configuration_there_is_no_context_caching(self):
        Ems.init(EmsConfig())
        self.assertIsNone(Ems.get_cc())
        self.assertTrue(Ems.check_health())

    def test_slots_that_make_no_sense_are_refused(self):
        cc = self.open(config(), layers())
        for call in (cc.save, cc.load, cc.async_save, cc.async_load):
            for slots, hashes, offsets, option in (
                    ([], [], [], OPTION), ([], [1], [0], OPTION), (pages(0), [], [], OPTION), (pages(0), [1], [], OPTION),
                    (pages(0), [1], [3], OPTION), (pages(0), [1], [5], OPTION), (pages(0), [1], [-4], OPTION),
                    ([0, 1, 2, 3, 4, 5], [1, 2], [4, 4], OPTION), (pages(0), [1, 2], [4], OPTION),
                    (pages(0, 1), [1, 1], [4, 4], OPTION), (pages(BLOCKS), [1], [4], OPTION), ([-1, 0, 1, 2], [1], [4], OPTION),
                    (pages(0), ['1'], [4], OPTION), (pages(0), [1.5], [4], OPTION), (pages(0), [2 ** 64], [4], OPTION),
                    (pages(0), [-2 ** 63 - 1], [4], OPTION), ('0123', [1], [4], OPTION), (None, [1], [4], OPTION),
                    (pages(0), None, [4], OPTION), (pages(0), [1], None, OPTION), (pages(0), [1], [4], CcKvOption(timeout=-1)),
                    (pages(0), [1], [4], CcKvOption(timeout='1')), (pages(0), [1], [4], 'option')):
                with self.subTest(call=call.__name__, slots=slots, hashes=hashes, offsets=offsets):
                    self.refuses(call, slots, hashes, offsets, option)
            for chunks in ([], [[]], [[(0, 4)], [(0, 4)]], [[(0, 4), (4, 4)]], [[(0, 0)]], [[(62, 4)]], [[(-4, 4)]], [[(0,)]], [[5]],
                           [(0, 4)], 5):
                with self.subTest(call=call.__name__, chunks=chunks):
                    self.refuses(call, hashes=[1], chunk_descs=chunks, option=OPTION)
            self.refuses(call, pages(0), [1], [4], OPTION, chunk_descs=[[(0, 4)]])
            self.refuses(call, pages(0), option=OPTION, token_ids=[1, 2, 3, 4], mask=[1, 1, 1, 1])
        self.refuses(cc.save, pages(0), [1], [4], None)
        self.assertEqual(cc.load(pages(0), [1], [4]).success, 0)
        self.assertEqual(cc.load(pages(0), [1], [4], CcKvOption(timeout=2 ** 62)).success, 0)
        for hashes in ([], None, [1, 1], ['x'], [2 ** 64]):
            self.refuses(cc.exists, hashes, OPTION)
        for future in (None, 5, 'future'):
            self.refuses(cc.is_ready, future)
            self.refuses(cc.get_result, future)

    def test_a_kvcache_is_registered_once_and_before_use(self):
        cc = self.open(config())
        self.refuses(cc.save, pages(0), [1], [4], OPTION)
        self.assertEqual(cc.exists([1], OPTION).success, 0)
        for kvcache in (None, [], [[]], [['tensor']], [[numpy.zeros(5)]], 'kvcache', [[numpy.zeros((2, 4, 2, 8))[:, :, :, ::2]]]):
            self.refuses(cc.register_kvcache, kvcache)
        read_only = numpy.zeros((BLOCKS, BLOCK_SIZE, 2, 8), numpy.float32)
        read_only.flags.writeable = False
        self.refuses(cc.register_kvcache, [[read_only]])
        for dtype in (object, 'int64', 'uint16', 'bool'):
            self.refuses(cc.register_kvcache, [[numpy.zeros((BLOCKS, BLOCK_SIZE, 2, 8), dtype)]])
        for device, pointer in (('cuda:0', None), ('npu:0', 4096)):
            far = NpuTensor((BLOCKS, BLOCK_SIZE, 2, 8), device=device)
            if pointer is not None:
                far.data_ptr = lambda: pointer  # pylint: disable=cell-var-from-loop
            self.refuses(cc.register_kvcache, [[far]])
        cc.register_kvcache([tuple(layer) for layer in layers()])
        self.refuses(cc.register_kvcache, layers())

    def test_a_slot_is_loaded_into_once(self):
        kvcache = layers()
        kvcache[0][0].host()[:2] = 5
        cc = self.open(config(model_id='twice'), kvcache)
        self.assertEqual(cc.save(pages(0, 0), [1, 2], [4, 4], OPTION).success, 2)
        for call in (cc.load, cc.async_load):
            self.refuses(call, pages(3, 3), [1, 2], [4, 4], OPTION)
            self.refuses(call, [12, 13, 14, 14], [1], [4], OPTION)
            self.refuses(call, hashes=[1, 2], chunk_descs=[[(12, 4), (15, 4)]], option=OPTION)
        self.assertFalse(kvcache[0][0].host()[3].any())
        self.assertEqual(cc.load(pages(3, 4), [1, 2], [4, 4], OPTION).success, 2)

    def test_what_is_refused_on_submission_counts_as_a_request_without_the_cache(self):
        cc = self.open(config(model_id='refused'))
        self.refuses(cc.async_load, pages(0), [1], [4], OPTION)
        cc.register_kvcache(layers())
        self.assertEqual(Ems.health().degraded_requests, 1)
        self.refuses(cc.async_save, pages(0), [1], [5], OPTION)
        self.refuses(cc.async_save, pages(0), [1], ['4'], OPTION)
        self.assertEqual(Ems.health().degraded_requests, 3)

    def test_what_counts_is_contiguous_from_the_front(self):
        kvcache = layers()
        for tensor in kvcache[0]:
            tensor.host()[:4] = 5
        cc = self.open(config(model_id='contiguous'), kvcache)
        self.assertEqual(cc.save(pages(0, 2, 3), [10, 12, 13], [4] * 3, OPTION).success, 3)
        self.assertEqual(cc.exists([10, 11, 12, 13], OPTION).success, 1)
        result = cc.load(pages(8, 9, 10, 11), [10, 11, 12, 13], [4] * 4, OPTION)
        self.assertEqual((result.success, result.total), (1, 4))
        self.assertEqual(cc.exists([11, 10], OPTION).success, 0)
        self.assertTrue((kvcache[0][0].host()[8] == 5).all())
        self.assertFalse(kvcache[0][0].host()[9].any())

    def test_arrays_and_unsigned_hashes_are_taken(self):
        cc = self.open(config(model_id='arrays'), layers())
        hashes = [2 ** 64 - 1, 0xABCD]
        self.assertEqual(cc.save(numpy.array(pages(0, 1)), hashes, numpy.array([4, 4], numpy.int32), OPTION).success, 2)
        self.assertEqual(cc.exists(numpy.array(hashes, numpy.uint64), OPTION).success, 2)
        self.assertEqual(cc.exists([-1], OPTION).success, 0)
        self.assertEqual(cc.load(tuple(pages(3, 4)), tuple(hashes), (4, 4), OPTION).success, 2)

    def test_callers_that_differ_share_nothing(self):
        same = dict(model_id='apart', tp_world_size=2, pp_world_size=2)
        kvcache = layers()
        cc = self.open(config(**same), kvcache)
        self.assertEqual(cc.save(pages(0), [1], [4], OPTION).success, 1)
        for fields in ({'model_id': 'apart2'}, {'tp_world_size': 4}, {'pp_world_size': 4}, {'rank_in_tp_group': 1},
                       {'rank_in_pp_group': 1}, {'llm_engine': 'vllm@other'}):
            with self.subTest(fields):
                self.assertEqual(self.open(config(**{**same, **fields})).exists([1], OPTION).success, 0)
        for fields in ({'access_id': 'tenant@1'}, {'access_key': 'k' * 32}):
            with self.subTest(fields):
                self.assertEqual(self.open(EmsConfig(cc_config_v1=config(**same), **fields)).exists([1], OPTION).success, 0)
        for fields in ({'access_id': ''}, {'access_key': ''}):
            self.assertEqual(self.open(EmsConfig(cc_config=config(**same), **fields)).exists([1], OPTION).success, 1)
        self.assertEqual(self.open(config(**same, rank_id=3, device_id=1)).exists([1], OPTION).success, 1)

    def test_ranks_of_mla_share_one_copy(self):
        def rank(number):
            one = config(model_id='latent', tp_world_size=2, rank_in_tp_group=number)
            one.kvcache_type = KVCacheType.MLA
            return one
        self.assertEqual(self.open(rank(0), layers()).save(pages(0), [1], [4], OPTION).success, 1)
        self.assertEqual(self.open(rank(1), layers()).load(pages(5), [1], [4], OPTION).success, 1)

    def test_another_layout_sees_misses(self):
        self.assertEqual(self.open(config(model_id='layouts'), layers()).save(pages(0), [1], [4], OPTION).success, 1)
        for kvcache in (layers(dtype='float16'), layers(heads=4), layers(count=3)):
            cc = self.open(config(model_id='layouts'), kvcache)
            self.assertEqual(cc.load(pages(0), [1], [4], OPTION).success, 0)
        self.assertEqual(self.open(config(model_id='layouts'), layers(blocks=9)).load(pages(8), [1], [4], OPTION).success, 1)

    def test_a_changed_layout_takes_over_what_it_could_not_load(self):
        for after in (layers(dtype='float16'), layers(count=3)):  # other numbers; another length
            self.assertEqual(self.open(config(model_id='changed'), layers()).save(pages(0), [1], [4], OPTION).success, 1)
            cc = self.open(config(model_id='changed'), after)
            self.assertEqual(cc.exists([1], OPTION).success, 1)
            self.assertEqual(cc.load(pages(0), [1], [4], OPTION).success, 0)
            self.assertEqual(cc.save(pages(0), [1], [4], OPTION).success, 1)
            self.assertEqual(cc.load(pages(1), [1], [4], OPTION).success, 1, 'for ever a hit that cannot be loaded')
            before = self.open(config(model_id='changed'), layers())
            self.assertEqual(before.load(pages(0), [1], [4], OPTION).success, 0)
            self.assertEqual(before.save(pages(0), [1], [4], OPTION).success, 1)

    def test_slots_in_any_order_are_those_of_each_token(self):
        kvcache = layers(1, blocks=64)
        rng = numpy.random.default_rng(7)
        for tensor in kvcache[0]:
            tensor.host()[:] = rng.integers(1, 65535, tensor.shape, numpy.uint16)
        slots_of = 64 * BLOCK_SIZE
        half = slots_of // 2
        cc = self.open(config(model_id='any-order'), kvcache, order='NHD')
        for round_number in range(40):
            # Pieces of consecutive slots of all lengths, cut into blocks anywhere.
            cuts = numpy.sort(rng.choice(half, rng.integers(1, half), replace=False))
            pieces = numpy.split(numpy.arange(half), cuts)
            rng.shuffle(pieces)
            from_slots = numpy.concatenate(pieces)[:rng.integers(1, half)]
            to_slots = half + rng.permutation(half)[:len(from_slots)]
            ends = numpy.sort(rng.choice(len(from_slots), rng.integers(0, min(20, len(from_slots))), replace=False))
            offsets = [int(n) for n in numpy.diff([0, *ends, len(from_slots)]) if n]
            hashes = [round_number * 100 + i for i in range(len(offsets))]
            as_given = (list, tuple, numpy.array, lambda ints: numpy.array(ints, numpy.int32))[round_number % 4]
            self.assertEqual(cc.save(as_given(from_slots.tolist()), hashes, offsets, OPTION).success, len(hashes))
            self.assertEqual(cc.load(as_given(to_slots.tolist()), hashes, offsets, OPTION).success, len(hashes))
            for tensor in kvcache[0]:
                by_slot = tensor.host().reshape(slots_of, -1)
                self.assertTrue((by_slot[to_slots] == by_slot[from_slots]).all(), f'round {round_number}')

    def test_refusals_are_in_our_own_words(self):
        cc = self.open(EmsConfig(cc_config=CcConfig(0, 0, 'words'), cc_config_v1=config(model_id='words')), layers())
        tensor = NpuTensor((4, 64))
        buffer = KvBufferWrapper(tensor.data_ptr(), 128)
        changed = KvBufferWrapper(tensor.data_ptr(), 128)
        changed.length = 2 ** 64
        wrong = NpuTensor((BLOCKS, BLOCK_SIZE, 2, 8))
        wrong.shape = (BLOCKS, BLOCK_SIZE, 2, 2 ** 40)
        for call, args, words in (
                (cc.save, (OPTION, ['\ud800'], [[buffer]]), 'surrogates'),
                (cc.load, (OPTION, [PrimaryKey('a', 'b\udfff')], [[buffer]]), 'surrogates'),
                (cc.save, (OPTION, ['key'], [[changed]]), 'length'),
                (cc.load, ([-1, 0, 1, 2], [1], [4], OPTION), 'slot -1'),
                (cc.load, ([0, 1, 2, -3], [1], [4], OPTION), 'slot -3'),
                (cc.async_save, ([2 ** 70, 0, 1, 2], [1], [4], OPTION), '64 bits'),
                (cc.save, ([2 ** 64 - 1, 0, 1, 2], [1], [4], OPTION), 'slot'),
                (cc.save, (pages(0), [2 ** 70], [4], OPTION), '64 bits'),
                (cc.save, (pages(0), [1], ['4'], OPTION), 'offsets must hold ints'),
                (cc.exists, (['\ud800'], OPTION), 'hashes must hold ints'),
                (KvBufferWrapper, (2 ** 64, 5), 'data_ptr'),
                (self.open(config(model_id='words')).register_kvcache, ([[wrong]],), 'head_size')):
            with self.subTest(words=words), self.assertRaises(EmsException) as caught:
                call(*args)
            self.assertEqual(caught.exception.status_code(), EmsErrorCode.EMS_INVALID_ARGUMENT)
            self.assertIn(words, caught.exception.message())
            for pybind in ('incompatible', 'Unable to cast', 'std::', 'INVALID_ARGUMENT'):
                self.assertNotIn(pybind, caught.exception.message())
        cc = self.open(config(model_id='words'), layers())
        self.assertEqual(cc.load(pages(0), [1], [4], CcKvOption(timeout=2 ** 70)).success, 0)
        self.refuses(cc.load, hashes=[1], chunk_descs=[[(0, -4)]], option=OPTION)

    def test_layer_groups_have_chunks_of_their_own(self):
        kvcache = layers(1) + [[NpuTensor((8, 2, 1, 4))]] + layers(1)
        kvcache[1][0].host()[3] = 7
        kvcache[2][0].host()[1] = 8
        cc = self.open(config(model_id='groups'), kvcache)
        self.refuses(cc.save, pages(0), [1], [4], OPTION)
        chunks = [[(4, 4)], [(6, 2)]]
        self.assertEqual(cc.save(hashes=[1], chunk_descs=chunks, option=OPTION).success, 1)
        future = cc.async_load(hashes=[1], chunk_descs=[[(40, 4)], [(0, 2)]], option=OPTION)
        self.assertEqual(cc.get_result(future).success, 1)
        self.assertTrue((kvcache[1][0].host()[0] == 7).all() and (kvcache[2][0].host()[10] == 8).all())
        cc = self.open(config(model_id='groups'))
        cc.register_kvcache(kvcache, [[0, 2], [1]])
        self.assertEqual(cc.load(hashes=[1], chunk_descs=chunks, option=OPTION).success, 1)
        self.refuses(self.open(config()).register_kvcache, kvcache, [[0], [1]])

    def test_other_tokens_of_layer_groups_are_a_miss_though_their_bytes_are_as_many(self):
        kvcache = [[NpuTensor((BLOCKS, BLOCK_SIZE, 1, 8))], [NpuTensor((8, 2, 1, 8))]]
        cc = self.open(config(model_id='tokens'), kvcache)
        self.assertEqual(cc.save(hashes=[1], chunk_descs=[[(0, 4)], [(0, 2)]], option=OPTION).success, 1)
        self.assertEqual(cc.load(hashes=[1], chunk_descs=[[(8, 2)], [(8, 4)]], option=OPTION).success, 0)
        self.assertEqual(cc.load(hashes=[1], chunk_descs=[[(8, 4)], [(8, 2)]], option=OPTION).success, 1)

    def test_chunks_that_change_while_they_are_read(self):
        cc = self.open(config(model_id='changing'), layers())

        class Slot:
            def __index__(self):
                chunks[1:] = groups[1:] = ['no chunk', 'no chunk']
                return 0

        chunks = [(Slot(), 4), (4, 4)]
        groups = [chunks]
        self.assertEqual(cc.save(hashes=[1, 2], chunk_descs=groups, option=OPTION).success, 2)

    def test_reads_of_this_machine_only(self):
        cc = self.open(config(model_id='local'), layers())
        self.assertEqual(cc.save(pages(0, 1), [1, 2], [4, 4], OPTION).success, 2)
        local = CcKvOption(read_local_only=True)  # all servers of this test are here
        self.assertEqual(cc.load(pages(2, 3), [1, 2], [4, 4], local).success, 2)
        self.assertEqual(cc.exists([1, 2], local).success, 2)

    def test_first_generation_checks_its_arguments(self):
        cc = self.open(EmsConfig(cc_config=CcConfig(0, 0, 'first')))
        tensor = NpuTensor((4, 64))
        buffer = KvBufferWrapper(tensor.data_ptr(), 128)
        for keys, values in (([], []), (['a'], []), (['a'], [[]]), (['a', 'a'], [[buffer], [buffer]]), (['x' * 128], [[buffer]]),
                             ([''], [[buffer]]), ([5], [[buffer]]), ('a', [[buffer]]), (['a'], [buffer]), (['a'], [[5]]),
                             (['a'], None), ([PrimaryKey('', 'b')], [[buffer]])):
            for call in (cc.save, cc.load, cc.async_save, cc.async_load):
                with self.subTest(call=call.__name__, keys=keys):
                    self.refuses(call, OPTION, keys, values)
        self.refuses(cc.save, None, ['a'], [[buffer]])
        self.refuses(cc.save, ['a'], [[buffer]], OPTION)
        for pointer, length in ((0, 5), (5, 0), (-1, 5), (tensor.data_ptr, 5), (None, 5)):
            self.refuses(KvBufferWrapper, pointer, length)

    def test_first_generation_keys_in_two_parts(self):
        cc = self.open(EmsConfig(cc_config=CcConfig(0, 0, 'parts')))
        tensor = NpuTensor((8, 64))
        tensor.host()[:4] = numpy.arange(256).reshape(4, 64)

        def rows(*numbers):
            return [[KvBufferWrapper(tensor.data_ptr() + 128 * n, 128)] for n in numbers]
        keys = [PrimaryKey('request', f'block-{i}') for i in range(3)]
        self.assertEqual(cc.save(OPTION, keys + ['request'], rows(0, 1, 2, 3)).success, 4)
        self.assertEqual(cc.load(OPTION, keys + [PrimaryKey('req', 'uestblock-0')], rows(4, 5, 6, 7)).success, 3)
        self.assertTrue((tensor.host()[4:7] == tensor.host()[:3]).all())

    def test_first_generation_values_of_another_split_are_misses(self):
        cc = self.open(EmsConfig(cc_config=CcConfig(0, 0, 'split')))
        memory = numpy.zeros((3, 8192), numpy.uint8)
        memory[0] = numpy.arange(8192) % 251
        keys = ['layer-by-layer', 'next']

        def value(row, *lengths):
            address = memory[row].ctypes.data
            return [KvBufferWrapper(address + sum(lengths[:i]), length) for i, length in enumerate(lengths)]
        self.assertEqual(cc.save(OPTION, keys, [value(0, 7168, 1024), value(0, 4096)]).success, 2)
        for lengths in ((4096, 4096), (1024, 7168), (8192,)):
            with self.subTest(lengths):
                future = cc.async_load(OPTION, keys, [value(1, *lengths), value(2, 4096)])
                self.assertEqual(future.result().success, 0)
        self.assertEqual(cc.load(OPTION, keys[1:] + keys[:1], [value(2, 4096), value(1, 4096, 4096)]).success, 1)
        self.assertEqual(cc.load(OPTION, keys[:1], [value(1, 7168, 1024)]).success, 1)
        self.assertTrue((memory[1] == memory[0]).all())
        # Who could not load it replaces it: for ever a hit that cannot be loaded otherwise.
        self.assertEqual(cc.load(OPTION, keys[:1], [value(1, 4096, 4096)]).success, 0)
        self.assertEqual(cc.save(OPTION, keys[:1], [value(0, 4096, 4096)]).success, 1)
        self.assertEqual(cc.load(OPTION, keys[:1], [value(1, 4096, 4096)]).success, 1)

    def test_first_generation_values_from_before_they_had_a_seal_are_misses(self):
        cc = self.open(EmsConfig(cc_config=CcConfig(0, 0, 'before')))
        memory = numpy.full(64, 7, numpy.uint8)
        value = [[KvBufferWrapper(memory.ctypes.data, 64)]]
        with Client() as client:
            cache = ContextCache(client, model='before', custom=[('generation', 'v0'), ('access_id', '')])
            client.put(cache.own_key('skey'), bytes(64))
        self.assertEqual(cc.load(OPTION, ['key'], value).success, 0)
        memory[:] = 7
        self.assertEqual(cc.save(OPTION, ['key'], value).success, 1)
        memory[:] = 0
        self.assertEqual(cc.load(OPTION, ['key'], value).success, 1)
        self.assertTrue((memory == 7).all())

    def test_an_address_of_nobody_is_an_internal_error_and_not_a_crash(self):
        cc = self.open(EmsConfig(cc_config=CcConfig(0, 0, 'nowhere')))
        nowhere = [[KvBufferWrapper(4096, 128)]]
        for call in (cc.save, cc.load):
            with self.assertRaises(EmsException) as caught:
                call(OPTION, ['nowhere'], nowhere)
            self.assertEqual(caught.exception.status_code(), EmsErrorCode.EMS_INTERNAL_ERROR)
        future = cc.async_save(OPTION, ['nowhere'], nowhere)
        for _ in range(2):
            with self.assertRaises(EmsException):
                future.result()

    def test_both_generations_in_one_object(self):
        whole = EmsConfig(cc_config=CcConfig(0, 0, 'both'), cc_config_v1=config(model_id='both'))
        cc = self.open(whole, layers())
        tensor = NpuTensor((1, 64))
        value = [[KvBufferWrapper(tensor.data_ptr(), 128)]]
        self.assertEqual(cc.save(OPTION, ['key'], value).success, 1)
        self.assertEqual(cc.async_load(option=OPTION, key_list=['key'], value_list=value).result().success, 1)
        self.assertEqual(cc.save(pages(0), [1], [4], OPTION).success, 1)
        self.assertEqual(cc.exists([1], OPTION).success, 1)

    def test_after_shutdown_calls_are_misses(self):
        cc = self.open(config(model_id='ended'), layers())
        self.assertEqual(cc.save(pages(0), [1], [4], OPTION).success, 1)
        Ems.shutdown()
        begin = time.monotonic()
        self.assertEqual(cc.exists([1], OPTION).success, 0)
        self.assertEqual(cc.load(pages(0), [1], [4], OPTION).success, 0)
        future = cc.async_load(pages(0), [1], [4], OPTION)
        self.assertTrue(cc.is_ready(future))
        self.assertEqual(cc.get_result(future).success, 0)
        self.assertLess(time.monotonic() - begin, 0.1)
        self.assertEqual(self.open(config(model_id='ended')).exists([1], OPTION).success, 1)


if __name__ == '__main__':
    unittest.main()
