"""ems.Client: put and get in one hop to the server that owns the key."""
import os
from typing import NamedTuple, Optional

from ems import _ems, process
from ems.connection import Connection, default_controller

DEFAULT_NAMESPACE = 'default'


def default_namespace():
    """EMS_NAMESPACE, else 'default'."""
    return os.environ.get('EMS_NAMESPACE') or DEFAULT_NAMESPACE


class ObjectView:
    """A value in place: read-only memory of a server on this machine, or a copy. Use it with `with`.

    It is held there until release(), which refuses (BufferError) while an array, a memoryview or verify() still looks into it.
    """

    def __init__(self, native):
        self._native = native

    @property
    def data(self):
        """A memoryview of the bytes. It must be gone before release()."""
        return memoryview(self._native)

    @property
    def mapped(self):
        """True: the server's memory, no copy was made."""
        return self._native.mapped

    def __len__(self):
        return len(self._native)

    def verify(self):
        """One pass over the bytes; raises DataLoss when they do not match their checksum."""
        self._native.verify()

    def release(self):
        self._native.release()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.release()


class KeyInfo(NamedTuple):
    """A key as scan() finds it. Times are in seconds, and None where the value is not in DRAM."""
    key: bytes
    size: int
    tier: str  # 'dram', also when it is on the SSD as well, or 'ssd'
    age: Optional[float]  # since it came to its server's DRAM
    idle: Optional[float]  # since it was used there


class Client(Connection):
    """A connection to the pool. Thread-safe. Times are in seconds; a timeout of None is the client's default.

    Values are bytes, bytearray, memoryview, numpy arrays, torch CPU tensors, or lists of them (joined). Keys are str
    or bytes of 1 to 512 bytes. A miss is None or False; what goes wrong raises a class of ems.errors.
    """

    def __init__(self, controller=None, namespace=None, *, transport='auto', timeout=1.0, connect_timeout=0.2,
                 start_timeout=5.0, connections_per_server=8, async_threads=2, staging_bytes=256 << 20, shm_token='',
                 executor_threads=4):
        process.connecting()
        native = _ems.Client(
            controller=controller or default_controller(), namespace=namespace or default_namespace(),
            transport=transport, timeout=timeout, connect_timeout=connect_timeout, start_timeout=start_timeout,
            connections_per_server=connections_per_server, async_threads=async_threads, staging_bytes=staging_bytes,
            shm_token=shm_token)
        super().__init__(native, executor_threads, 'ems-py')

    # --- One key

    def put(self, key, value, *, overwrite=False, durability='', timeout=None, route_key=''):
        """Stores `value`. The same bytes again store nothing; others raise AlreadyExists unless `overwrite`."""
        self._native.put(key, value, overwrite=overwrite, durability=durability, timeout=timeout, route_key=route_key)

    def get(self, key, *, timeout=None, verify='', touch=True, route_key=''):
        """The value as bytes, or None."""
        return self._native.get(key, timeout=timeout, verify=verify, touch=touch, route_key=route_key)

    def get_into(self, key, into, *, timeout=None, verify='', touch=True, route_key=''):
        """Copies the value into writable memory and returns its length, or None. OutOfRange: it is too small."""
        return self._native.get_into(key, into, timeout=timeout, verify=verify, touch=touch, route_key=route_key)

    def get_range(self, key, offset, into, *, timeout=None, verify='', touch=True, route_key=''):
        """Fills `into` with the bytes from `offset` on. False: a miss."""
        return self._native.get_range(key, offset, into, timeout=timeout, verify=verify, touch=touch,
                                      route_key=route_key)

    def view(self, key, *, timeout=None, verify='', touch=True, route_key=''):
        """An ObjectView of the value, or None."""
        native = self._native.view(key, timeout=timeout, verify=verify, touch=touch, route_key=route_key)
        return None if native is None else ObjectView(native)

    def stat(self, key, *, timeout=None, route_key=''):
        """The value's length, or None."""
        return self._native.stat(key, timeout=timeout, route_key=route_key)

    def exists(self, key, *, timeout=None, touch=True, route_key=''):
        return self._native.exists(key, timeout=timeout, touch=touch, route_key=route_key)

    def remove(self, key, *, timeout=None, route_key=''):
        """False: there was none."""
        return self._native.remove(key, timeout=timeout, route_key=route_key)

    # --- Batches: one message a server, all servers at once, a result an item in their order

    def multi_put(self, items, *, overwrite=False, durability='', timeout=None):
        """`items`: a dict, or (key, value) pairs. Each result is None, or the ems.Error."""
        pairs = items.items() if hasattr(items, 'items') else items
        return self._native.multi_put(pairs, overwrite=overwrite, durability=durability, timeout=timeout)

    def multi_get_into(self, items, *, timeout=None, verify='', touch=True):
        """`items`: (key, writable memory) pairs. Each result is a length, None for a miss, or the ems.Error."""
        pairs = items.items() if hasattr(items, 'items') else items
        return self._native.multi_get_into(pairs, timeout=timeout, verify=verify, touch=touch)

    def multi_get(self, keys, *, timeout=None):
        """Each result is bytes, None for a miss, or the ems.Error. `timeout` is for all of them together."""
        return self._native.multi_get(keys, timeout=timeout)

    def multi_exists(self, keys, *, timeout=None):
        """A bool a key; what cannot be asked is absent."""
        return self._native.multi_exists(keys, timeout=timeout)

    def multi_remove(self, keys, *, timeout=None):
        """A bool a key: it was there and is gone."""
        return self._native.multi_remove(keys, timeout=timeout)

    # --- Keys

    def scan(self, prefix='', *, timeout=None):
        """Yields a KeyInfo for each key that begins with `prefix`, on all servers, in no order.

        A key that exists from beginning to end comes at least once, and possibly more than once. `timeout` is that of each
        message to a server. A server that does not answer raises its error behind the keys of the others.
        """
        native = self._native.scan(prefix, timeout=timeout)
        while not native.done:
            for one in native.next_page():
                yield KeyInfo(*one)
        for error in native.failures():
            raise error

    # --- asyncio: the same calls on threads of this client. Who cancels one waits until it no longer touches its
    # memory: a call that runs goes on to its end, its timeout at most; one that has not begun never does.

    async def aput(self, key, value, **options):
        return await self._run(self.put, key, value, **options)

    async def aget(self, key, **options):
        return await self._run(self.get, key, **options)

    async def aget_into(self, key, into, **options):
        return await self._run(self.get_into, key, into, **options)

    async def aexists(self, key, **options):
        return await self._run(self.exists, key, **options)

    async def aremove(self, key, **options):
        return await self._run(self.remove, key, **options)

    async def amulti_put(self, items, **options):
        return await self._run(self.multi_put, items, **options)

    async def amulti_get_into(self, items, **options):
        return await self._run(self.multi_get_into, items, **options)

    async def amulti_exists(self, keys, **options):
        return await self._run(self.multi_exists, keys, **options)

    # --- The rest

    def allocate(self, size):
        """Writable memory that servers on this machine can read: a value made in it is copied once less."""
        return self._native.allocate(size)

    def stats(self):
        """Counts since connecting, as a dict."""
        return self._native.stats()

    def call_latencies(self):
        """By (operation, path), of the kinds of calls that there have been: how many were timed, and p50 and p99 in µs.

        Operations: get, put, exists, remove, and multi_… for several keys. Paths: one_sided, calls that asked no server, of
        which one in 32 is timed; socket, all others.
        """
        return self._native.call_latencies()

    def metrics_text(self):
        """Counts and latencies since connecting, as Prometheus text (ems_client_…)."""
        return self._native.metrics_text()
