"""Drop-in surface, second generation: the KV layout is registered once, blocks are prefix hashes and slots."""
from ems.cc_v1.kv_cache import KvCache
from ems.drop_in_types import TIMEOUT_MAX, CcFuture, CcKvOption, CcResult, TakesFutures, checked, invalid, refused, result_of

_KNOWN_KWARGS = {'chunk_descs'}


class ContextCache_v1(TakesFutures):  # pylint: disable=invalid-name
    """save, load and exists by hashes. Thread-safe. What is raised: as ContextCaching.

    A block's value carries the registered layout's fingerprint: a process with another layout sees misses.
    """

    def __init__(self, pool):
        super().__init__(pool)
        self._kv_cache = None

    def register_kvcache(self, kvcache, store_layer_group_desc=None, order=None):
        """Tells where KV lies: layers, each a list of tensors [blocks, block size, heads, head size]. Moves nothing.

        order (an extension; EMS_KV_ORDER where it is None): 'NHD' as above, 'HND' [blocks, heads, block size, head size], 'NZ'
        [blocks, heads × head size / n, block size, n]. Where nobody states it a block is one whole page: NHD, or NZ where the
        last dimension has 32 bytes and the first call's blocks are as long as its third.

        Layers whose tensors are paged alike form a layer group, in the order in which they come first.
        store_layer_group_desc says otherwise: lists of layer numbers. The tensors and what they store are kept until
        Ems.shutdown; memory that is freed all the same, or cannot be written, makes a request EMS_INTERNAL_ERROR. Tensors that
        say that they are not on the CPU, or whose address is not mapped, are copied by their framework through host memory, in
        whole pages.

        Raises EmsException: EMS_INVALID_ARGUMENT  tensors or order; check_health() is False until a registration succeeds
        """
        if not isinstance(kvcache, (list, tuple)) or not kvcache:
            raise self._unregistered('kvcache must be a list of layers, and not empty')
        if self._kv_cache is not None:
            raise invalid('a kvcache is registered already; that is done once a process')
        try:
            self._kv_cache = KvCache(self._pool, [_tensors_of(layer) for layer in kvcache], store_layer_group_desc, order)
        except (TypeError, ValueError, OverflowError, RuntimeError, AttributeError, BufferError) as error:
            raise self._unregistered(f'kvcache: {refused(error).message()}') from error
        self._degraded.unregistered = ''

    def save(self, slot_mapping=None, hashes=None, offsets=None, option=None, **kwargs):
        return self._run(False, slot_mapping, hashes, offsets, option, kwargs)

    def load(self, slot_mapping=None, hashes=None, offsets=None, option=None, **kwargs):
        return self._run(True, slot_mapping, hashes, offsets, option, kwargs)

    def async_save(self, slot_mapping=None, hashes=None, offsets=None, option=None, **kwargs):
        return self._submit(False, slot_mapping, hashes, offsets, option, kwargs)

    def async_load(self, slot_mapping=None, hashes=None, offsets=None, option=None, **kwargs):
        return self._submit(True, slot_mapping, hashes, offsets, option, kwargs)

    def exists(self, hashes, option=None, **kwargs):
        """How many leading blocks are there. What cannot be asked is absent: only a bad call raises."""
        _refuse_unknown(kwargs, ())
        timeout, local_only = checked(option)
        try:
            success, total, _, _ = self._pool.exists(hashes, timeout, local_only)
        except (TypeError, ValueError, OverflowError) as error:
            raise refused(error) from error
        return CcResult(success, total)

    def _end(self):
        if self._kv_cache is not None and self._kv_cache.staging is not None:
            self._kv_cache.staging.close()

    def _unregistered(self, why):
        self._degraded.unregistered = why
        return invalid(why)

    def _run(self, *args):
        with self._degraded:
            answer = self._call(self._pool.run_slots, *args)
            return result_of(answer if isinstance(answer, tuple) else answer.wait())

    def _submit(self, is_load, slot_mapping, hashes, offsets, option, kwargs):
        kv_cache = self._kv_cache
        # pylint: disable-next=unidiomatic-typecheck
        if (kwargs or kv_cache is None or kv_cache.staging is not None or type(option) is not CcKvOption
                or type(option.timeout) is not int or not 0 < option.timeout <= TIMEOUT_MAX):
            with self._degraded:
                return CcFuture(self._call(self._pool.submit_slots, is_load, slot_mapping, hashes, offsets, option, kwargs),
                                self._degraded)
        # The call that engines make, on a thread that has computed meanwhile: its caches are cold, and the frames of Python in
        # between were half of the slowest submissions. So there are none.
        try:
            return CcFuture(self._pool.submit_slots(is_load, kv_cache.layouts, slot_mapping, hashes, offsets, None,
                                                    option.timeout, bool(option.read_local_only)), self._degraded)
        except (TypeError, ValueError, OverflowError) as error:
            with self._degraded:
                raise refused(error) from error

    def _call(self, call, is_load, slot_mapping, hashes, offsets, option, kwargs):
        timeout, local_only = checked(option, required=not is_load)
        if kwargs:
            _refuse_unknown(kwargs, _KNOWN_KWARGS)
        chunk_descs = kwargs.get('chunk_descs')
        if chunk_descs is not None and (slot_mapping is not None or offsets is not None):
            raise invalid('give either slot_mapping and offsets, or chunk_descs')
        kv_cache = self._kv_cache
        if kv_cache is None:
            raise invalid(f'no kvcache is registered{": " if self._degraded.unregistered else ""}{self._degraded.unregistered}')
        if kv_cache.staging is not None:
            call = kv_cache.staging.submit
        try:
            return call(is_load, kv_cache.layouts, slot_mapping, hashes, offsets, chunk_descs, timeout, local_only)
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
