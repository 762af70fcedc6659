"""Drop-in surface, second generation: KV in the memory of a device, moved through host memory by the tensors' own framework.

A save copies pages of the device into host pages and stores these; a load fills host pages and copies them to the device. A request
goes in turns, several at a time, each with host pages and a thread of its own: while one turn's pages move between host and device, the
others' move between host and pool. Copies of the device are begun in the order of the blocks, of a load behind the arrival of all
blocks before: behind the first miss no page is touched.
Of a save the host pages are, where the device can pin them so, memory that servers of this machine read: theirs is the only copy.
One lane for saves and one for loads, so that neither waits for the other; in a lane one request at a time.
Bound: EMS_STAGING_BYTES of host memory together (512 MiB), a page of each tensor at least; a request in as many turns as it
takes, and over at its deadline: what has not begun is not begun, a copy that runs is waited for. 4096 requests wait a lane;
what comes beyond is a miss.
"""
import collections
import functools
import os
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor, TimeoutError as NotYet

from ems import _ems, device_copies, device_rows, tensors
from ems.errors import Error

_BYTES = 512 * 2 ** 20
_TURN_BYTES_MIN = 2 ** 20  # below it, waking a thread costs more than it brings
_QUEUE_MAX = 4096
_LATE = 'nothing of the request was done within its time'


class Staging:
    """The two lanes. Threading: thread-safe. `describe`: layers of host tensors → their KvLayouts, one for each order. `is_one_group`:
    a block has the same pages of all tensors."""

    def __init__(self, pool, layers, describe, is_one_group):
        self._lanes = {}
        try:
            for is_load in (False, True):
                self._lanes[is_load] = _Lane(pool, is_load, layers, describe, is_one_group)
        except BaseException:
            self.close()  # pinned memory must not stay so
            raise

    def submit(self, is_load, layouts, slots, hashes, offsets, chunk_descs, timeout, local_only):
        """Checks the call as the pool does. timeout: ms. Raises TypeError, ValueError, OverflowError."""
        batch = _ems.StagedBatch(is_load, layouts, slots, hashes, offsets, chunk_descs, local_only)
        return self._lanes[is_load].submit(batch, time.monotonic() + timeout / 1000)

    def close(self):
        """What waits is over as a miss; waits for what runs, and gives the host memory back."""
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


class _HostPages:
    """Of one turn at a time. `layouts`: what they are, one for each order."""

    def __init__(self, memory, begin, end, describe):
        self.pages = memory.slice(begin, end)
        self.layouts = describe(self.pages.layers)
        self.copied = None  # the event behind the last copies from here to the device


