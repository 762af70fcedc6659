"""Drop-in surface, second generation: KV in the memory of a device, moved through host memory by the tensors' own framework.

A save copies pages of the device into host pages and stores these; a load fills host pages and copies them to the device.
One thread and one set of host pages for saves, one for loads, so that neither waits for the other.
Bound: EMS_STAGING_BYTES of host memory together (256 MiB), a page of each tensor at least; a request in as many turns as it
takes, and over at its deadline: what has not begun is not begun, a copy that runs is waited for. 4096 requests wait a lane;
what comes beyond is a miss.
"""
import os
import sys
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor, TimeoutError as NotYet

from ems import _ems, tensors

_BYTES = 256 * 2 ** 20
_QUEUE_MAX = 4096
_LATE = 'nothing of the request was done within its time'


class Staging:
    """The two lanes. Threading: thread-safe. `describe`: layers of host tensors → their KvLayouts, one for each order."""

    def __init__(self, pool, layers, describe):
        self._lanes = {is_load: _Lane(pool, is_load, layers, describe) for is_load in (False, True)}

    def submit(self, is_load, layouts, slots, hashes, offsets, chunk_descs, timeout, local_only):
        """Checks the call as the pool does. timeout: ms. Raises TypeError, ValueError, OverflowError."""
        batch = _ems.StagedBatch(is_load, layouts, slots, hashes, offsets, chunk_descs, local_only)
        return self._lanes[is_load].submit(batch, time.monotonic() + timeout / 1000)

    def close(self):
        """What waits is over as a miss; waits for what runs."""
        for lane in self._lanes.values():
            lane.close()


class _Operation:
    """A request of a lane; what DropInOperation is for one of the pool."""

    def __init__(self, total, deadline, future):
        self._total, self._deadline, self._future, self._owner = total, deadline, future, os.getpid()

    def ready(self):
        return os.getpid() != self._owner or self._future.done() or (
            time.monotonic() >= self._deadline and self._future.cancel())

    def wait(self):
        if os.getpid() != self._owner:
            return 0, self._total, 'UNAVAILABLE', 'the request was submitted before this process was forked: its parent has it'
        try:
            return self._future.result(max(0.0, self._deadline - time.monotonic()))
        except NotYet:
            if not self._future.cancel():
                return self._future.result()
        except CancelledError:
            if time.monotonic() < self._deadline:
                return 0, self._total, '', ''  # Ems.shutdown
        return 0, self._total, 'DEADLINE_EXCEEDED', _LATE


class _Missed:
    """Of a lane that takes nothing."""

    def __init__(self, total):
        self._total = total

    def ready(self):
        return True

    def wait(self):
        return 0, self._total, '', ''


