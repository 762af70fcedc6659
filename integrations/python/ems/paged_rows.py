"""Blocks of one paged KV tensor as rows of bytes in host memory, for numpy arrays and for torch tensors of any device."""
import numpy


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


def _torch():
    import torch  # pylint: disable=import-outside-toplevel  # who has such a tensor has it
    return torch