class _Tensors:
    """Host pages of each tensor by themselves. `layers`: tensors in host memory."""

    has_seal_room = False  # whether each block has room for its seal behind it

    def __init__(self, copies, device, layers):
        self.layers, self._copies, self._device = layers, copies, device
        self._host = [[copies.prepared(tensor) for tensor in layer] for layer in layers]

    @staticmethod
    def made(copies, device, room, _):
        pages = room // sum(tensors.page_bytes(tensor) for layer in device for tensor in layer) or 1
        host = [[copies.pinned(tensor[:min(pages, int(tensor.shape[0]))].cpu()) for tensor in layer] for layer in device]
        return _Tensors(copies, [[copies.prepared(tensor) for tensor in layer] for layer in device], host)

    @property
    def count(self):
        return min(int(tensor.shape[0]) for layer in self.layers for tensor in layer)

    def slice(self, begin, end):
        """A share of each tensor's own pages: [begin, end) of `count`."""
        def of(tensor):
            pages = int(tensor.shape[0])
            return tensor[pages * begin // self.count:pages * end // self.count]
        return _Tensors(self._copies, self._device, [[of(tensor) for tensor in layer] for layer in self.layers])

    def move(self, is_load, pages_of, mark):
        """Begins to copy pages pages_of(layer) of the device from here, or of a save the other way round."""
        known = {}  # tuple of pages → Pages
        with self._copies.behind(mark):
            for layer, (device_tensors, host_tensors) in enumerate(zip(self._device, self._host)):
                numbers = pages_of(layer)
                pages = known.get(tuple(numbers)) or known.setdefault(tuple(numbers), device_copies.Pages(numbers))
                for device, host in zip(device_tensors, host_tensors):
                    (self._copies.load if is_load else self._copies.save)(device, host, pages)

    def release(self):
        pass


class _Rows:
    """Host pages of all tensors together, row by row: a turn is one transfer. `rows`: a tensor of pinned memory; `layers`: tensors in it."""

    has_seal_room = True

    def __init__(self, rows, layers, mover, unpin=None):
        self._rows, self.layers, self._mover, self._unpin = rows, layers, mover, unpin
        self.count = len(rows)

    @staticmethod
    def made(copies, device, room, allocate):
        """allocate: bytes → memory that servers read, None where there is none."""
        every = [tensor for layer in device for tensor in layer]
        mover = device_rows.aligned_rows_of(every, copies, _ems.DropInPool.seal_bytes)
        count = max(1, min(room // mover.row_bytes, *(int(tensor.shape[0]) for tensor in every)))
        memory = allocate(count * mover.row_bytes) if allocate is not None and copies.can_pin else None
        rows, unpin = None, None
        if memory is not None:
            rows = mover.rows_in(memory, count)
            unpin = functools.partial(copies.unpin, rows)
        if rows is None or not copies.pin(rows):
            rows, unpin = mover.pinned(count), None
        views = iter(mover.views(rows))
        return _Rows(rows, [[next(views) for _ in layer] for layer in device], mover, unpin)

    def release(self):
        """No copy may be under way, or begin."""
        unpin, self._unpin = self._unpin, None
        if unpin is not None:
            unpin()

    def slice(self, begin, end):
        return _Rows(self._rows[begin:end], [[tensor[begin:end] for tensor in layer] for layer in self.layers], self._mover)

    def move(self, is_load, pages_of, mark):
        pages = pages_of(0)
        self._mover.begin(mark)
        if is_load:
            self._mover.load(self._rows, range(len(pages)), pages)
        else:
            self._mover.save(pages, self._rows)


class _Lane:
    def __init__(self, pool, is_load, layers, describe, is_one_group):
        self._pool, self._is_load, self._owner = pool, is_load, os.getpid()
        device = [[tensor for tensor in layer if 0 not in tensor.shape] for layer in layers]
        every = [tensor for layer in device for tensor in layer]
        self._page_bytes = sum(tensors.page_bytes(tensor) for tensor in every)
        self._copies = device_copies.copies_of(every[0])
        if isinstance(self._copies, device_copies.StreamCopies):
            device_copies.check_one_device(every)
        made = _Rows.made if is_one_group and device_rows.can_be_rows(every[0], self._copies) else _Tensors.made
        memory = made(self._copies, device, _staging_bytes() // 2, None if is_load else self._allocate)
        self._memory = memory
        self._whole = _HostPages(memory, 0, memory.count, describe)
        count = min(_turns_at_a_time(), memory.count)
        each = memory.count // count
        self._parts = [_HostPages(memory, i * each, (i + 1) * each, describe) for i in range(count)]
        self._room = threading.Semaphore(_QUEUE_MAX)
        self._thread = ThreadPoolExecutor(1, 'ems-staging')
        self._movers = ThreadPoolExecutor(count, 'ems-staged')  # between host and pool

    def submit(self, batch, deadline):
        host = self._whole.layouts[batch.layout_number]
        if not _each_fits(batch, host):
            raise ValueError('a block has more pages than EMS_STAGING_BYTES has room for: set it higher')
        if os.getpid() != self._owner or not self._room.acquire(blocking=False):
            return _Missed(batch.blocks)
        try:
            future = self._thread.submit(self._run, batch, deadline, self._copies.mark())
        except RuntimeError:  # closed
            self._room.release()
            return _Missed(batch.blocks)
        future.add_done_callback(lambda _: self._room.release())
        return _Operation(batch.blocks, deadline, future)

    def close(self):
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._movers.shutdown(wait=True)
        if os.getpid() == self._owner:
            self._memory.release()

    def _allocate(self, size):
        try:
            return self._pool.allocate(size)
        except Error:  # it takes the way of other memory
            return None

    def _run(self, batch, deadline, mark):
        """The answer of all turns: blocks from the front, and an error only if there are none."""
        under_way = collections.deque()  # (begin, end, host pages, what the pool will answer), the first blocks first
        done, code, message = 0, '', ''
        try:
            try:
                done, code, message = self._turns(batch, deadline, mark, under_way)
            finally:  # also when a copy fails: nothing moves behind the answer
                for _, _, _, moved in under_way:
                    moved.exception()
                self._copies.synchronize()
        except Exception as error:  # pylint: disable=broad-except  # whatever a framework raises of its copies
            done, code, message = 0, 'INTERNAL', f'a copy from or to the device failed: {error}'
        return (done, batch.blocks, '', '') if done else (0, batch.blocks, code, message)

    def _turns(self, batch, deadline, mark, under_way):
        """(blocks from the front, code, message); what it leaves under way is not part of the answer."""
        free = collections.deque(self._parts)
        if not _each_fits(batch, free[0].layouts[batch.layout_number]):
            free = collections.deque([self._whole])
        step = max(-(-batch.blocks // len(free)), _TURN_BYTES_MIN // self._page_bytes)
        done = next_block = 0
        while done < batch.blocks:
            while free and next_block < batch.blocks and time.monotonic() < deadline:
                host = free.popleft()
                begin, next_block = next_block, batch.end_of(host.layouts[batch.layout_number], next_block,
                                                             min(batch.blocks, next_block + step))
                under_way.append((begin, next_block, host, self._begin(batch, host, begin, next_block, deadline, mark)))
            if not under_way:
                return done, 'DEADLINE_EXCEEDED', _LATE
            begin, end, host, moved = under_way[0]
            success, _, code, message = moved.result()
            under_way.popleft()
            if self._is_load and success:
                host.copied = self._copy(batch, host, begin, begin + success, mark)
            done += success
            if begin + success < end:
                return done, code, message
            free.append(host)
        return done, '', ''

    def _begin(self, batch, host, begin, end, deadline, mark):
        """What waits for the pages' last copy and moves them between host and pool, on a thread; of a save behind a new copy."""
        copied = host.copied if self._is_load else self._copy(batch, host, begin, end, mark)

        def move():
            if copied is not None:
                copied.synchronize()
            left = max(1, int((deadline - time.monotonic()) * 1000))
            return batch.run(self._pool, host.layouts[batch.layout_number], begin, end, left, host.pages.has_seal_room)
        return self._movers.submit(move)

    def _copy(self, batch, host, begin, end, mark):
        """Begins to copy blocks [begin, end) from the device to the host, or of a load the other way round; returns the event behind."""
        layout = host.layouts[batch.layout_number]
        pages = {group: batch.pages(group, begin, end) for group in range(layout.groups)}
        host.pages.move(self._is_load, lambda layer: pages[layout.group_of(layer)], mark)
        return self._copies.event(sleeps=True)  # a thread of a turn would wait on a core that another one copies with


def _each_fits(batch, host):
    return all(batch.end_of(host, i, i + 1) == i + 1 for i in range(batch.blocks))


def _turns_at_a_time():
    """As many as threads that copy between host and pool bring something, half of the cores being the engine's."""
    return max(2, min(8, (os.cpu_count() or 2) // 2))


def bytes_for_saves():
    """Memory that servers may be asked to read, at most; 0 where EMS_STAGING_BYTES makes no sense, which a registration says."""
    try:
        return _staging_bytes() // 2
    except ValueError:
        return 0


def _staging_bytes():
    text = os.environ.get('EMS_STAGING_BYTES', '')
    if text and not text.isdecimal():
        raise ValueError(f'EMS_STAGING_BYTES is {text!r}; it must be a number of bytes')
    return int(text or _BYTES)
