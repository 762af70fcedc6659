"""Drop-in surface, second generation: what registered tensors may look like, and whether they are reached by address.

A tensor is [blocks, block size, heads, head size] (NHD, what the original documents), or [blocks, heads, block size, head
size] (HND), of which NZ is a kind: [blocks, heads × head size / n, block size, n], with n elements of 32 bytes together.
"""
import os

from ems import _ems, tensors
from ems.cc_v1.staging import Staging

_ORDERS = {'NHD': 'NHD', 'HND': 'HND', 'NZ': 'HND'}
_NZ_ROW_BYTES = 32


class KvCache:
    """Registered tensors. `layouts`: what they may be; `staging`: None when they are read and written by address."""

    def __init__(self, pool, layers, group_desc, order):
        every = [tensor for layer in layers for tensor in layer if 0 not in tensors.paged_shape(tensor)]
        self._group_desc = group_desc
        self._orders, is_stated = _orders_of(every, order or os.environ.get('EMS_KV_ORDER'))
        far = {_is_far(tensor) for tensor in every}
        if len(far) > 1:
            raise BufferError('some tensors are on a device and some are in host memory; register those of one kind')
        is_far = far == {True}
        described = self._described(layers, is_far)
        self._orders = list(described)
        self.layouts = _ems.KvLayouts(list(described.values()), is_stated)
        is_one_group = all(layout.groups == 1 for layout in described.values())
        self.staging = Staging(pool, layers, lambda host: list(self._described(host, False).values()), is_one_group) if is_far else None

    def _described(self, layers, far):
        """The KvLayout of each order in which these tensors are one."""
        kept = [tensors.kept(tensor) for layer in layers for tensor in layer]
        found, refusals = {}, []
        for order in self._orders:
            described = [[tensors.paged(tensor, order, far) for tensor in layer] for layer in layers]
            groups = _paged_alike(described) if self._group_desc is None else _groups_of(self._group_desc, len(layers))
            try:
                found[order] = _ems.KvLayout(list(zip(groups, described)), kept, not far)
            except ValueError as error:
                refusals.append(error)
        if not found:
            raise refusals[0]
        return found


def _orders_of(every, order):
    """(orders that the tensors may have, whether it is sure)"""
    if order is not None:
        if order not in _ORDERS:
            raise ValueError(f'order is {order!r}; it may be {", ".join(_ORDERS)}')
        return [_ORDERS[order]], True
    if all(len(tensor.shape) == 3 or tensor.shape[2] == 1 for tensor in every):
        return ['NHD'], True  # of one head all orders are the same
    may_be_nz = all(tensors.row_bytes(tensor) == _NZ_ROW_BYTES for tensor in every)
    return ['NHD', 'HND'] if may_be_nz else ['NHD'], False


def _is_far(tensor):
    """Whether it has to be copied by its framework: it says that it is on a device, or its address is not this process's."""
    on_device = tensors.device_of(tensor) != 'cpu'
    if tensors.copies(tensor):
        return on_device or not tensors.is_mapped(tensor)
    if not tensors.is_mapped(tensor):
        where = f'is on {tensor.device}' if on_device else 'has an address that is not mapped into this process'
        raise BufferError(f'a tensor {where}, and has no cpu(), copy_() and slices to copy it by; register tensors of the '
                          f'framework itself, or of host memory')
    return False


def _paged_alike(described):
    """The layer group of each layer, by its paging."""
    known = {}
    groups = []
    for layer in described:
        paging = next(((t['blocks'], t['block_tokens']) for t in layer if t['head_size']), None)
        groups.append(known.setdefault(paging, len(known)))
    return groups


def _groups_of(desc, layers):
    """The layer group of each layer, from lists of layer numbers."""
    groups = {layer: group for group, members in enumerate(desc) for layer in members}
    if sorted(groups) != list(range(layers)):
        raise ValueError('store_layer_group_desc must be lists of layer numbers, each layer once')
    return [groups[layer] for layer in range(layers)]
