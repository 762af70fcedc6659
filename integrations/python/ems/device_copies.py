"""Copies of pages between tensors of a device and host memory, by the tensors' own framework, beside what the engine computes.

With torch and a device that has streams: on a stream of its own that waits for what the engine's stream had when the call came, from
and into pinned memory. Pages that are small or scattered go through the device's own gather and scatter, one transfer a tensor:
a copy of its own for each of thousands of pieces costs more time to begin than to run.
"""
import sys

from ems import tensors
from ems.errors import InvalidArgument

DIRECT_BYTES = 1 << 20  # pieces of this size are copied each by itself: the time of beginning one does not count
_SAME_SIZE = {1: 'uint8', 2: 'int16', 4: 'int32', 8: 'int64'}  # gather and scatter do not know all of KV's types


def _frameworks(tensor):
    """The modules that a tensor's class, and those it is derived from, come from."""
    return [sys.modules.get(one.__module__.split('.', maxsplit=1)[0]) for one in type(tensor).__mro__]


def torch_of(tensor):
    """The module torch where the tensor is one of torch's, else None: it is not imported for it."""
    return next((framework for framework in _frameworks(tensor) if hasattr(framework, 'index_select')), None)


def copies_of(tensor):
    """What copies between host memory and the device that this tensor is on."""
    kind = tensors.device_of(tensor)
    for framework in _frameworks(tensor) if kind != 'cpu' else ():
        accelerator = getattr(framework, kind, None)
        if hasattr(accelerator, 'Stream'):
            return StreamCopies(accelerator, tensor.device, torch_of(tensor))
    return PlainCopies()


def are_on_one_device(every):
    return len({str(getattr(tensor, 'device', 'cpu')) for tensor in every}) <= 1


def check_one_device(every):
    """Raises InvalidArgument: a stream is one device's, and orders nothing on another one."""
    if not are_on_one_device(every):
        raise InvalidArgument('tensors of several devices: '
                              f'{", ".join(sorted({str(tensor.device) for tensor in every}))}; register those of one')


def bits_of(tensor, torch):
    """The tensor as integers of the same size."""
    return tensor.view(getattr(torch, _SAME_SIZE[tensor.element_size()]))


def wide_bits_of(tensor, torch):
    """The same as integers of up to 8 bytes, as far as the last dimension lets them be: fewer to move."""
    bits = bits_of(tensor, torch)
    counts = (bits.shape[-1], bits.storage_offset(), *bits.stride()[:-1])
    for size, name in sorted(_SAME_SIZE.items(), reverse=True):
        times = size // bits.element_size()
        if times > 1 and bits.stride(-1) == 1 and not any(count % times for count in counts):
            return bits.view(getattr(torch, name))
    return bits


def index_of(torch, numbers, device):
    """Numbers on the device, on the stream that is current: nothing waits for the transfer."""
    return torch.tensor(numbers, dtype=torch.int64).pin_memory().to(device, non_blocking=True)


class Pages:
    """Numbers of pages of the device, and the places of host memory, ascending, where they stand: 0, 1, … unless told. Threading: one
    thread."""

    def __init__(self, numbers, places=None):
        self.numbers = list(numbers)
        self.places = range(len(self.numbers)) if places is None else list(places)
        self.runs = list(_consecutive(self.places, self.numbers))
        self._index = self._place_index = None

    def __len__(self):
        return len(self.numbers)

    @property
    def span(self):
        """Of the host's places: from the first to behind the last."""
        return slice(self.places[0], self.places[-1] + 1)

    @property
    def has_gaps(self):
        return self.span.stop - self.span.start != len(self.places)

    def index(self, torch, device):
        """The numbers on the device; made by the first call, on the stream that is current."""
        if self._index is None:
            self._index = index_of(torch, self.numbers, device)
        return self._index

    def place_index(self, torch, device):
        """The places, within the span."""
        if self._place_index is None:
            self._place_index = index_of(torch, [place - self.span.start for place in self.places], device)
        return self._place_index


def _consecutive(places, pages):
    """(place, page, count) of pages that follow each other in both."""
    begin = 0
    for at in range(1, len(pages) + 1):
        if at == len(pages) or pages[at] != pages[at - 1] + 1 or places[at] != places[at - 1] + 1:
            yield places[begin], pages[begin], at - begin
            begin = at


