"""Drop-in surface, first generation: the caller makes keys and names memory by address."""
from ems.drop_in_types import CcFuture, KvBufferWrapper, PrimaryKey, TakesFutures, checked, invalid, refused, result_of

_KEY_CHARS_MAX = 127


def _key(key):
    if isinstance(key, str):
        parts = (key,)
    elif isinstance(key, PrimaryKey):
        parts = (key.distribute_key, key.attribute_key)
    else:
        raise invalid(f'a key must be a str or a PrimaryKey, not {type(key).__name__}')
    for part in parts:
        if not isinstance(part, str) or not 0 < len(part) <= _KEY_CHARS_MAX:
            raise invalid(f'a key must have 1 to {_KEY_CHARS_MAX} characters: {part!r}')
    return key if isinstance(key, str) else parts


def _value(buffers):
    if isinstance(buffers, KvBufferWrapper) or not hasattr(buffers, '__iter__'):
        raise invalid('a value must be a list of KvBufferWrapper')
    pairs = []
    for buffer in buffers:
        if not isinstance(buffer, KvBufferWrapper):
            raise invalid(f'a value must hold KvBufferWrapper, not {type(buffer).__name__}')
        pairs.append((buffer.data_ptr, buffer.length))
    return pairs


class ContextCaching(TakesFutures):
    """save and load of lists of keys and buffers. Thread-safe.

    The memory of buffers must stay until the request is over. A value that was saved from buffers of other lengths is a
    miss. Raises EmsException: EMS_INVALID_ARGUMENT for a bad call,
    EMS_IO_TIMEOUT when nothing was done in time, EMS_INTERNAL_ERROR for memory that this process cannot reach. A pool
    that is not there is a result without a hit, at once.
    """

    def save(self, option, key_list, value_list):
        return self._run(False, option, key_list, value_list)

    def load(self, option, key_list, value_list):
        return self._run(True, option, key_list, value_list)

    def async_save(self, option, key_list, value_list):
        return self._submit(False, option, key_list, value_list)

    def async_load(self, option, key_list, value_list):
        return self._submit(True, option, key_list, value_list)

    def _run(self, *args):
        with self._degraded:
            return result_of(self._call(self._pool.run_pointers, *args))

    def _submit(self, *args):
        with self._degraded:
            return CcFuture(self._call(self._pool.submit_pointers, *args), self._degraded)

    @staticmethod
    def _call(call, is_load, option, key_list, value_list):
        timeout, local_only = checked(option, required=not is_load)
        if not isinstance(key_list, (list, tuple)) or not isinstance(value_list, (list, tuple)):
            raise invalid('key_list and value_list must be lists')
        try:
            return call(is_load, [_key(key) for key in key_list], [_value(value) for value in value_list], timeout,
                        local_only)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise refused(error) from error
