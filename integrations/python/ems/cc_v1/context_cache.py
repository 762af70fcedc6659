"""Drop-in surface, second generation: the KV layout is registered once, blocks are prefix hashes and slots."""
from ems import _ems, tensors
from ems.drop_in_types import CcFuture, CcResult, TakesFutures, checked, invalid, refused, result_of

_KNOWN_KWARGS = {'chunk_descs'}


class ContextCache_v1(TakesFutures):  # pylint: disable=invalid-name
    """save, load and exists by hashes. Thread-safe. What is raised: as ContextCaching.

    A block's value carries the registered layout's fingerprint: a process with another layout sees misses.
    """

    def __init__(self, pool):
        self._pool = pool
        self._layout = None

    def register_kvcache(self, kvcache, store_layer_group_desc=None):
        """Tells where KV lies: layers, each a list of tensors [blocks, block size, heads, head size]. Moves nothing.

        Layers whose tensors are paged alike form a layer group, in the order in which they come first.
        store_layer_group_desc says otherwise: lists of layer numbers. The tensors and what they store are kept until
        Ems.shutdown; memory that is freed all the same, or cannot be written, makes a request EMS_INTERNAL_ERROR.
        """
        if not isinstance(kvcache, (list, tuple)) or not kvcache:
            raise invalid('kvcache must be a list of layers, and not empty')
        if self._layout is not None:
            raise invalid('a kvcache is registered already; that is done once a process')
        try:
            layers = [_tensors_of(layer) for layer in kvcache]
            described = [[tensors.paged(tensor) for tensor in layer] for layer in layers]
            groups = _paged_alike(described) if store_layer_group_desc is None else _groups_of(
                store_layer_group_desc, len(layers))
            kept = [tensors.kept(tensor) for layer in layers for tensor in layer]
            self._layout = _ems.KvLayout(list(zip(groups, described)), kept)
        except (TypeError, ValueError, OverflowError, RuntimeError, AttributeError, BufferError) as error:
            raise invalid(f'kvcache: {refused(error).message()}') from error

    def save(self, slot_mapping=None, hashes=None, offsets=None, option=None, **kwargs):
        return result_of(self._call(self._pool.run_slots, False, slot_mapping, hashes, offsets, option, kwargs))

    def load(self, slot_mapping=None, hashes=None, offsets=None, option=None, **kwargs):
        return result_of(self._call(self._pool.run_slots, True, slot_mapping, hashes, offsets, option, kwargs))

    def async_save(self, slot_mapping=None, hashes=None, offsets=None, option=None, **kwargs):
        return CcFuture(self._call(self._pool.submit_slots, False, slot_mapping, hashes, offsets, option, kwargs))

    def async_load(self, slot_mapping=None, hashes=None, offsets=None, option=None, **kwargs):
        return CcFuture(self._call(self._pool.submit_slots, True, slot_mapping, hashes, offsets, option, kwargs))

    def exists(self, hashes, option=None, **kwargs):
        """How many leading blocks are there. What cannot be asked is absent: only a bad call raises."""
        _refuse_unknown(kwargs, ())
        timeout, local_only = checked(option)
        try:
            success, total, _, _ = self._pool.exists(hashes, timeout, local_only)
        except (TypeError, ValueError, OverflowError) as error:
            raise refused(error) from error
        return CcResult(success, total)

    def _call(self, call, is_load, slot_mapping, hashes, offsets, option, kwargs):
        timeout, local_only = checked(option, required=not is_load)
        if kwargs:
            _refuse_unknown(kwargs, _KNOWN_KWARGS)
        chunk_descs = kwargs.get('chunk_descs')
        if chunk_descs is not None and (slot_mapping is not None or offsets is not None):
            raise invalid('give either slot_mapping and offsets, or chunk_descs')
        if self._layout is None:
            raise invalid('no kvcache is registered')
        try:
            return call(is_load, self._layout, slot_mapping, hashes, offsets, chunk_descs, timeout, local_only)
        except (TypeError, ValueError, OverflowError) as error:
            raise refused(error) from error


def _refuse_unknown(kwargs, known):
    for name in kwargs:
        if name not in known:
            what = 'the token semantic is not offered; give hashes' if name in ('token_ids', 'mask') else 'it is unknown'
            raise invalid(f'argument {name}: {what}')


def _tensors_of(layer):
    """The tensors of a layer; a single tensor stands for itself."""
    found = list(layer) if isinstance(layer, (list, tuple)) else [layer]
    if not found:
        raise ValueError('a layer has no tensors')
    return found


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
