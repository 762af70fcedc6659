"""Memory of the drop-in surface: registered tensors stay, and memory that is freed or read-only all the same is an error and no crash."""
import ctypes
import gc
import mmap
import os
import unittest
import weakref

import numpy
from cluster import Cluster
from ems import CcConfig, CcConfig_v1, CcKvOption, Ems, EmsConfig, EmsErrorCode, EmsException, KvBufferWrapper
from ems.tensors import kept
from npu_tensor import NpuTensor

BLOCK_SIZE, BLOCKS = 128, 16  # a page of KV is 4 KiB: whole pages can be protected
OPTION = CcKvOption(timeout=3000)
PROT_NONE, PROT_READ = 0, mmap.PROT_READ
LIBC = ctypes.CDLL(None, use_errno=True)


def protect(tensor, protection):
    result = LIBC.mprotect(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel() * 2), protection)
    if result != 0:
        raise OSError(ctypes.get_errno(), 'mprotect')


def slots(*pages):
    return [page * BLOCK_SIZE + i for page in pages for i in range(BLOCK_SIZE)]


class Torch:
    """A tensor as torch has them: its storage is an object of its own, which it may exchange."""

    class Storage:
        def __init__(self, array):
            self.array = array

    def __init__(self, array):
        self._storage = Torch.Storage(array)
        self.shape, self.dtype, self.device = array.shape, f'torch.{array.dtype}', 'cpu'

    def untyped_storage(self):
        return self._storage

    def exchange(self):
        self._storage = Torch.Storage(self._storage.array.copy())

    def stride(self):
        return tuple(n // self._storage.array.itemsize for n in self._storage.array.strides)

    def element_size(self):
        return self._storage.array.itemsize

    def data_ptr(self):
        return self._storage.array.ctypes.data


class OldTorch(Torch):
    """As before torch 2.0: the storage has another name."""
    untyped_storage = None

    def storage(self):
        return self._storage


class MemoryTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2).__enter__()
        os.environ['EMS_CONTROLLER'] = cls.cluster.address

    @classmethod
    def tearDownClass(cls):
        del os.environ['EMS_CONTROLLER']
        cls.cluster.stop()

    def open(self, model, tensors=()):
        Ems.shutdown()
        self.addCleanup(Ems.shutdown)
        Ems.init(EmsConfig(cc_config=CcConfig(0, 0, model), cc_config_v1=CcConfig_v1(rank_id=0, device_id=0, model_id=model)))
        cc = Ems.get_cc()
        if tensors:
            cc.register_kvcache([list(tensors)])
        return cc

    def fails(self, call, *args, **kwargs):
        with self.assertRaises(EmsException) as caught:
            result = call(*args, **kwargs)
            Ems.get_cc().get_result(result)
        self.assertEqual(caught.exception.status_code(), EmsErrorCode.EMS_INTERNAL_ERROR)
        self.assertTrue(caught.exception.message())

    def test_registered_tensors_stay_though_nobody_else_has_them(self):
        array = numpy.full((BLOCKS, BLOCK_SIZE, 1, 16), 7, numpy.float16)
        torch = Torch(numpy.full((BLOCKS, BLOCK_SIZE, 1, 16), 8, numpy.float16))
        storage = weakref.ref(torch.untyped_storage())
        cc = self.open('stay', [array, torch])
        torch.exchange()
        with self.assertRaises((ValueError, BufferError)):
            array.resize((1,))
        del array, torch
        gc.collect()
        self.assertIsNotNone(storage(), 'what was registered, not only the tensor that had it')
        old = OldTorch(numpy.zeros((BLOCKS, BLOCK_SIZE, 1, 16), numpy.float16))
        self.assertIs(kept(old)[1], old.storage())
        junk = [numpy.full((BLOCKS, BLOCK_SIZE, 1, 16), 9, numpy.float16) for _ in range(20)]  # takes what is free
        self.assertEqual(cc.save(slots(0, 1), [1, 2], [BLOCK_SIZE] * 2, OPTION).success, 2)
        del junk
        fresh = [numpy.zeros((BLOCKS, BLOCK_SIZE, 1, 16), numpy.float16) for _ in range(2)]
        self.assertEqual(self.open('stay', fresh).load(slots(0, 1), [1, 2], [BLOCK_SIZE] * 2, OPTION).success, 2)
        self.assertTrue((fresh[0][:2] == 7).all() and (fresh[1][:2] == 8).all())

    def test_registered_memory_that_is_gone_all_the_same(self):
        tensors = [NpuTensor((BLOCKS, BLOCK_SIZE, 1, 16)) for _ in range(2)]
        cc = self.open('gone', tensors)
        self.assertEqual(cc.save(slots(0), [1], [BLOCK_SIZE], OPTION).success, 1)
        protect(tensors[1], PROT_NONE)
        try:
            for call in (cc.load, cc.async_load):
                self.fails(call, slots(2), [1], [BLOCK_SIZE], OPTION)
            for call in (cc.save, cc.async_save):
                self.fails(call, slots(2), [5], [BLOCK_SIZE], OPTION)
        finally:
            protect(tensors[1], mmap.PROT_READ | mmap.PROT_WRITE)
        self.assertEqual(cc.exists([5], OPTION).success, 0, 'nothing of it was saved')
        self.assertEqual(cc.load(slots(2), [1], [BLOCK_SIZE], OPTION).success, 1, 'the pool is still there')

    def test_registered_memory_that_is_read_only(self):
        tensors = [NpuTensor((BLOCKS, BLOCK_SIZE, 1, 16)) for _ in range(2)]
        tensors[0].host()[3] = 4
        cc = self.open('read-only', tensors)
        protect(tensors[0], PROT_READ)
        try:
            self.assertEqual(cc.save(slots(3), [1], [BLOCK_SIZE], OPTION).success, 1, 'it can be read')
            for call in (cc.load, cc.async_load):
                self.fails(call, slots(2), [1], [BLOCK_SIZE], OPTION)
        finally:
            protect(tensors[0], mmap.PROT_READ | mmap.PROT_WRITE)
        self.assertFalse(tensors[0].host()[2].any())
        self.assertEqual(cc.load(slots(2), [1], [BLOCK_SIZE], OPTION).success, 1)
        self.assertTrue((tensors[0].host()[2] == 4).all())

    def test_pointers_to_read_only_memory_and_to_none(self):
        cc = self.open('pointers')
        tensor = NpuTensor((BLOCKS, BLOCK_SIZE, 1, 16))
        value = [[KvBufferWrapper(tensor.data_ptr(), 4096)]]
        protect(tensor, PROT_READ)
        try:
            self.assertEqual(cc.save(OPTION, ['key'], value).success, 1)
            for call in (cc.load, cc.async_load):
                self.fails(call, OPTION, ['key'], value)
            protect(tensor, PROT_NONE)
            for call in (cc.save, cc.async_save, cc.load, cc.async_load):
                self.fails(call, OPTION, ['key'], value)
        finally:
            protect(tensor, mmap.PROT_READ | mmap.PROT_WRITE)
        self.assertEqual(cc.load(OPTION, ['key'], value).success, 1)
        # The last of very many: more than the kernel is asked for at once.
        many = [[KvBufferWrapper(tensor.data_ptr() + i * 16, 16)] for i in range(1500)] + [[KvBufferWrapper(4096, 16)]]
        self.fails(cc.save, OPTION, [f'many-{i}' for i in range(len(many))], many)


if __name__ == '__main__':
    unittest.main()
