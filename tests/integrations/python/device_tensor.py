"""A tensor in the memory of an emulated device: no address of it can be read or written but by the tensor's own copies."""
import contextlib
import ctypes
import mmap
import threading

import numpy

_LIBC = ctypes.CDLL(None, use_errno=True)


class _Memory:
    """Pages that are PROT_NONE while no copy runs."""

    def __init__(self, size):
        self._map = mmap.mmap(-1, size)
        self.size = size
        self.address = numpy.frombuffer(self._map, numpy.uint8).ctypes.data
        self._lock = threading.Lock()
        self._users = 0
        self._protect(0)

    def _protect(self, protection):
        if _LIBC.mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size), protection) != 0:
            raise OSError(ctypes.get_errno(), 'mprotect')

    @contextlib.contextmanager
    def open(self):
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._protect(mmap.PROT_READ | mmap.PROT_WRITE)
        try:
            yield self._map
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._protect(0)


class _Tensor:
    """What an engine's tensors say of themselves."""

    def __init__(self, array, device):
        self._array = array
        self.shape, self.device, self.dtype = array.shape, device, 'torch.bfloat16'

    def stride(self):
        return tuple(n // self._array.itemsize for n in self._array.strides)

    def element_size(self):
        return self._array.itemsize

    def data_ptr(self):
        return self._array.ctypes.data


class Event:
    """The end of what a stream had when it was recorded."""

    def __init__(self, stream, end):
        self._stream, self._end = stream, end

    def synchronize(self):
        self._stream.run_until(self._end)


class Streams:
    """What torch.cuda is for tensors of its devices: copies that do not block are done when their stream, or an event behind them,
    is waited for, and not before."""

    class Stream:
        _device = threading.RLock()  # one piece of work at a time, whichever thread waits for it

        def __init__(self, _=None, priority=0):
            self._work, self._given, self._done = [], 0, 0

        def give(self, work):
            with self._device:
                self._work.append(work)
                self._given += 1

        def run_until(self, end):
            with self._device:
                while self._done < end and self._work:
                    self._done += 1
                    self._work.pop(0)()

        def synchronize(self):
            self.run_until(self._given)

        def record_event(self):
            return Event(self, self._given)

        def wait_event(self, event):
            self.give(event.synchronize)

    def __init__(self):
        self.engines, self._here = Streams.Stream(), threading.local()

    def current_stream(self, _=None):
        return getattr(self._here, 'stream', self.engines)

    @contextlib.contextmanager
    def stream(self, stream):
        before = self.current_stream()
        self._here.stream = stream
        try:
            yield
        finally:
            self._here.stream = before


npu = None  # Streams, where a test has them


class HostTensor(_Tensor):
    def __init__(self, array):
        super().__init__(array, 'cpu')
        self.is_pinned = False

    def pin_memory(self):
        self.is_pinned = True
        return self

    def __getitem__(self, part):
        return HostTensor(self._array[part])

    def cpu(self):
        return self

    def copy_(self, source, non_blocking=False):
        source.on_copy()
        if non_blocking:
            npu.current_stream().give(lambda: self.copy_(source))
        else:
            self._array[:] = source.numpy()

    def on_copy(self):
        pass

    def numpy(self):
        return self._array


class DeviceTensor(_Tensor):
    """16-bit elements. `on_copy`: called by each copy to or from the device, before it."""

    def __init__(self, shape, device='npu:0', memory=None, array=None, on_copy=lambda: None):
        self._memory = memory or _Memory(-(-int(numpy.prod(shape)) * 2 // mmap.PAGESIZE) * mmap.PAGESIZE)
        if array is None:
            with self._memory.open() as mapped:
                array = numpy.frombuffer(mapped, numpy.uint16, int(numpy.prod(shape))).reshape(shape)
        super().__init__(array, device)
        self.on_copy = on_copy

    def __getitem__(self, part):
        return DeviceTensor(None, self.device, self._memory, self._array[part], lambda: self.on_copy())

    def cpu(self):
        self.on_copy()
        return HostTensor(self.numpy())

    def copy_(self, source, non_blocking=False):
        self.on_copy()
        if non_blocking:
            npu.current_stream().give(lambda: self.copy_(source))
            return
        with self._memory.open():
            self._array[:] = source.numpy()

    def numpy(self):
        """A copy."""
        with self._memory.open():
            return self._array.copy()
