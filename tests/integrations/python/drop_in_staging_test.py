"""The drop-in surface with KV in the memory of a device: copied by the tensors' own framework, and every byte as by address."""
import os
import threading
import time
import unittest
from unittest import mock

import device_tensor
import numpy
from cluster import Cluster, until
from device_tensor import DeviceTensor, HostTensor
from ems import CcConfig_v1, CcKvOption, Ems, EmsConfig, EmsErrorCode, EmsException
from npu_tensor import NpuTensor

BLOCKS, BLOCK_SIZE = 24, 16
SHAPE = (BLOCKS, BLOCK_SIZE, 2, 32)
PAGE_BYTES = 4 * BLOCK_SIZE * 2 * 32 * 2  # of K and V of the layers of layers()
OPTION = CcKvOption(timeout=5000)


def slots(*pages):
    return [page * BLOCK_SIZE + i for page in pages for i in range(BLOCK_SIZE)]


def layers(count=2, **fields):
    return [[DeviceTensor(SHAPE, **fields) for _ in 'kv'] for _ in range(count)]


def filled(kvcache, seed=3):
    """Fills and returns what is in it."""
    rng = numpy.random.default_rng(seed)
    for layer in kvcache:
        for tensor in layer:
            tensor.copy_(HostTensor(rng.integers(1, 65535, tensor.shape, numpy.uint16)))
    return [[tensor.numpy() for tensor in layer] for layer in kvcache]


class StagingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2).__enter__()
        os.environ['EMS_CONTROLLER'] = cls.cluster.address

    @classmethod
    def tearDownClass(cls):
        del os.environ['EMS_CONTROLLER']
        cls.cluster.stop()

    def open(self, kvcache=None, **stated):
        Ems.shutdown()
        self.addCleanup(Ems.shutdown)
        Ems.init(EmsConfig(cc_config_v1=CcConfig_v1(rank_id=0, device_id=0, model_id=self.id().rsplit('.', maxsplit=1)[-1].lower())))
        if kvcache is not None:
            Ems.get_cc().register_kvcache(kvcache, **stated)
        return Ems.get_cc()

    def fails(self, code, call, *args, **kwargs):
        with self.assertRaises(EmsException) as caught:
            call(*args, **kwargs)
        self.assertEqual(caught.exception.status_code(), code)
        return caught.exception.message()

    def check_moved(self, kvcache, before, moved):
        for layer, old in zip(kvcache, before):
            for tensor, was in zip(layer, old):
                expected = was.copy()
                for source, target in moved:
                    expected[target] = was[source]
                self.assertTrue((tensor.numpy() == expected).all())

    def test_pages_go_out_and_come_back_and_no_other_is_touched(self):
        kvcache = layers()
        before = filled(kvcache)
        cc = self.open(kvcache)
        self.assertEqual(cc.save(slots(3, 0, 1), [1, 2, 3], [BLOCK_SIZE] * 3, OPTION).success, 3)
        future = cc.async_load(slots(20, 10, 11), [1, 2, 3], [BLOCK_SIZE] * 3, OPTION)
        until(lambda: cc.is_ready(future), 5, 'it is over')
        self.assertEqual(cc.get_result(future).success, 3)
        self.check_moved(kvcache, before, [(3, 20), (0, 10), (1, 11)])
        self.assertEqual(Ems.health().degraded_requests, 0)

    def test_copies_of_a_stream_come_behind_what_the_engine_gave_its_own_and_are_waited_for(self):
        with mock.patch.object(device_tensor, 'npu', device_tensor.Streams()) as streams:
            kvcache = layers()
            before = filled(kvcache)
            cc = self.open(kvcache)
            computed = HostTensor(numpy.full(SHAPE[1:], 9, numpy.uint16))
            streams.engines.give(lambda: kvcache[1][0][3].copy_(computed))  # a kernel that has not run when the save is called
            self.assertEqual(cc.get_result(cc.async_save(slots(3), [1], [BLOCK_SIZE], OPTION)).success, 1)
            before[1][0][3] = 9
            self.check_moved(kvcache, before, [])
            read = []
            streams.engines.give(lambda: read.append(kvcache[0][0][5].numpy()))  # the last look at what was in the page before
            self.assertEqual(cc.get_result(cc.async_load(slots(5), [1], [BLOCK_SIZE], OPTION)).success, 1)
            self.assertTrue((read[0] == before[0][0][5]).all())
            self.check_moved(kvcache, before, [(3, 5)])

    def test_tensors_of_several_devices_are_refused_where_a_stream_is_one_devices(self):
        kvcache = [layers(1)[0], layers(1, device='npu:1')[0]]
        filled(kvcache)
        with mock.patch.object(device_tensor, 'npu', device_tensor.Streams()):
            cc = self.open()
            self.assertIn('npu:0, npu:1', self.fails(EmsErrorCode.EMS_INVALID_ARGUMENT, cc.register_kvcache, kvcache))
        cc.register_kvcache(kvcache)
        self.assertEqual(cc.save(slots(3), [1], [BLOCK_SIZE], OPTION).success, 1)

    def test_nothing_is_written_behind_the_answer_of_a_load_one_of_whose_copies_failed(self):
        def fail():
            raise RuntimeError('no such copy')
        with mock.patch.object(device_tensor, 'npu', device_tensor.Streams()):
            kvcache = layers()
            filled(kvcache)
            cc = self.open(kvcache)
            self.assertEqual(cc.save(slots(3, 4), [1, 2], [BLOCK_SIZE] * 2, OPTION).success, 2)
            kvcache[1][1].on_copy = fail
            self.fails(EmsErrorCode.EMS_INTERNAL_ERROR, cc.load, slots(9), [1], [BLOCK_SIZE], OPTION)
            kvcache[1][1].on_copy = lambda: None
            for tensor in kvcache[0] + kvcache[1]:  # the engine computes what did not come
                tensor[9].copy_(HostTensor(numpy.full(SHAPE[1:], 7, numpy.uint16)))
            self.assertEqual(cc.load(slots(10), [2], [BLOCK_SIZE], OPTION).success, 1)
            for tensor in kvcache[0] + kvcache[1]:
                self.assertTrue((tensor.numpy()[9] == 7).all())

    def test_an_address_of_nobody_is_copied_too_though_the_tensor_says_cpu(self):
        kvcache = layers(device='cpu')
        before = filled(kvcache)
        cc = self.open(kvcache)
        self.assertEqual(cc.get_result(cc.async_save(slots(1), [1], [BLOCK_SIZE], OPTION)).success, 1)
        self.assertEqual(cc.load(slots(2), [1], [BLOCK_SIZE], OPTION).success, 1)
        self.check_moved(kvcache, before, [(1, 2)])

    def test_an_address_of_a_device_that_is_somebodys_here_too_is_left_alone(self):
        somebodys = numpy.zeros((4, *SHAPE), numpy.uint16)
        kvcache = layers()
        for tensor, array in zip(kvcache[0] + kvcache[1], somebodys):
            tensor.data_ptr = lambda array=array: array.ctypes.data
        before = filled(kvcache)
        cc = self.open(kvcache)
        self.assertEqual(cc.save(slots(1), [1], [BLOCK_SIZE], OPTION).success, 1)
        self.assertEqual(cc.load(slots(2), [1], [BLOCK_SIZE], OPTION).success, 1)
        self.check_moved(kvcache, before, [(1, 2)])
        self.assertFalse(somebodys.any())

    def test_host_memory_and_a_device_share_blocks(self):
        kvcache = layers()
        before = filled(kvcache)
        self.assertEqual(self.open(kvcache).save(slots(4), [1], [BLOCK_SIZE], OPTION).success, 1)
        host = [[NpuTensor(SHAPE, device='cpu') for _ in 'kv'] for _ in range(2)]
        self.assertEqual(self.open(host).load(slots(5), [1], [BLOCK_SIZE], OPTION).success, 1)
        for layer, was in zip(host, before):
            for tensor, old in zip(layer, was):
                self.assertTrue((tensor.host()[5] == old[4]).all())

    def test_a_request_larger_than_the_host_memory_goes_in_turns(self):
        kvcache = layers()
        before = filled(kvcache)
        hashes = list(range(10))
        with mock.patch.dict(os.environ, EMS_STAGING_BYTES=str(2 * 3 * 4 * BLOCK_SIZE * 64 * 2)):  # three pages a lane
            cc = self.open(kvcache, order='NHD')
        self.assertEqual(cc.save(slots(*range(10)), hashes, [BLOCK_SIZE] * 10, OPTION).success, 10)
        self.assertEqual(cc.load(slots(*range(14, 24)), hashes, [BLOCK_SIZE] * 10, OPTION).success, 10)
        self.check_moved(kvcache, before, [(i, 14 + i) for i in range(10)])
        message = self.fails(EmsErrorCode.EMS_INVALID_ARGUMENT, cc.save, slots(*range(4)), [77], [4 * BLOCK_SIZE], OPTION)
        self.assertIn('EMS_STAGING_BYTES', message)

    def test_host_pages_of_a_turn_are_not_used_again_before_the_device_is_done_with_them(self):
        with mock.patch.object(device_tensor, 'npu', device_tensor.Streams()):
            kvcache = layers()
            before = filled(kvcache)
            hashes = list(range(10))
            with mock.patch.dict(os.environ, EMS_STAGING_BYTES=str(2 * 2 * PAGE_BYTES)):  # two turns of a page a lane
                cc = self.open(kvcache, order='NHD')
            self.assertEqual(cc.save(slots(*range(10)), hashes, [BLOCK_SIZE] * 10, OPTION).success, 10)
            self.assertEqual(cc.load(slots(*range(14, 24)), hashes, [BLOCK_SIZE] * 10, OPTION).success, 10)
            self.check_moved(kvcache, before, [(i, 14 + i) for i in range(10)])

    def test_a_miss_ends_the_load_though_turns_behind_it_have_arrived(self):
        kvcache = layers()
        before = filled(kvcache)
        with mock.patch.dict(os.environ, EMS_STAGING_BYTES=str(2 * 4 * PAGE_BYTES)):
            cc = self.open(kvcache, order='NHD')
        there = [0, 1, 2, 4, 5, 6, 7, 8, 9]
        self.assertEqual(cc.save(slots(*there), there, [BLOCK_SIZE] * 9, OPTION).success, 9)
        result = cc.load(slots(*range(14, 24)), list(range(10)), [BLOCK_SIZE] * 10, OPTION)
        self.assertEqual((result.success, result.total), (3, 10))
        self.check_moved(kvcache, before, [(i, 14 + i) for i in range(3)])

    def test_a_block_of_more_pages_than_a_turn_has_takes_the_host_memory_of_all(self):
        kvcache = layers()
        before = filled(kvcache)
        with mock.patch.dict(os.environ, EMS_STAGING_BYTES=str(2 * 4 * PAGE_BYTES)):
            cc = self.open(kvcache, order='NHD')
        self.assertEqual(cc.save(slots(*range(8)), [1, 2], [4 * BLOCK_SIZE] * 2, OPTION).success, 2)
        self.assertEqual(cc.load(slots(*range(10, 18)), [1, 2], [4 * BLOCK_SIZE] * 2, OPTION).success, 2)
        self.check_moved(kvcache, before, [(i, 10 + i) for i in range(8)])

    def test_pages_behind_the_first_miss_are_not_touched(self):
        kvcache = layers()
        before = filled(kvcache)
        cc = self.open(kvcache)
        self.assertEqual(cc.save(slots(0, 2), [10, 12], [BLOCK_SIZE] * 2, OPTION).success, 2)
        result = cc.load(slots(7, 8, 9), [10, 11, 12], [BLOCK_SIZE] * 3, OPTION)
        self.assertEqual((result.success, result.total), (1, 3))
        self.check_moved(kvcache, before, [(0, 7)])

    def test_layer_groups(self):
        kvcache = [[DeviceTensor(SHAPE)], [DeviceTensor((8, 4, 1, 8))]]
        before = filled(kvcache)
        cc = self.open(kvcache)
        self.assertEqual(cc.save(hashes=[1], chunk_descs=[[(BLOCK_SIZE, BLOCK_SIZE)], [(8, 4)]], option=OPTION).success, 1)
        self.assertEqual(cc.load(hashes=[1], chunk_descs=[[(0, BLOCK_SIZE)], [(28, 4)]], option=OPTION).success, 1)
        self.check_moved(kvcache[:1], before[:1], [(1, 0)])
        self.check_moved(kvcache[1:], before[1:], [(2, 7)])

    def test_parts_of_pages_are_refused(self):
        kvcache = layers()
        before = filled(kvcache)
        cc = self.open(kvcache, order='NHD')
        for call in (cc.save, cc.async_load):
            message = self.fails(EmsErrorCode.EMS_INVALID_ARGUMENT, call, slots(1)[:5], [1], [5], OPTION)
            self.assertIn('whole pages', message)
        self.check_moved(kvcache, before, [])

    def test_a_copy_that_fails_is_said_and_counted(self):
        kvcache = layers()
        filled(kvcache)
        cc = self.open(kvcache)

        def fail():
            raise RuntimeError('the device is gone')
        kvcache[1][1].on_copy = fail
        for call in (cc.save, lambda *args: cc.get_result(cc.async_save(*args))):
            message = self.fails(EmsErrorCode.EMS_INTERNAL_ERROR, call, slots(1), [1], [BLOCK_SIZE], OPTION)
            self.assertIn('the device is gone', message)
        self.assertEqual(cc.exists([1], OPTION).success, 0)
        health = Ems.health()
        self.assertEqual((health.serves, health.degraded_requests), (True, 2))
        self.assertIn('the device is gone', health.reason)

    def test_tensors_that_nothing_can_copy_are_refused_and_health_says_so(self):
        far = DeviceTensor(SHAPE)

        class Mute:  # as a tensor of which only the address is known
            shape, device, dtype = far.shape, far.device, far.dtype
            stride, element_size, data_ptr = far.stride, far.element_size, far.data_ptr
        cc = self.open()
        for kvcache in ([[Mute()]], [[far, NpuTensor(SHAPE, device='cpu')]]):
            self.fails(EmsErrorCode.EMS_INVALID_ARGUMENT, cc.register_kvcache, kvcache)
            self.assertFalse(Ems.check_health())
            health = Ems.health()
            self.assertFalse(health.serves)
            self.assertIn('a device' if len(kvcache[0]) > 1 else 'cpu()', health.reason)
        self.assertIn('device', self.fails(EmsErrorCode.EMS_INVALID_ARGUMENT, cc.save, slots(1), [1], [BLOCK_SIZE], OPTION))
        self.assertEqual(Ems.health().degraded_requests, 1)
        cc.register_kvcache([[far]])
        self.assertTrue(Ems.check_health())

    def test_a_request_behind_a_slow_copy_is_over_in_time_and_shutdown_waits_for_the_copy(self):
        kvcache = layers()
        before = filled(kvcache)
        cc = self.open(kvcache)
        self.assertEqual(cc.save(slots(0), [1], [BLOCK_SIZE], OPTION).success, 1)
        copying, go_on = threading.Event(), threading.Event()
        self.addCleanup(go_on.set)

        def stand():
            copying.set()
            self.assertTrue(go_on.wait(20))
        kvcache[0][0].on_copy = stand
        slow = cc.async_load(slots(9), [1], [BLOCK_SIZE], OPTION)
        self.assertTrue(copying.wait(5))
        late = cc.async_load(slots(10), [1], [BLOCK_SIZE], CcKvOption(timeout=100))
        self.fails(EmsErrorCode.EMS_IO_TIMEOUT, cc.get_result, late)
        polled = cc.async_load(slots(11), [1], [BLOCK_SIZE], CcKvOption(timeout=100))
        self.assertFalse(cc.is_ready(polled))
        until(lambda: cc.is_ready(polled), 5, 'it is over without anybody waiting')
        waiting = cc.async_load(slots(12), [1], [BLOCK_SIZE], CcKvOption(timeout=20000))
        child = os.fork()
        if child == 0:
            os._exit(0 if cc.is_ready(waiting) and cc.load(slots(12), [1], [BLOCK_SIZE], OPTION).success == 0 else 1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        closing = threading.Thread(target=Ems.shutdown)
        closing.start()
        until(lambda: cc.is_ready(waiting), 5, 'what waits is over')
        self.assertEqual(cc.get_result(waiting).success, 0)
        self.assertTrue(closing.is_alive(), 'a copy runs')
        go_on.set()
        closing.join(10)
        self.assertFalse(closing.is_alive())
        self.assertTrue(cc.is_ready(slow))
        self.check_moved(kvcache, before, [(0, 9)])
        begin = time.monotonic()
        self.assertEqual(cc.load(slots(5), [1], [BLOCK_SIZE], OPTION).success, 0)
        self.assertLess(time.monotonic() - begin, 1)


if __name__ == '__main__':
    unittest.main()
