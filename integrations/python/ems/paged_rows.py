"""Blocks of paged KV tensors as rows of bytes in host memory: of numpy arrays, and of torch tensors of any device.

A row has the block's bytes of all layers. With a device that has streams rows lie in pinned memory and are moved whole, in one
transfer for many; the device itself takes them apart, and puts them together.
"""
import numpy

from ems import device_copies, device_rows


def row_bytes(tensor, dim):
    """Bytes of one block, where dimension `dim` counts blocks."""
    size = tensor.element_size() if hasattr(tensor, 'element_size') else tensor.itemsize
    for at, extent in enumerate(tensor.shape):
        size *= 1 if at == dim else int(extent)
    return size


def gather(tensor, dim, ids, rows):
    """Copies blocks `ids` into `rows`, a numpy array of uint8. Shape: [ids, row_bytes]; rows may be strided."""
    if isinstance(tensor, numpy.ndarray):
        taken = numpy.ascontiguousarray(numpy.moveaxis(tensor, dim, 0)[ids])
        rows[:] = taken.reshape(len(ids), -1).view(numpy.uint8)
        return
    torch = _torch()
    taken = tensor.movedim(dim, 0)[torch.as_tensor(ids, device=tensor.device)].contiguous()
    torch.from_numpy(rows).copy_(taken.reshape(len(ids), -1).view(torch.uint8))


def scatter(rows, tensor, dim, ids):
    """The other way round."""
    shape = [len(ids)] + [int(extent) for at, extent in enumerate(tensor.shape) if at != dim]
    if isinstance(tensor, numpy.ndarray):
        numpy.moveaxis(tensor, dim, 0)[ids] = numpy.ascontiguousarray(rows).view(tensor.dtype).reshape(shape)
        return
    torch = _torch()
    part = torch.from_numpy(numpy.ascontiguousarray(rows)).view(tensor.dtype).reshape(shape)
    tensor.movedim(dim, 0)[torch.as_tensor(ids, device=tensor.device)] = part.to(tensor.device)


class HostRows:
    """Rows of tensors that the CPU reaches, or that their framework copies one by one. layers: (tensor, block dimension, offset in a
    row, bytes) each. Threading: one thread."""

    def __init__(self, layers, row):
        self._layers, self._row = layers, row

    def empty(self, count):
        return numpy.empty((count, self._row), numpy.uint8)

    def begin(self, mark=None):
        """Copies from now on come behind what the engine has given to the device; or had when it took the mark."""

    def load(self, rows, places, ids):
        """rows[places[i]] → block ids[i] of all tensors. `rows` has to stay until copied() of behind it says so."""
        for tensor, dim, offset, size in self._layers:
            scatter(rows[places, offset:offset + size], tensor, dim, ids)

    def save(self, ids, rows):
        """The other way round: block ids[i] → rows[i]."""
        for tensor, dim, offset, size in self._layers:
            gather(tensor, dim, ids, rows[:, offset:offset + size])

    def copied(self):
        """What has been copied so far; synchronize() waits for it."""
        return self

    def synchronize(self):
        pass

    def join(self):
        """What the engine gives to the device from now on comes behind all copies. Does not wait."""


def rows_of(layers, row):
    """DeviceRows where all tensors are on one device with streams, else HostRows."""
    if not layers:
        return HostRows(layers, row)
    first = layers[0][0]
    every = [tensor for tensor, *_ in layers]
    if any(isinstance(tensor, numpy.ndarray) for tensor in every) or not device_copies.are_on_one_device(every):
        return HostRows(layers, row)
    copies = device_copies.copies_of(first)
    if not device_rows.can_be_rows(first, copies):
        return HostRows(layers, row)
    return device_rows.DeviceRows(layers, row, device_copies.torch_of(first), copies, first.device)


def _torch():
    import torch  # pylint: disable=import-outside-toplevel  # who has such a tensor has it
    return torch
