"""ems.DeviceKvLayout: paged KV in the memory of a device, for ContextCache's paged calls; each goes through pinned host memory."""
import collections
import itertools
import os
import threading
import time

from ems import device_copies, tensors
from ems.context import KvLayout, SaveResult
from ems.errors import Cancelled, InvalidArgument, ResourceExhausted
from ems.layer_load import LayerLoad, LayerReady, LoadResult


class DeviceKvLayout:
    """As KvLayout, of tensors of one device and one layer group. Keeps the tensors. Thread-safe.

    Blocks are those of host memory: a process on a device and one on the CPU share them. Slots are moved in whole pages. Bound:
    `staging_bytes` of host memory, all made here, a page of each tensor at least; a call that finds less than it needs goes in
    turns, a load_layers, which needs all at once, is refused with ResourceExhausted, as is any while others have it all.
    """

    def __init__(self, layers, *, order='NHD', staging_bytes=256 << 20):
        self._device = [list(layer) for layer in layers]
        every = [tensor for layer in self._device for tensor in layer]
        if not every:
            raise InvalidArgument('no tensors')
        for tensor in every:
            if 0 in tensors.paged_shape(tensor) or not tensors.copies(tensor):
                raise InvalidArgument('a tensor is empty, or has no cpu(), copy_() and slices to copy it by')
        blocks = min(int(tensor.shape[0]) for tensor in every)
        pages = max(1, min(blocks, staging_bytes // sum(tensors.page_bytes(tensor) for tensor in every)))
        device_copies.check_one_device(every)
        self._copies = device_copies.copies_of(every[0])
        self._host = [[self._copies.pinned(tensor[:pages].cpu()) for tensor in layer] for layer in self._device]
        for tensor, host in zip(every, (host for layer in self._host for host in layer)):
            if tensors.is_same_memory(tensor, host):  # its cpu() is itself: blocks would go through the engine's own pages
                raise InvalidArgument('a tensor is in host memory; KvLayout is for those')
        self._kept = [tensors.kept(tensor) for tensor in every]
        self._layout = KvLayout(self._host, order=order)
        self._device, self._host = ([[self._copies.prepared(tensor) for tensor in layer] for layer in layers]
                                    for layers in (self._device, self._host))
        self._native = self._layout._native
        self._blocks = blocks
        self._lock = threading.Lock()
        self._free = [(0, pages)]  # (first host page, count), ascending
        self._returned = collections.deque()  # (first, count, the event behind the copies from there): not in _free yet

    @property
    def layers(self):
        return self._layout.layers

    @property
    def groups(self):
        return 1

    @property
    def fingerprint(self):
        """That of a KvLayout of the same tensors in host memory."""
        return self._layout.fingerprint

    def slots(self, group=0):
        return self._blocks * self.block_tokens(group)

    def block_tokens(self, group=0):
        """Tokens of a page of the engine."""
        return self._layout.block_tokens(group)

    def block_bytes(self, tokens, group=0):
        """Bytes of a cached block of so many tokens."""
        return self._layout.block_bytes(tokens, group)

    def _elsewhere(self, call):
        """What does the call on another thread: behind what this one has given to the device, and over when the device has done it."""
        mark = self._copies.mark()

        def run():
            with self._copies.behind(mark):
                try:
                    return call()
                finally:
                    self._copies.event().synchronize()
        return run

    def _load_layers(self, cache, keys, runs, start):
        """A DeviceLayerLoad. `start`: host layout, keys, runs → a native load."""
        pages = self._pages_of(runs, are_written=True)
        first, _ = self._take([sum(map(len, pages))])
        return self._begin(cache, keys, first, pages, start)

    def _begin(self, cache, keys, first, pages, start):
        """A load into host pages from `first` on, which it gives back."""
        mark = self._copies.mark()
        try:
            return DeviceLayerLoad(cache._client, start(self._layout, keys, self._host_runs(first, pages)), self, first, pages, mark)
        except BaseException:
            self._give_back(first, sum(map(len, pages)))
            raise

    def _load_paged(self, cache, keys, runs, timeout, start):
        """`start`: host layout, keys, runs, timeout → a native load."""
        until = None if timeout is None else time.monotonic() + timeout
        blocks, pages = [], self._pages_of(runs, are_written=True)
        while len(blocks) < len(keys):
            begin = len(blocks)
            first, count = self._take([len(block) for block in pages[begin:]])
            left = None if until is None else max(0.001, until - time.monotonic())
            with self._begin(cache, keys[begin:begin + count], first, pages[begin:begin + count],
                             lambda *turn, left=left: start(*turn, left)) as load:
                blocks += load.result().blocks
        leading = next((i for i, block in enumerate(blocks) if not isinstance(block, int)), len(blocks))
        return LoadResult(leading, blocks)

    def _save_paged(self, keys, runs, timeout, step, save):
        """`save`: host layout, keys, runs, timeout → SaveResult; it looks at blocks `step` by `step`."""
        until = None if timeout is None else time.monotonic() + timeout
        whole, mark, begin, pages = SaveResult(0, 0, []), self._copies.mark(), 0, self._pages_of(runs)
        while begin < len(keys):
            first, blocks = self._take([len(block) for block in pages[begin:]], step)
            turn = pages[begin:begin + blocks]
            count = sum(map(len, turn))
            try:
                with self._copies.behind(mark):
                    mine = device_copies.Pages([page for block in turn for page in block], range(first, first + count))
                    try:
                        for device_tensors, host_tensors in zip(self._device, self._host):
                            for device, host in zip(device_tensors, host_tensors):
                                self._copies.save(device, host, mine)
                    finally:  # also when a copy fails: nothing moves behind the answer
                        self._copies.event().synchronize()
                left = None if until is None else max(0.001, until - time.monotonic())
                part = save(self._layout, keys[begin:begin + blocks], self._host_runs(first, turn), left)
            finally:
                self._give_back(first, count)
            whole = SaveResult(whole.stored + part.stored, whole.existing + part.existing, whole.blocks + part.blocks,
                               whole.skipped + part.skipped)
            begin += blocks
        return whole

    def _load_layer(self, layer, mark, numbers, places):
        """Begins to copy host pages `places` of a layer to pages `numbers` of the device."""
        pages = device_copies.Pages(numbers, places)
        with self._copies.behind(mark):
            for device, host in zip(self._device[layer], self._host[layer]):
                self._copies.load(device, host, pages)

    def _pages_of(self, runs, are_written=False):
        """[pages of each block]. Raises InvalidArgument for parts of pages, what is not there, and what would be written twice."""
        tokens = self.block_tokens()
        found, written = [], set()
        for block in runs:
            pages = []
            for start, count in block[0]:
                if start % tokens or count % tokens or start < 0 or start + count > self.slots():
                    raise InvalidArgument(f'slots {start} to {start + count - 1}: a device is copied in whole pages of {tokens} slots, of '
                                          f'{self.slots()} slots')
                pages += range(start // tokens, (start + count) // tokens)
            found.append(pages)
            if are_written and (len(set(pages)) < len(pages) or not written.isdisjoint(pages)):
                raise InvalidArgument(f'block {len(found) - 1} would be written to a page that is written already')
            written.update(pages)
        return found

    def _host_runs(self, first, pages):
        """Runs of host slots, block by block, that stand for the pages."""
        tokens, runs = self.block_tokens(), []
        for block in pages:
            runs.append([[(first * tokens, len(block) * tokens)]])
            first += len(block)
        return runs

    def _take(self, counts, step=1):
        """(the first of host pages in a row, as many blocks of so many pages each as these have room for, all or a multiple of `step`
        where one fits). Waits for the device only where the pages that it has done with are too few."""
        with self._lock:
            while True:
                at = max(range(len(self._free)), key=lambda at: self._free[at][1], default=None)
                first, free = (0, 0) if at is None else self._free[at]
                ends = [end for end in itertools.accumulate(counts) if end <= free]
                if len(ends) == len(counts) or not self._returned:
                    break
                self._merge(*self._returned.popleft())
            if len(ends) < len(counts):
                del ends[len(ends) // step * step or len(ends):]
            if not ends:
                raise ResourceExhausted(f'{counts[0]} pages in a row are more than staging_bytes has free: give more of it')
            if ends[-1]:
                self._free[at:at + 1] = [(first + ends[-1], free - ends[-1])] if free > ends[-1] else []
            return first, len(ends)

    def _give_back(self, first, count):
        """The device may still read these pages, where a copy has been begun. Takes no lock: a garbage collection may call it."""
        if count:
            self._returned.append((first, count, self._copies.event()))

    def _merge(self, first, count, copied):
        """Pages that were given back are free when the device has read them."""
        copied.synchronize()
        merged = []
        for begin, free in sorted([*self._free, (first, count)]):
            if merged and sum(merged[-1]) == begin:
                merged[-1] = (merged[-1][0], merged[-1][1] + free)
            else:
                merged.append((begin, free))
        self._free = merged


class DeviceLayerLoad(LayerLoad):
    """As LayerLoad. What says that a layer is in place (wait_layer(i), ready_layers, done, result()) does not wait for the device: what
    the calling thread gives to its current stream from then on comes behind the copies of the layers up to i, which run beside what it
    has given before. So does what it gives behind cancel(). The awaited ones wait for the copies themselves."""

    def __init__(self, client, native, layout, first, pages, mark):
        super().__init__(client, native)
        self._layout, self._first, self._pages, self._mark = layout, first, pages, mark
        self._owner = os.getpid()
        self._mutex = threading.RLock()  # a garbage collection may end a load on any thread
        self._copied_layers = 0
        self._missing = self._present = None  # of the layer that was copied last: numbers of blocks; (pages, places) of the others
        self._is_over = False

    @property
    def ready_layers(self):
        ready = super().ready_layers
        if ready:
            self.wait_layer(ready - 1)
        return ready

    @property
    def done(self):
        is_done = super().done
        if is_done:
            self.result()
        return is_done

    def wait_layer(self, layer, timeout=None):
        ready = super().wait_layer(layer, timeout)
        if not self._copy(layer):
            ready = LayerReady(0, list(range(len(self._pages))))
        self._layout._copies.join()
        return ready

    def result(self, timeout=None):
        answer = super().result(timeout)
        if not self._copy(self.layers - 1):
            answer = LoadResult(0, [Cancelled('the load was cancelled') if isinstance(block, int) else block for block in answer.blocks])
        self._layout._copies.join()
        self._end()
        return answer

    def cancel(self):
        super().cancel()
        self._end()
        self._layout._copies.join()

    async def await_layer(self, layer, timeout=None):
        return await self._wait(self._in_place, self.wait_layer, layer, timeout)

    async def aresult(self, timeout=None):
        return await self._wait(self._in_place, self.result, timeout)

    async def acancel(self):
        await self._client._run(self._in_place, self.cancel)

    def _in_place(self, call, *args):
        answer = call(*args)
        self._layout._copies.event().synchronize()
        return answer

    def _copy(self, layer):
        """Begins to copy all layers up to this one, which are known, of blocks that are not missing there. False: the load was over, and
        they had not been."""
        with self._mutex:
            while self._copied_layers <= layer and not self._is_over:
                missing = super().wait_layer(self._copied_layers).missing
                if missing != self._missing:
                    self._missing, self._present = missing, self._without(set(missing))
                if self._present[0]:
                    self._layout._load_layer(self._copied_layers, self._mark, *self._present)
                self._copied_layers += 1
            return self._copied_layers > layer

    def _without(self, missing):
        """(pages of the device, host pages) of the blocks that are not missing."""
        numbers, places, place = [], [], self._first
        for block, pages in enumerate(self._pages):
            if block not in missing:
                numbers += pages
                places += range(place, place + len(pages))
            place += len(pages)
        return numbers, places

    def _end(self):
        """The load is over: its host pages are the next one's behind the copies."""
        with self._mutex:
            if not self._is_over:
                self._is_over = True
                self._layout._give_back(self._first, sum(map(len, self._pages)))

    def __del__(self):
        if getattr(self, '_is_over', True) or os.getpid() != self._owner:  # in a child of fork() there is nothing to end
            return
        self.cancel()
