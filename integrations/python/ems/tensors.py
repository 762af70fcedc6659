"""Tensors by what they can say of themselves, so that neither torch nor numpy has to be there.

Understood are numpy arrays, and whatever has data_ptr(), shape, stride() and element_size(): torch tensors, and those
of accelerators whose memory is mapped into this process.
"""
import math

from ems import _ems
from ems.errors import InvalidArgument


def _parts(tensor):
    """(address, shape, strides in bytes, element bytes)"""
    if hasattr(tensor, 'data_ptr'):
        element = int(tensor.element_size())
        strides = tensor.stride() if callable(tensor.stride) else tensor.stride
        return (int(tensor.data_ptr()), tuple(int(n) for n in tensor.shape),
                tuple(int(n) * element for n in strides), element)
    if hasattr(tensor, '__array_interface__'):
        return (int(tensor.__array_interface__['data'][0]), tuple(tensor.shape), tuple(tensor.strides),
                int(tensor.itemsize))
    raise TypeError(f'{type(tensor).__name__} is no tensor: neither data_ptr() nor a numpy array')


def _extent(shape, strides, element):
    """Bytes from the first element to the end of the last."""
    if 0 in shape:
        return 0
    return sum((n - 1) * s for n, s in zip(shape, strides)) + element


def device_of(tensor):
    """The kind of device that a tensor says it is on: 'cpu', 'cuda', 'npu', …"""
    return str(getattr(tensor, 'device', 'cpu')).split(':', maxsplit=1)[0]


def _refuse_far(tensor):
    """Raises BufferError for a device whose memory the CPU cannot read. Others are tried where they are used."""
    if device_of(tensor) in ('cuda', 'xpu', 'meta'):
        raise BufferError(f'a tensor on {tensor.device} has no address in this process; copy it to the CPU first')


def copies(tensor):
    """Whether the tensor can be copied to and from host memory by its own framework, in slices of its first dimension."""
    return all(callable(getattr(tensor, name, None)) for name in ('cpu', 'copy_', '__getitem__'))


def is_same_memory(tensor, host):
    """Whether what is to be a tensor's copy in host memory is that tensor, which was there already."""
    return device_of(tensor) == 'cpu' and _parts(tensor)[0] == _parts(host)[0]


def is_mapped(tensor):
    """Whether this process can read the tensor's first byte by its address."""
    return _ems.is_mapped(_parts(tensor)[0], 1)


def paged_shape(tensor):
    """The shape of a KV tensor. Raises TypeError  no tensor    ValueError  neither 3 nor 4 dimensions"""
    shape = _parts(tensor)[1]
    if len(shape) not in (3, 4):
        raise ValueError(f'a KV tensor has 4 dimensions (blocks, block tokens, heads, head size), not {len(shape)}')
    return shape


def row_bytes(tensor):
    """Bytes of the last dimension."""
    _, shape, _, element = _parts(tensor)
    return shape[-1] * element


def page_bytes(tensor):
    """Bytes of one block, the first dimension, without gaps."""
    _, shape, _, element = _parts(tensor)
    return math.prod(shape[1:]) * element


def _refuse_read_only(tensor):
    """Raises InvalidArgument for an array that may not be written: loads go by its address, which nothing guards."""
    if getattr(tensor, '__array_interface__', {'data': (0, False)})['data'][1]:
        raise InvalidArgument('the array is read-only')


def kept(tensor):
    """What keeps a tensor's memory where it is: itself, and what it stores, which it might exchange or resize."""
    for storage in ('untyped_storage', 'storage'):  # torch before 2.0 has the second alone
        if callable(getattr(tensor, storage, None)):
            return tensor, getattr(tensor, storage)()
    try:
        return tensor, memoryview(tensor)
    except (TypeError, ValueError, BufferError):
        return (tensor,)  # it shows nothing of it


def contiguous_span(tensor):
    """(address, bytes) of a contiguous tensor; called by the extension module for what has no buffer protocol.

    Raises TypeError for what is no tensor, BufferError for one that is not contiguous or not in this process's memory.
    """
    _refuse_far(tensor)
    address, shape, strides, element = _parts(tensor)
    dense = element
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n > 1 and stride != dense:
            raise BufferError('the tensor is not contiguous')
        dense *= n
    return address, dense if 0 not in shape else 0


def paged(tensor, order='NHD', far=False):
    """The fields of a paged KV tensor: [blocks, block tokens, heads, head size], or without heads (3 dimensions).

    order='HND': [blocks, heads, block tokens, head size]. An empty tensor has no bytes. The last dimension must be dense.
    far: its address may be a device's. A dtype that is none of KV is refused by the extension module, with InvalidArgument.
    """
    if not far:
        _refuse_far(tensor)
    _refuse_read_only(tensor)
    address, _, strides, element = _parts(tensor)
    shape = paged_shape(tensor)
    if len(shape) == 3:
        heads_at = 1 if order == 'HND' else 2
        shape = shape[:heads_at] + (1,) + shape[heads_at:]
        strides = strides[:heads_at] + (strides[heads_at],) + strides[heads_at:]
    if any(stride < 0 for stride in strides):
        raise ValueError('a KV tensor with negative strides cannot be paged')
    if 0 in shape:
        return {'data': 0, 'bytes': 0, 'dtype': 'uint8', 'order': order, 'blocks': 0, 'block_tokens': 0, 'heads': 1,
                'head_size': 0, 'block_stride': 0, 'token_stride': 0, 'head_stride': 0}
    if shape[3] > 1 and strides[3] != element:
        raise ValueError('the last dimension of a KV tensor must be dense')
    token, head = (2, 1) if order == 'HND' else (1, 2)
    name = str(getattr(tensor, 'dtype', '')).rsplit('.', maxsplit=1)[-1]
    return {'data': address, 'bytes': _extent(shape[:3], strides[:3], shape[3] * element), 'dtype': name,
            'order': order, 'blocks': shape[0], 'block_tokens': shape[token], 'heads': shape[head],
            'head_size': shape[3], 'block_stride': strides[0], 'token_stride': strides[token],
            'head_stride': strides[head]}
