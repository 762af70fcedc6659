"""Bytes of weights as tensors of numpy or torch, whichever the caller has.

What a framework has no dtype for is handed out as unsigned integers of the same size, or, for types that store elements in
blocks (GGUF's quantised ones), as bytes whose last dimension is that of a row.
"""
from ems import errors

# File's name → numpy's; None: ml_dtypes has it, if it is installed.
_NUMPY = {'BOOL': 'bool', 'U8': 'uint8', 'I8': 'int8', 'U16': 'uint16', 'I16': 'int16', 'U32': 'uint32', 'I32': 'int32',
          'U64': 'uint64', 'I64': 'int64', 'F16': 'float16', 'F32': 'float32', 'F64': 'float64', 'C64': 'complex64'}
_ML_DTYPES = {'BF16': ('bfloat16', 'uint16'), 'F8_E4M3': ('float8_e4m3fn', 'uint8'), 'F8_E5M2': ('float8_e5m2', 'uint8'),
              'F8_E4M3FNUZ': ('float8_e4m3fnuz', 'uint8'), 'F8_E5M2FNUZ': ('float8_e5m2fnuz', 'uint8'),
              'F8_E8M0': ('float8_e8m0fnu', 'uint8')}
_TORCH = {'BOOL': 'bool', 'U8': 'uint8', 'I8': 'int8', 'I16': 'int16', 'I32': 'int32', 'I64': 'int64', 'F16': 'float16',
          'BF16': 'bfloat16', 'F32': 'float32', 'F64': 'float64', 'C64': 'complex64'}
# Newer versions of torch have these; else: unsigned bytes, or a refusal.
_TORCH_NEWER = {'F8_E4M3': 'float8_e4m3fn', 'F8_E5M2': 'float8_e5m2', 'F8_E4M3FNUZ': 'float8_e4m3fnuz',
                'F8_E5M2FNUZ': 'float8_e5m2fnuz', 'F8_E8M0': 'float8_e8m0fnu', 'U16': 'uint16', 'U32': 'uint32',
                'U64': 'uint64'}


def _numpy_dtype(name):
    import numpy  # pylint: disable=import-outside-toplevel
    if name in _NUMPY:
        return numpy.dtype(_NUMPY[name])
    if name not in _ML_DTYPES:
        return None
    own, plain = _ML_DTYPES[name]
    try:
        import ml_dtypes  # pylint: disable=import-outside-toplevel,import-error
        return numpy.dtype(getattr(ml_dtypes, own))
    except (ImportError, AttributeError):
        return numpy.dtype(plain)


def _byte_shape(shape, size):
    """A row is the last dimension: what elements take is not a whole number of bytes each."""
    rows = 1
    for extent in shape[:-1]:
        rows *= extent
    return (*shape[:-1], size // rows if rows else 0)


def _make_numpy(dtype, shape, memory):
    import numpy  # pylint: disable=import-outside-toplevel
    kind = _numpy_dtype(dtype)
    if kind is None:
        kind, shape = numpy.dtype('uint8'), _byte_shape(shape, len(memory))
    if len(memory) == 0:
        return numpy.empty(shape, kind)
    return numpy.frombuffer(memory, numpy.uint8).view(kind).reshape(shape)


def _torch_dtype(torch, name):
    if name in _TORCH:
        return getattr(torch, _TORCH[name])
    if name in _TORCH_NEWER:
        newer = getattr(torch, _TORCH_NEWER[name], None)
        if newer is None and name.startswith('U'):
            raise errors.Unimplemented(f'torch {torch.__version__} has no {_TORCH_NEWER[name]}: load with framework="np"')
        return newer or torch.uint8
    return None


def _make_torch(device):
    import torch  # pylint: disable=import-outside-toplevel

    def make(dtype, shape, memory):
        kind = _torch_dtype(torch, dtype)
        if kind is None:
            kind, shape = torch.uint8, _byte_shape(shape, len(memory))
        if len(memory) == 0:
            return torch.empty(tuple(shape), dtype=kind, device=device)
        tensor = torch.frombuffer(memory, dtype=kind).reshape(tuple(shape))
        return tensor if str(device) == 'cpu' else tensor.to(device)
    return make


def maker(framework, device):
    """make(dtype, shape, memory) → tensor, which keeps the memory."""
    if framework in ('np', 'numpy'):
        if str(device) != 'cpu':
            raise errors.InvalidArgument(f'numpy has arrays on the CPU alone, not on {device}')
        return _make_numpy
    if framework in ('pt', 'torch', 'pytorch'):
        return _make_torch(device)
    raise errors.InvalidArgument(f"framework is {framework!r}; it may be 'np' or 'pt'")


def axis_of(axis, name, shape):
    """Along which axis a tensor is cut, or None: it is loaded whole."""
    if callable(axis):
        cut = axis(name, list(shape))
    elif hasattr(axis, 'get'):
        cut = axis.get(name)
    else:
        cut = axis if -len(shape) <= axis < len(shape) else None
    if cut is None:
        return None
    if not -len(shape) <= cut < len(shape):
        raise errors.InvalidArgument(f'{name} of shape {list(shape)} has no axis {cut}')
    return cut % len(shape)


def ranges_of(index, shape):
    """([(begin, end)] of each axis, {axes that are indexed by an int}) of an index as numpy takes it."""
    entries = list(index) if isinstance(index, tuple) else [index]
    if entries.count(Ellipsis) > 1:
        raise IndexError('an index has one … at most')
    if Ellipsis in entries:
        at = entries.index(Ellipsis)
        entries[at:at + 1] = [slice(None)] * (len(shape) - len(entries) + 1)
    if len(entries) > len(shape):
        raise IndexError(f'{len(entries)} indices for a tensor of {len(shape)} dimensions')
    entries += [slice(None)] * (len(shape) - len(entries))
    ranges, dropped = [], set()
    for axis, (entry, extent) in enumerate(zip(entries, shape)):
        if isinstance(entry, slice):
            begin, end, step = entry.indices(extent)
            if step != 1:
                raise IndexError('slices have steps of 1')
            ranges.append((begin, max(begin, end)))
            continue
        if not hasattr(entry, '__index__'):
            raise TypeError(f'an index is made of ints, slices and …, not {type(entry).__name__}')
        at = entry.__index__()
        if not -extent <= at < extent:
            raise IndexError(f'index {at} is outside of axis {axis}, which has {extent} elements')
        ranges.append((at % extent, at % extent + 1))
        dropped.add(axis)
    return ranges, dropped
