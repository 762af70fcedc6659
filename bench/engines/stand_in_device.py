"""A device of torch's for machines that have none: tensors of the CPU that are taken for a device's, whose copies run at once.

It shows that the code for devices moves the right bytes, and nothing of how fast it is or of what comes behind what.
"""
import contextlib

import torch
from ems import tensors

NAME = 'stand_in'
_storages = set()


class Event:
    def synchronize(self):
        pass


class Stream:
    def __init__(self, device=None, priority=0):
        pass

    def record_event(self):
        return Event()

    def wait_event(self, event):
        pass

    def synchronize(self):
        pass


class Runtime:
    """What torch.cuda.cudart() is."""
    pinned = {}  # address → bytes

    @staticmethod
    def cudaHostRegister(address, size, flags):  # pylint: disable=invalid-name
        Runtime.pinned[address] = size
        return flags

    @staticmethod
    def cudaHostUnregister(address):  # pylint: disable=invalid-name
        return 0 if Runtime.pinned.pop(address, 0) else 1


class Accelerator:
    """What torch.cuda is."""
    Stream = Stream
    _engine = Stream()

    @staticmethod
    def current_stream(device=None):
        return Accelerator._engine

    @staticmethod
    @contextlib.contextmanager
    def stream(stream):
        yield

    @staticmethod
    def synchronize():
        pass

    @staticmethod
    def device(device):
        return contextlib.nullcontext()

    @staticmethod
    def cudart():
        return Runtime


def on_device(tensor):
    """The tensor, which is one of the device from now on; as are its slices."""
    _storages.add(tensor.storage().data_ptr())
    return tensor


def _device_of(tensor):
    is_there = isinstance(tensor, torch.Tensor) and tensor.storage().data_ptr() in _storages
    return NAME if is_there else 'cpu'


def install():
    """Pinned memory is a copy: .cpu() of the device's tensors is these themselves."""
    setattr(torch, NAME, Accelerator)
    tensors.device_of = _device_of
    torch.Tensor.pin_memory = torch.Tensor.clone
    empty = torch.empty
    torch.empty = lambda *args, pin_memory=False, **more: empty(*args, **more)
