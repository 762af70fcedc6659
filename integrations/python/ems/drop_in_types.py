"""Drop-in surface: options, results and futures that both generations share, and the first one's configuration."""
import contextlib
import logging
import math
import threading
import time
from dataclasses import dataclass

from ems.common.exception import EmsException, invalid, of_status
from ems.errors import Error


@dataclass
class CcConfig:
    """Who this process is, first generation: keys are made by the caller. Checked by Ems.init."""
    rank_id: int
    device_id: int
    model_id: str
    tp_world_size: int = 1
    pp_world_size: int = 1


@dataclass
class CcKvOption:
    """Options of one request.

    write_rcache: in the original, a save also keeps its blocks in a read cache of the caller's machine. Taken and
    without effect here: servers of this machine are read in place, and a second copy would cost their room.
    read_local_only: reads see only blocks whose server is on this machine; the first other one ends the run.
    timeout: ms for the whole request; 0 is the default, 5000.
    """
    write_rcache: bool = True
    read_local_only: bool = False
    timeout: int = 5000


_DEFAULT = CcKvOption()
TIMEOUT_MAX = 24 * 3600 * 1000  # ms; more is no different
_ADDRESS_MAX = 2 ** 64 - 1


def checked(option, required=False):
    """(timeout in ms, local only) of an option; None stands for the defaults unless it is required."""
    if option is None:
        if required:
            raise invalid('option is missing')
        option = _DEFAULT
    if not isinstance(option, CcKvOption):
        raise invalid(f'option must be a CcKvOption, not {type(option).__name__}')
    timeout = option.timeout
    if not isinstance(timeout, int) or isinstance(timeout, bool) or timeout < 0:
        raise invalid(f'timeout is {timeout!r}; it must be an int of 0 or more ms')
    return min(timeout, TIMEOUT_MAX) or _DEFAULT.timeout, bool(option.read_local_only)


def refused(error):
    """The EmsException for what the extension module has refused."""
    return invalid(Exception.__str__(error) if isinstance(error, Error) else str(error))


class KvBufferWrapper:
    """`length` bytes at the address `data_ptr`, which must be mapped into this process while a request runs."""
    __slots__ = ('data_ptr', 'length')

    def __init__(self, data_ptr, length):
        for name, value in (('data_ptr', data_ptr), ('length', length)):
            if not isinstance(value, int) or not 0 < value <= _ADDRESS_MAX:
                raise invalid(f'{name} must be an int above 0, of 64 bits' + (': call it' if callable(value) else ''))
        self.data_ptr = data_ptr
        self.length = length

    def __repr__(self):
        return f'KvBufferWrapper(data_ptr={self.data_ptr:#x}, length={self.length})'


@dataclass(frozen=True)
class PrimaryKey:
    """A key in two parts: entries with the same distribute_key lie on one server, attribute_key tells them apart."""
    distribute_key: str
    attribute_key: str


class CcResult:
    """`success` of `total` blocks, counted from the front: the first that failed ends it."""
    __slots__ = ('success', 'total')

    def __init__(self, success, total):
        self.success = success
        self.total = total

    def __eq__(self, other):
        return isinstance(other, CcResult) and (self.success, self.total) == (other.success, other.total)

    def __hash__(self):
        return hash((self.success, self.total))

    def __repr__(self):
        return f'CcResult(success={self.success}, total={self.total})'


def result_of(answer):
    """A CcResult of what the extension module says; raises EmsException when the request failed."""
    success, total, code, message = answer
    if code:
        raise of_status(code, message)
    return CcResult(success, total)


class Degraded:
    """What goes on without the cache in this process, and why: a context that counts EmsException. Thread-safe."""
    _LOG_EVERY = 10.0  # s

    def __init__(self):
        self._lock = threading.Lock()
        self._logged = -math.inf
        self.requests = 0
        self.reason = ''
        self.unregistered = ''  # why register_kvcache has failed; '' after it succeeded or before it was called

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if isinstance(error, EmsException):
            self._note(str(error))

    def _note(self, reason):
        now = time.monotonic()
        with self._lock:
            self.requests += 1
            self.reason = reason
            is_due = now >= self._logged + self._LOG_EVERY
            if is_due:
                self._logged = now
        if is_due:
            logging.getLogger('ems').warning('a request continues without the cache: %s', reason)


class CcFuture:
    """A request that was submitted. It is over at its timeout at the latest, whether anyone asks or not.

    In a child of fork() it is over at once, with EMS_IO_ERROR: the parent has the request.
    """
    __slots__ = ('_operation', '_degraded')

    def __init__(self, operation, degraded):
        self._operation = operation
        self._degraded = degraded

    def result(self):
        """Waits; returns the CcResult or raises EmsException. May be called again."""
        degraded, self._degraded = self._degraded, contextlib.nullcontext()  # counted once
        with degraded:
            return result_of(self._operation.wait())


def _future(ccfuture):
    if not isinstance(ccfuture, CcFuture):
        raise invalid(f'a CcFuture is needed, not {type(ccfuture).__name__}')
    return ccfuture


class TakesFutures:
    """What both generations say of requests that were submitted, and of those that failed."""

    def __init__(self, pool):
        self._pool = pool
        self._degraded = Degraded()

    def _end(self):
        """After the pool's: nothing touches memory any more."""

    def is_ready(self, ccfuture):
        """Whether a future is over. Never blocks."""
        return _future(ccfuture)._operation.ready()

    def get_result(self, ccfuture):
        """Waits for a future; returns the CcResult or raises EmsException."""
        return _future(ccfuture).result()
