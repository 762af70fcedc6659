"""Tensors of models in torch. Exit code 77, which CTest calls skipped, where torch is not."""
import os
import sys
import unittest

from cluster import Cluster
from model_files import gguf, random_bytes, safetensors, write

import ems

try:
    import torch
except ImportError:
    print('skipped: torch is not installed (Debian: python3-torch)')
    sys.exit(77)

DTYPES = {'BOOL': torch.bool, 'U8': torch.uint8, 'I8': torch.int8, 'I16': torch.int16, 'I32': torch.int32, 'I64': torch.int64,
          'F16': torch.float16, 'BF16': torch.bfloat16, 'F32': torch.float32, 'F64': torch.float64}
NEWER = {'F8_E4M3': 'float8_e4m3fn', 'F8_E5M2': 'float8_e5m2'}


def content_of(name, size):
    return bytes(i % 2 for i in range(size)) if name == 'BOOL' else random_bytes(size, len(name))


TENSORS = {}
for _name, _dtype in DTYPES.items():
    TENSORS[_name] = (_name, (8, 12), content_of(_name, 96 * torch.empty(0, dtype=_dtype).element_size()))
for _name in NEWER:
    TENSORS[_name] = (_name, (8, 12), content_of(_name, 96))
TENSORS['scalar'] = ('F32', (), b'\0\0\x80\x3f')
TENSORS['empty'] = ('BF16', (0, 4), b'')


def bytes_of(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b''


class ModelsTorchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(servers=2, server_flags=['models.file_root={folder}']))
        cls.cache = cls.enterClassContext(ems.ModelCache(cls.cluster.address))
        write(os.path.join(cls.cluster.folder, 'st'), {'model.safetensors': safetensors(TENSORS)})
        cls.cache.add('pt/st@v1', os.path.join(cls.cluster.folder, 'st'))

    def test_each_dtype_is_torchs_and_its_bytes_the_files(self):
        streamed = dict(self.cache.load_tensors('pt/st', framework='pt'))
        self.assertEqual(set(streamed), set(TENSORS))
        with self.cache.safe_open('pt/st', framework='pt', device='cpu') as tensors:
            for name, (dtype, shape, content) in TENSORS.items():
                wanted = DTYPES.get(dtype) or getattr(torch, NEWER.get(dtype, ''), torch.uint8)
                for tensor in (tensors.get_tensor(name), streamed[name]):
                    self.assertEqual((tensor.dtype, tuple(tensor.shape)), (wanted, shape), name)
                    self.assertEqual(bytes_of(tensor.reshape(-1)), content, name)
        self.assertEqual(float(streamed['scalar']), 1.0)

    def test_slices_and_ranks(self):
        with self.cache.safe_open('pt/st', framework='pt') as tensors:
            whole = tensors.get_tensor('BF16').view(torch.int16)
            part = tensors.get_slice('BF16')
            for index in (slice(2, 5), (slice(None), slice(3, 7)), 4, (Ellipsis, 3), (slice(1, 3), slice(2, 9))):
                self.assertTrue(torch.equal(part[index].contiguous().view(torch.int16), whole[index]), index)
        for rank in range(2):
            half = dict(self.cache.load_tensors('pt/st', framework='pt', names=['BF16'], rank=rank, ranks=2, axis=1))['BF16']
            self.assertTrue(torch.equal(half.view(torch.int16), whole[:, rank * 6:rank * 6 + 6]))

    def test_tensors_outlive_what_they_came_from_and_may_be_written(self):
        tensors = self.cache.safe_open('pt/st', framework='pt')
        tensor = tensors.get_tensor('F32')
        tensors.close()
        del tensors
        tensor.fill_(3)
        self.assertTrue(bool((tensor == 3).all()))

    def test_gguf(self):
        write(os.path.join(self.cluster.folder, 'gg'),
              {'model.gguf': gguf({'w': ('BF16', (4, 6), content_of('BF16', 48)), 'q': ('Q8_0', (2, 32), content_of('q', 68))})})
        self.cache.add('pt/gg@v1', os.path.join(self.cluster.folder, 'gg'))
        with self.cache.safe_open('pt/gg', framework='pt') as tensors:
            self.assertEqual(tensors.get_tensor('w').dtype, torch.bfloat16)
            self.assertEqual(bytes_of(tensors.get_tensor('w')), content_of('BF16', 48))
            self.assertEqual(tuple(tensors.get_tensor('q').shape), (2, 34))

    @unittest.skipIf(hasattr(torch, 'uint16'), 'this torch has it')
    def test_what_torch_has_no_integers_for_is_said(self):
        write(os.path.join(self.cluster.folder, 'u16'), {'model.safetensors': safetensors({'u': ('U16', (1,), b'12')})})
        self.cache.add('pt/u16@v1', os.path.join(self.cluster.folder, 'u16'))
        with self.assertRaisesRegex(ems.errors.Unimplemented, 'no uint16'):
            self.cache.safe_open('pt/u16', framework='pt').get_tensor('u')


if __name__ == '__main__':
    unittest.main()