class PlainCopies:
    """A framework without streams: copies are done when they return. Threading: one thread copies; marks and events from any."""

    can_pin = False  # whether pin() may succeed

    def pinned(self, tensor):
        return tensor

    def pin(self, tensor):
        """Pins a tensor's host memory where it is, until unpin(). False: it cannot be."""
        return False

    def unpin(self, tensor):
        """Copies from and to it must be over."""

    def mark(self):
        """What the caller has given to the device so far."""
        return self

    def behind(self, mark):
        """A context whose copies come after it. Marks may be taken of any thread's."""
        return self

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        pass

    def prepared(self, tensor):
        """The tensor as load() and save() take it."""
        return tensor

    def load(self, device, host, pages):
        """Pages of `host` → pages of `device`, both prepared. In the context of behind(), as all copies; `host` has to stay until an event behind
        it says so."""
        for at, page, count in pages.runs:
            self._copy(device[page:page + count], host[at:at + count])

    def save(self, device, host, pages):
        """The other way round; places without gaps."""
        for at, page, count in pages.runs:
            self._copy(host[at:at + count], device[page:page + count])

    def _copy(self, to, source):
        to.copy_(source)

    def event(self, sleeps=False):
        """What has been copied so far; synchronize() waits for it. sleeps: whoever waits leaves the core to others."""
        return self

    def synchronize(self):
        """Waits for all copies."""

    def join(self):
        """What the calling thread gives to the device from now on comes behind all copies. Does not wait."""


class StreamCopies(PlainCopies):
    """As torch.cuda has streams. `torch`: None for a framework that has no gather and scatter of torch's names."""

    def __init__(self, accelerator, device, torch):
        self._accelerator, self._device, self._torch = accelerator, device, torch
        self.can_pin = torch is not None and hasattr(accelerator, 'cudart')
        self._stream = accelerator.Stream(device, priority=-1)  # before kernels that have the whole device for long

    def pinned(self, tensor):
        return tensor.pin_memory()

    def pin(self, tensor):
        return self._runtime('cudaHostRegister', tensor.data_ptr(), tensor.numel() * tensor.element_size(), 0)

    def unpin(self, tensor):
        self._runtime('cudaHostUnregister', tensor.data_ptr())

    def _runtime(self, name, *args):
        """Whether a call of the device's runtime succeeds."""
        try:
            with self._accelerator.device(self._device):
                if int(getattr(self._accelerator.cudart(), name)(*args)) == 0:
                    return True
                self._torch.zeros(1, device=self._device)  # reports the error again, and forgets it
        except Exception:  # pylint: disable=broad-except  # as without it
            pass
        return False

    def mark(self):
        return self._accelerator.current_stream(self._device).record_event()

    def behind(self, mark):
        self._stream.wait_event(mark)
        return self._accelerator.stream(self._stream)

    def prepared(self, tensor):
        return tensor if self._torch is None else bits_of(tensor, self._torch)

    def load(self, device, host, pages):
        if not self._is_by_index(device, pages):
            super().load(device, host, pages)
            return
        moved = host[pages.span].to(self._device, non_blocking=True)
        if pages.has_gaps:
            moved = moved.index_select(0, pages.place_index(self._torch, self._device))
        device.index_copy_(0, pages.index(self._torch, self._device), moved)

    def save(self, device, host, pages):
        if not self._is_by_index(device, pages):
            super().save(device, host, pages)
            return
        taken, into = device.index_select(0, pages.index(self._torch, self._device)), host[pages.span]
        if not into.is_contiguous():  # in the same order in memory: else torch would go through memory that is not pinned
            taken = self._torch.empty_like(into, device=self._device).copy_(taken)
        into.copy_(taken, non_blocking=True)

    def _is_by_index(self, device, pages):
        """Also pages that do not lie densely: torch would take memory of the device for each of them."""
        if self._torch is None or len(pages) == 0:
            return False
        page_bytes = device.stride(0) * device.element_size()
        if page_bytes != tensors.page_bytes(device):
            return True
        return len(pages.runs) > 1 and page_bytes * len(pages) < DIRECT_BYTES * len(pages.runs)

    def _copy(self, to, source):
        to.copy_(source, non_blocking=True)

    def event(self, sleeps=False):
        if not sleeps or self._torch is None or not hasattr(self._accelerator, 'Event'):
            return self._stream.record_event()
        event = self._accelerator.Event(blocking=True)
        event.record(self._stream)
        return event

    def synchronize(self):
        self._stream.synchronize()

    def join(self):
        self._accelerator.current_stream(self._device).wait_event(self._stream.record_event())
