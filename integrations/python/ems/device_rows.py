"""Blocks of paged tensors of a device as rows of bytes in pinned host memory, moved whole, in one transfer for many.

A row has the block's bytes of all tensors; the device itself takes rows apart, and puts them together. Blocks whose part of each tensor
is large are copied piece by piece, straight to where they belong. numpy is not needed for it.
"""
from ems import device_copies, tensors

DEVICE_BYTES = 64 << 20  # memory of the device for rows that are moved, at a time
_COUNTS_MAX = 16  # of rows moved at a time, of which parts are known


class DeviceRows:
    """Rows of torch tensors on a device with streams; calls are those of ems.paged_rows.HostRows. Threading: one thread."""

    def __init__(self, layers, row, torch, copies, device):
        self._layers, self._row = layers, row
        self._torch, self._copies, self._device = torch, copies, device
        self._behind = None
        self._landing, self._known = None, {}  # memory of the device for rows; number of rows → they, and the tensors' parts of them
        self._at_a_time = max(1, DEVICE_BYTES // max(1, row))
        # (blocks along the first dimension, offset and size in elements of its type; None where rows cannot be seen as of that type)
        self._parts = []
        for tensor, dim, offset, size in layers:
            bits = device_copies.wide_bits_of(tensor, torch).movedim(dim, 0)
            unit = bits.element_size()
            is_even = offset % unit == 0 and row % unit == 0
            self._parts.append((bits, offset, size, slice(offset // unit, (offset + size) // unit) if is_even else None))
        # The time of beginning a copy does not count: through other memory of the device the bytes would go twice.
        self._is_typed = all(of_type is not None for *_, of_type in self._parts)
        self._is_direct = self._is_typed and all(size >= device_copies.DIRECT_BYTES and bits[0].is_contiguous()
                                                 for bits, _, size, _ in self._parts)

    @property
    def row_bytes(self):
        return self._row

    def empty(self, count):
        return self.pinned(count).numpy()

    def pinned(self, count):
        """Rows as a tensor."""
        return self._torch.empty((count, self._row), dtype=self._torch.uint8, pin_memory=True)

    def rows_in(self, memory, count):
        """The same in memory that is there."""
        return self._torch.frombuffer(memory, dtype=self._torch.uint8, count=count * self._row).view(count, self._row)

    def begin(self, mark=None):
        self._behind = mark or self._copies.mark()

    def views(self, rows):
        """The tensors' parts of rows from pinned(), in the shape of the tensors; of aligned_rows_of alone."""
        return [part.view(tensor.dtype) for (_, part), (tensor, _, _, _) in zip(self._seen(rows), self._layers)]

    def load(self, rows, places, ids):
        host = self._tensor(rows)
        with self._copies.behind(self._behind):
            if self._is_direct:
                for bits, part, place, block in self._pieces(host, places, ids):
                    bits[block].copy_(part[place], non_blocking=True)
                return
            for at in range(0, len(ids), self._at_a_time):
                mine = places[at:at + self._at_a_time]
                begin, end = mine[0], mine[-1] + 1
                if len(mine) == end - begin:
                    moved, parts = self._landed(len(mine))
                    moved.copy_(host[begin:end], non_blocking=True)
                else:
                    moved, parts = host[begin:end].to(self._device, non_blocking=True), None
                    moved = moved.index_select(0, self._index([place - begin for place in mine]))
                index = self._index(ids[at:at + self._at_a_time])
                for bits, part in parts or self._seen(moved):
                    bits.index_copy_(0, index, part)

    def save(self, ids, rows):
        torch, host = self._torch, self._tensor(rows)
        with self._copies.behind(self._behind):
            if self._is_direct:
                for bits, part, place, block in self._pieces(host, range(len(ids)), ids):
                    part[place].copy_(bits[block], non_blocking=True)
                return
            for at in range(0, len(ids), self._at_a_time):
                index = self._index(ids[at:at + self._at_a_time])
                moved, parts = self._landed(len(index))
                for (bits, offset, size, of_type), (_, part) in zip(self._parts, parts or self._seen(moved)):
                    taken = bits.index_select(0, index)
                    if of_type is not None:
                        part.copy_(taken)
                    else:
                        moved[:, offset:offset + size] = taken.reshape(len(index), -1).view(torch.uint8)
                host[at:at + len(index)].copy_(moved, non_blocking=True)

    def _pieces(self, host, places, ids):
        """(blocks of a tensor, its part of the rows, number of a row, of a block) of each piece, block by block."""
        parts = list(self._seen(host))
        for place, block in zip(places, ids):
            for bits, part in parts:
                yield bits, part, place, block

    def _landed(self, count):
        """(memory of the device for so many rows, _seen() of it; None where that has to be asked for each time). One is enough: what the
        stream is given comes in order."""
        if self._landing is None or len(self._landing) < count:
            self._landing, self._known = self._torch.empty((count, self._row), dtype=self._torch.uint8, device=self._device), {}
        if count not in self._known:
            if len(self._known) == _COUNTS_MAX:
                self._known.clear()
            rows = self._landing[:count]
            self._known[count] = rows, list(self._seen(rows)) if self._is_typed else None
        return self._known[count]

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


def aligned_rows_of(every, copies, tail=0):
    """DeviceRows of tensors whose first dimension counts blocks, where each tensor's part of a row begins at a multiple of 16 bytes.
    Behind them a row has `tail` bytes, and what is needed for large rows to begin with a page of memory, or small ones with a line."""
    layers, row = [], 0
    for tensor in every:
        size = tensors.page_bytes(tensor)
        layers.append((tensor, 0, row, size))
        row += -(-size // 16) * 16
    unit = 4096 if row >= 1 << 18 else 64
    return DeviceRows(layers, -(-(row + tail) // unit) * unit, device_copies.torch_of(every[0]), copies, every[0].device)
