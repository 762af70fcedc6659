"""ems.DeviceKvLayout: paged KV in the memory of a device, for ContextCache's paged calls; each goes through pinned host memory."""
import collections
import os
import threading
import time

from ems import device_copies, tensors
from ems.context import KvLayout, SaveResult
from ems.errors import InvalidArgument, ResourceExhausted
from ems.layer_load import LayerLoad, LoadResult


class DeviceKvLayout:
    """As KvLayout, of tensors of one device and one layer group. Keeps the tensors. Thread-safe.

    Blocks are those of host memory: a process on a device and one on the CPU share them. Slots are moved in whole pages. Bound:
    `staging_bytes` of host memory, all made here, a page of each tensor at least; a call that needs more goes in turns, a
    load_layers, which needs all at once, is refused with ResourceExhausted, as is any while others have it all.
    """

    def __init__(self, layers, *, order='NHD', staging_bytes=256 << 20):
        self._device = [list(layer) for layer in layers]
        every = [tensor for layer in self._device for tensor in layer]
        for tensor in every:
            if 0 in tensors.paged_shape(tensor) or not tensors.copies(tensor):
                raise InvalidArgument('a tensor is empty, or has no cpu(), copy_() and slices to copy it by')
        blocks = min(int(tensor.shape[0]) for tensor in every)
        pages = max(1, min(blocks, staging_bytes // sum(tensors.page_bytes(tensor) for tensor in every)))
        self._copies = device_copies.copies_of(every[0])
        self._host = [[self._copies.pinned(tensor[:pages].cpu()) for tensor in layer] for layer in self._device]
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

    def _load_layers(self, cache, keys, runs, start):
        """A DeviceLayerLoad. `start`: host layout, keys, runs → a native load."""
        pages = self._pages_of(runs)
        first = self._take(sum(map(len, pages)))
        try:
            return DeviceLayerLoad(cache._client, start(self._layout, keys, self._host_runs(first, pages)), self, first, pages)
        except BaseException:
            self._give_back(first, sum(map(len, pages)))
            raise

    def _load_paged(self, cache, keys, runs, timeout):
        until = None if timeout is None else time.monotonic() + timeout
        blocks = []
        for begin, end in self._turns(runs):
            left = None if until is None else max(0.001, until - time.monotonic())
            with cache.load_layers(self, keys[begin:end], runs=[block[0] for block in runs[begin:end]], timeout=left) as load:
                blocks += load.result().blocks
        leading = next((i for i, block in enumerate(blocks) if not isinstance(block, int)), len(blocks))
        return LoadResult(leading, blocks)

    def _save_paged(self, keys, runs, timeout, save):
        """`save`: host layout, keys, runs, timeout → SaveResult."""
        until = None if timeout is None else time.monotonic() + timeout
        whole, mark = SaveResult(0, 0, []), self._copies.mark()
        for begin, end in self._turns(runs):
            pages = self._pages_of(runs[begin:end])
            count = sum(map(len, pages))
            first = self._take(count)
            try:
                with self._copies.behind(mark):
                    mine = device_copies.Pages([page for block in pages for page in block], range(first, first + count))
                    try:
                        for device_tensors, host_tensors in zip(self._device, self._host):
                            for device, host in zip(device_tensors, host_tensors):
                                self._copies.save(device, host, mine)
                    finally:  # also when a copy fails: nothing moves behind the answer
                        self._copies.event().synchronize()
                left = None if until is None else max(0.001, until - time.monotonic())
                part = save(self._layout, keys[begin:end], self._host_runs(first, pages), left)
            finally:
                self._give_back(first, count)
            whole = SaveResult(whole.stored + part.stored, whole.existing + part.existing, whole.blocks + part.blocks,
                               whole.skipped + part.skipped)
        return whole

    def _load_layer(self, layer, mark, numbers, places):
        """Begins to copy host pages `places` of a layer to pages `numbers` of the device."""
        pages = device_copies.Pages(numbers, places)
        with self._copies.behind(mark):
            for device, host in zip(self._device[layer], self._host[layer]):
                self._copies.load(device, host, pages)

    def _pages_of(self, runs):
        """[pages of each block]. Raises InvalidArgument for parts of pages, and what is not there."""
        tokens = self.block_tokens()
        found = []
        for block in runs:
            pages = []
            for start, count in block[0]:
                if start % tokens or count % tokens or start < 0 or start + count > self.slots():
                    raise InvalidArgument(f'slots {start} to {start + count - 1}: a device is copied in whole pages of {tokens} slots, of '
                                          f'{self.slots()} slots')
                pages += range(start // tokens, (start + count) // tokens)
            found.append(pages)
        return found

    def _host_runs(self, first, pages):
        """Runs of host slots, block by block, that stand for the pages."""
        tokens, runs = self.block_tokens(), []
        for block in pages:
            runs.append([[(first * tokens, len(block) * tokens)]])
            first += len(block)
        return runs

    def _turns(self, runs):
        """(begin, end) of blocks whose pages fit into the host's; a block that alone has more is refused by _take."""
        with self._lock:
            self._merge()
            room = max((count for _, count in self._free), default=0)
        begin, used = 0, 0
        for end, block in enumerate(self._pages_of(runs)):
            if used + len(block) > room and end > begin:
                yield begin, end
                begin, used = end, 0
            used += len(block)
        if begin < len(runs):
            yield begin, len(runs)

    def _take(self, count):
        """The first of `count` host pages in a row."""
        with self._lock:
            self._merge()
            for at, (first, free) in enumerate(self._free):
                if free >= count:
                    self._free[at:at + 1] = [(first + count, free - count)] if free > count else []
                    return first
        raise ResourceExhausted(f'{count} pages in a row are more than staging_bytes has free: give more of it')

    def _give_back(self, first, count):
        """The device may still read these pages, where a copy has been begun. Takes no lock: a garbage collection may call it."""
        self._returned.append((first, count, self._copies.event()))

    def _merge(self):
        """Waits for what the device still reads of what was given back."""
        while self._returned:
            first, count, copied = self._returned.popleft()
            copied.synchronize()
            merged = []
            for begin, free in sorted([*self._free, (first, count)]):
                if merged and sum(merged[-1]) == begin:
                    merged[-1] = (merged[-1][0], merged[-1][1] + free)
                else:
                    merged.append((begin, free))
            self._free = merged


class DeviceLayerLoad(LayerLoad):
    """As LayerLoad. wait_layer(i) does not wait for the device: what the calling thread gives to its current stream from then on comes
    behind the copies of the layers up to i, which run beside what it has given before. The awaited ones wait for the copies
    themselves."""

    def __init__(self, client, native, layout, first, pages):
        super().__init__(client, native)
        self._layout, self._first, self._pages = layout, first, pages
        self._owner = os.getpid()
        self._mark = layout._copies.mark()
        self._mutex = threading.RLock()  # a garbage collection may end a load on any thread
        self._copied_layers = 0
        self._is_over = False

    def wait_layer(self, layer, timeout=None):
        ready = super().wait_layer(layer, timeout)
        self._copy(layer, ready.missing)
        self._layout._copies.join()
        return ready

    def result(self, timeout=None):
        answer = super().result(timeout)
        if self.layers:
            self._copy(self.layers - 1, super().wait_layer(self.layers - 1).missing)
        self._layout._copies.join()
        self._end()
        return answer

    def cancel(self):
        super().cancel()
        self._end()

    async def await_layer(self, layer, timeout=None):
        return await self._wait(self._in_place, self.wait_layer, layer, timeout)

    async def aresult(self, timeout=None):
        return await self._wait(self._in_place, self.result, timeout)

    def _in_place(self, call, *args):
        answer = call(*args)
        self._layout._copies.event().synchronize()
        return answer

    def _copy(self, layer, missing):
        """All layers up to this one that have not been, of blocks that are not missing."""
        absent = set(missing)
        numbers, places, place = [], [], self._first
        for block, pages in enumerate(self._pages):
            if block not in absent:
                numbers += pages
                places += range(place, place + len(pages))
            place += len(pages)
        with self._mutex:
            while self._copied_layers <= layer and not self._is_over:
                if numbers:
                    self._layout._load_layer(self._copied_layers, self._mark, numbers, places)
                self._copied_layers += 1

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
