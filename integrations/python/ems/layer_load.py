"""ems.LayerLoad: a load that goes layer by layer, so that an engine computes layer i while the layers behind it arrive."""
import asyncio
import functools
from dataclasses import dataclass, field
from typing import List, Union

from ems.connection import abandon_in_child
from ems.errors import Error


@dataclass
class LoadResult:
    """`leading_blocks` arrived before the first that did not. `blocks`: bytes, None for a miss, or an ems.Error."""
    leading_blocks: int
    blocks: List[Union[int, None, Error]] = field(repr=False)


@dataclass
class LayerReady:
    """What is in place up to one layer, that one included.

    `leading_blocks` are, before the first that is not. `missing`: numbers of the blocks that are not, ascending; what has
    gone missing at one layer is missing at all layers behind it.
    """
    leading_blocks: int
    missing: List[int]


class LayerLoad:
    """A load under way, from ContextCache.load_layers. Thread-safe. Times are in seconds.

    Iterating, or `async for`, gives each layer's LayerReady as it comes. Leaving a `with` block cancels. Layout and tensors
    are kept until the load is over; dropping the last reference to it cancels, too.
    """

    def __init__(self, client, native):
        self._client = client
        self._native = abandon_in_child(native)

    @property
    def layers(self):
        return self._native.layers

    @property
    def ready_layers(self):
        """Layers 0 … ready_layers - 1 are done."""
        return self._native.ready_layers

    @property
    def done(self):
        """The load is over: nothing is written any more."""
        return self._native.done

    def wait_layer(self, layer, timeout=None):
        """Waits until `layer` of every block is in place or known to be missing; returns a LayerReady.

        timeout=None: until the load is over, which its own deadline bounds. A load that failed or was cancelled is no
        error here: its blocks are missing, and result() says why.
        Raises DeadlineExceeded (this wait's time is over, the load goes on), OutOfRange (no such layer).
        """
        return LayerReady(*self._native.wait_layer(layer, timeout))

    def result(self, timeout=None):
        """Waits until the load is over; returns a LoadResult. A block counts when all its layers arrived.

        Raises DeadlineExceeded when that is not within `timeout`; the load goes on.
        """
        return LoadResult(*self._native.result(timeout))

    def cancel(self):
        """Ends the load: blocks that have not arrived are errors with code CANCELLED.

        Returns when nothing is written any more: behind the read that is on its way, at once when there is none.
        """
        self._native.cancel()

    def __iter__(self):
        for layer in range(self.layers):
            yield self.wait_layer(layer)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.cancel()

    # --- asyncio: the same waits on the client's threads, of which each takes one

    async def await_layer(self, layer, timeout=None):
        return await self._wait(self.wait_layer, layer, timeout)

    async def aresult(self, timeout=None):
        return await self._wait(self.result, timeout)

    async def acancel(self):
        await self._client._run(self.cancel)

    async def __aiter__(self):
        for layer in range(self.layers):
            yield await self.await_layer(layer)

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, error, trace):
        await self.acancel()

    async def _wait(self, call, *args):
        # A wait touches no memory: who cancels one need not wait for it, and can cancel the load.
        return await asyncio.wrap_future(self._client._start(functools.partial(call, *args)))
