"""Blocks of paged KV tensors as rows of bytes in host memory: of numpy arrays, and of torch tensors of any device.

A row has the block's bytes of all layers. With a device that has streams rows lie in pinned memory and are moved whole, in one
transfer for many; the device itself takes them apart, and puts them together.
"""
import numpy

from ems import device_copies

DEVICE_BYTES = 64 << 20  # memory of the device for rows that are moved, at a time


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


class DeviceRows(HostRows):
    """Rows of torch tensors on a device with streams."""

    def __init__(self, layers, row, torch, copies, device):
        super().__init__(layers, row)
        self._torch, self._copies, self._device = torch, copies, device
        self._behind = None
        self._at_a_time = max(1, DEVICE_BYTES // max(1, row))
        # (blocks along the first dimension, offset and size in elements of its type; None where rows cannot be seen as of that type)
        self._parts = []
        for tensor, dim, offset, size in layers:
            bits = device_copies.bits_of(tensor, torch).movedim(dim, 0)
            unit = bits.element_size()
            is_even = offset % unit == 0 and row % unit == 0
            self._parts.append((bits, offset, size, slice(offset // unit, (offset + size) // unit) if is_even else None))

    def empty(self, count):
        return self._torch.empty((count, self._row), dtype=self._torch.uint8, pin_memory=True).numpy()

    def begin(self, mark=None):
        self._behind = mark or self._copies.mark()

    def views(self, rows):
        """The tensors' parts of rows from empty(), in the shape of the tensors; of aligned_rows_of alone."""
        host = self._torch.from_numpy(rows)
        found = []
        for (_, part), (tensor, _, _, _) in zip(self._seen(host), self._layers):
            found.append(part.view(tensor.dtype))
        return found

    def load(self, rows, places, ids):
        host = self._torch.from_numpy(rows)
        with self._copies.behind(self._behind):
            for at in range(0, len(ids), self._at_a_time):
                mine = places[at:at + self._at_a_time]
                begin, end = mine[0], mine[-1] + 1
                moved = host[begin:end].to(self._device, non_blocking=True)
                if len(mine) != end - begin:
                    moved = moved.index_select(0, self._index([place - begin for place in mine]))
                index = self._index(ids[at:at + self._at_a_time])
                for bits, part in self._seen(moved):
                    bits.index_copy_(0, index, part)

    def save(self, ids, rows):
        torch, host = self._torch, self._torch.from_numpy(rows)
        with self._copies.behind(self._behind):
            for at in range(0, len(ids), self._at_a_time):
                index = self._index(ids[at:at + self._at_a_time])
                moved = torch.empty((len(index), self._row), dtype=torch.uint8, device=self._device)
                for (bits, offset, size, of_type), (_, part) in zip(self._parts, self._seen(moved)):
                    taken = bits.index_select(0, index)
                    if of_type is not None:
                        part.copy_(taken)
                    else:
                        moved[:, offset:offset + size] = taken.reshape(len(index), -1).view(torch.uint8)
                host[at:at + len(index)].copy_(moved, non_blocking=True)

    def _seen(self, moved):
        """(blocks of a tensor, its part of the rows in the same shape) of each; a copy of it where it is not of the tensor's type."""
        seen = {}  # type → rows of it
        for bits, offset, size, of_type in self._parts:
            if of_type is None:
                part = moved[:, offset:offset + size].clone(memory_format=self._torch.contiguous_format).view(bits.dtype)
            else:
                if bits.dtype not in seen:
                    seen[bits.dtype] = moved.view(bits.dtype)
                part = seen[bits.dtype][:, of_type]
            yield bits, part.view(len(moved), *bits.shape[1:])

    def copied(self):
        return self._copies.event()

    def join(self):
        self._copies.join()

    def _index(self, numbers):
        return device_copies.index_of(self._torch, numbers, self._device)


def can_be_rows(tensor, copies):
    return isinstance(copies, device_copies.StreamCopies) and device_copies.torch_of(tensor) is not None


def aligned_rows_of(every, copies):
    """DeviceRows of tensors whose first dimension counts blocks, where each tensor's part of a row begins at a multiple of 16 bytes."""
    layers, row = [], 0
    for tensor in every:
        size = row_bytes(tensor, 0)
        layers.append((tensor, 0, row, size))
        row += -(-size // 16) * 16
    return DeviceRows(layers, row, device_copies.torch_of(every[0]), copies, every[0].device)


def rows_of(layers, row):
    """HostRows or DeviceRows, by where the first tensor is."""
    if not layers:
        return HostRows(layers, row)
    first = layers[0][0]
    copies = None if isinstance(first, numpy.ndarray) else device_copies.copies_of(first)
    if copies is None or not can_be_rows(first, copies):
        return HostRows(layers, row)
    return DeviceRows(layers, row, device_copies.torch_of(first), copies, first.device)


def _torch():
    import torch  # pylint: disable=import-outside-toplevel  # who has such a tensor has it
    return torch
