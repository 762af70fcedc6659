"""Blocks of paged tensors of a device as rows of bytes in pinned host memory, moved whole, in one transfer for many.

A row has the block's bytes of all tensors; the device itself takes rows apart, and puts them together. numpy is not needed for it.
"""
from ems import device_copies, tensors

DEVICE_BYTES = 64 << 20  # memory of the device for rows that are moved, at a time


class DeviceRows:
    """Rows of torch tensors on a device with streams; calls are those of ems.paged_rows.HostRows. Threading: one thread."""

    def __init__(self, layers, row, torch, copies, device):
        self._layers, self._row = layers, row
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
        return self.pinned(count).numpy()

    def pinned(self, count):
        """Rows as a tensor."""
        return self._torch.empty((count, self._row), dtype=self._torch.uint8, pin_memory=True)

    def begin(self, mark=None):
        self._behind = mark or self._copies.mark()

    def views(self, rows):
        """The tensors' parts of rows from pinned(), in the shape of the tensors; of aligned_rows_of alone."""
        return [part.view(tensor.dtype) for (_, part), (tensor, _, _, _) in zip(self._seen(rows), self._layers)]

    def load(self, rows, places, ids):
        host = self._tensor(rows)
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
        torch, host = self._torch, self._tensor(rows)
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

    def _tensor(self, rows):
        return rows if self._torch.is_tensor(rows) else self._torch.from_numpy(rows)

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
        size = tensors.page_bytes(tensor)
        layers.append((tensor, 0, row, size))
        row += -(-size // 16) * 16
    return DeviceRows(layers, row, device_copies.torch_of(every[0]), copies, every[0].device)