class _Lane:
    def __init__(self, pool, is_load, layers, describe):
        self._pool, self._is_load, self._owner = pool, is_load, os.getpid()
        self._device = [[tensor for tensor in layer if 0 not in tensor.shape] for layer in layers]
        every = [tensor for layer in self._device for tensor in layer]
        pages = max(1, _staging_bytes() // 2 // sum(tensors.page_bytes(tensor) for tensor in every))
        self._stream = _SideStream.of(every[0])
        self._host = [[self._stream.pinned(tensor[:min(pages, int(tensor.shape[0]))].cpu()) for tensor in layer]
                      for layer in self._device]
        self._layouts = describe(self._host)
        self._room = threading.Semaphore(_QUEUE_MAX)
        self._thread = ThreadPoolExecutor(1, 'ems-staging')

    def submit(self, batch, deadline):
        host = self._layouts[batch.layout_number]
        if any(batch.end_of(host, i, i + 1) == i for i in range(batch.blocks)):
            raise ValueError('a block has more pages than EMS_STAGING_BYTES has room for: set it higher')
        if os.getpid() != self._owner or not self._room.acquire(blocking=False):
            return _Missed(batch.blocks)
        try:
            future = self._thread.submit(self._run, batch, host, deadline, self._stream.mark())
        except RuntimeError:  # closed
            self._room.release()
            return _Missed(batch.blocks)
        future.add_done_callback(lambda _: self._room.release())
        return _Operation(batch.blocks, deadline, future)

    def close(self):
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(self, batch, host, deadline, behind):
        """The answer of all turns: blocks from the front, and an error only if there are none."""
        done, code, message = 0, '', ''
        try:
            with self._stream.behind(behind):
                while done < batch.blocks:
                    end = batch.end_of(host, done, batch.blocks)
                    success, code, message = self._turn(batch, host, done, end, deadline)
                    done += success
                    if done < end:
                        break
        except Exception as error:  # pylint: disable=broad-except  # whatever a framework raises of its copies
            code, message = 'INTERNAL', f'a copy from or to the device failed: {error}'
        return (done, batch.blocks, '', '') if done else (0, batch.blocks, code, message)

    def _turn(self, batch, host, begin, end, deadline):
        left = int((deadline - time.monotonic()) * 1000)
        if left <= 0:
            return 0, 'DEADLINE_EXCEEDED', _LATE
        if not self._is_load:
            self._copy(batch, host, begin, end)
            left = max(1, int((deadline - time.monotonic()) * 1000))
        success, _, code, message = batch.run(self._pool, host, begin, end, left)
        if self._is_load and success:
            self._copy(batch, host, begin, begin + success)
        return success, code, message

    def _copy(self, batch, host, begin, end):
        """Blocks [begin, end) from the device to the host, or of a load the other way round."""
        try:
            for layer, device_tensors in enumerate(self._device):
                runs = list(_consecutive(batch.pages(host.group_of(layer), begin, end)))
                for device, mine in zip(device_tensors, self._host[layer]):
                    for at, page, count in runs:
                        here, there = mine[at:at + count], device[page:page + count]
                        self._stream.copy(*((there, here) if self._is_load else (here, there)))
        finally:  # also when one of them fails: nothing moves behind the answer
            self._stream.wait()


def _staging_bytes():
    text = os.environ.get('EMS_STAGING_BYTES', '')
    if text and not text.isdecimal():
        raise ValueError(f'EMS_STAGING_BYTES is {text!r}; it must be a number of bytes')
    return int(text or _BYTES)


def _consecutive(pages):
    """(place in the list, page, count) of pages that follow each other."""
    begin = 0
    for at in range(1, len(pages) + 1):
        if at == len(pages) or pages[at] != pages[at - 1] + 1:
            yield begin, pages[begin], at - begin
            begin = at


class _SideStream:
    """A framework without streams: copies are done when they return."""

    @staticmethod
    def of(tensor):
        kind = tensors.device_of(tensor)
        framework = sys.modules.get(type(tensor).__module__.split('.', maxsplit=1)[0])
        accelerator = None if kind == 'cpu' else getattr(framework, kind, None)
        return _TorchStream(accelerator, tensor.device) if hasattr(accelerator, 'Stream') else _SideStream()

    def pinned(self, tensor):
        return tensor

    def mark(self):
        """What the caller has given to the device so far."""
        return None

    def behind(self, mark):
        """A context whose copies come after it."""
        return self

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        pass

    def copy(self, to, source):
        to.copy_(source)

    def wait(self):
        pass


class _TorchStream(_SideStream):
    """As torch.cuda has them: a stream beside the engine's, which waits for what the engine's had when a call came."""

    def __init__(self, accelerator, device):
        self._accelerator, self._device = accelerator, device
        self._stream = accelerator.Stream(device)

    def pinned(self, tensor):
        return tensor.pin_memory()

    def mark(self):
        return self._accelerator.current_stream(self._device).record_event()

    def behind(self, mark):
        self._stream.wait_event(mark)
        return self._accelerator.stream(self._stream)

    def copy(self, to, source):
        to.copy_(source, non_blocking=True)

    def wait(self):
        self._stream.synchronize()
