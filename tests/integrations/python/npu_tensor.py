"""A tensor of an emulated accelerator: torch's protocol (shape, stride(), element_size(), data_ptr(), device) and no buffer protocol."""
import mmap

import numpy


class NpuTensor:
    """Memory of its own, from a mapping; `host()` is how a test looks into it."""

    def __init__(self, shape, dtype='bfloat16', device='npu:0'):
        self._element = {'bfloat16': 2, 'float16': 2, 'float32': 4, 'int8': 1}[dtype]
        count = 1
        for n in shape:
            count *= n
        self._memory = mmap.mmap(-1, max(count * self._element, 1))
        unit = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32}[self._element]
        self._array = numpy.frombuffer(self._memory, unit, count).reshape(shape)
        self._pointer = numpy.frombuffer(self._memory, numpy.uint8).ctypes.data
        self.shape = tuple(shape)
        self.dtype = f'torch.{dtype}'
        self.device = device

    def stride(self):
        return tuple(n // self._element for n in self._array.strides)

    def element_size(self):
        return self._element

    def data_ptr(self):
        return self._pointer

    def numel(self):
        return self._array.size

    def host(self):
        return self._array
