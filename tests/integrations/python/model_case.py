"""What the tests of models share: files whose tensors have every dtype, and a cluster whose servers read a folder."""
import os
import unittest

import numpy
from cluster import Cluster
from model_files import random_bytes, write

import ems

MATRIX = numpy.frombuffer(random_bytes(512 * 768 * 4, 1), numpy.uint32).reshape(512, 768)
NORM = numpy.arange(64, dtype=numpy.float32)
DTYPES = {'BOOL': numpy.bool_, 'U8': numpy.uint8, 'I8': numpy.int8, 'U16': numpy.uint16, 'I16': numpy.int16, 'I32': numpy.int32,
          'U32': numpy.uint32, 'I64': numpy.int64, 'U64': numpy.uint64, 'F16': numpy.float16, 'F32': numpy.float32,
          'F64': numpy.float64}
WITHOUT_NUMPY = {'BF16': ('bfloat16', numpy.uint16), 'F8_E4M3': ('float8_e4m3fn', numpy.uint8),
                 'F8_E5M2': ('float8_e5m2', numpy.uint8)}


def whole():
    """A file with a tensor of each dtype, a scalar and an empty tensor."""
    tensors = {'matrix': ('U32', MATRIX.shape, MATRIX.tobytes()), 'norm': ('F32', NORM.shape, NORM.tobytes()),
               'scalar': ('I64', (), numpy.int64(-5).tobytes()), 'empty': ('F16', (0, 3), b'')}
    for seed, (name, dtype) in enumerate(DTYPES.items()):
        content = bytes(i % 2 for i in range(24)) if name == 'BOOL' else random_bytes(24 * numpy.dtype(dtype).itemsize, seed)
        tensors['of ' + name] = (name, (4, 6), content)
    for seed, (name, (_, plain)) in enumerate(WITHOUT_NUMPY.items()):
        tensors['of ' + name] = (name, (4, 6), random_bytes(24 * numpy.dtype(plain).itemsize, 100 + seed))
    return tensors


class ModelCase(unittest.TestCase):
    """A cluster for the class, and versions of models made of files that a test names."""
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(servers=2, server_flags=['models.file_root={folder}']))
        cls.cache = cls.enterClassContext(ems.ModelCache(cls.cluster.address))

    def folder(self, name):
        return os.path.join(self.cluster.folder, name)

    def add(self, model, files, **options):
        write(self.folder(model), files)
        return self.cache.add(model, self.folder(model), 'v1', **options)
