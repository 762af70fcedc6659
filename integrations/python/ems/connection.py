"""Base of Client and ModelCache: a native handle, threads for asyncio, an end, and fork()."""
import asyncio
import concurrent.futures
import os
import threading
import weakref

from ems import process

DEFAULT_CONTROLLER = '127.0.0.1:7400'

_open = weakref.WeakSet()  # those that a child of fork() must drop without ending them


def default_controller():
    """EMS_CONTROLLER, else 127.0.0.1:7400."""
    return os.environ.get('EMS_CONTROLLER') or DEFAULT_CONTROLLER


def abandon_in_child(native):
    """`native.abandon()` is called in a child of fork(), if `native` is still there. Returns it."""
    _open.add(native)
    return native


class Connection:
    """`native` has close(), closed and abandon(). Thread-safe."""

    def __init__(self, native, executor_threads, thread_name):
        self._native = native
        self._executor = None
        self._executor_threads = executor_threads
        self._thread_name = thread_name
        self._lock = threading.Lock()
        _open.add(self)

    def _start(self, call, *args, **options):
        with self._lock:
            if self._executor is None:
                self._executor = concurrent.futures.ThreadPoolExecutor(self._executor_threads, self._thread_name)
            return self._executor.submit(call, *args, **options)

    async def _run(self, call, *args, **options):
        return await self._wait(self._start(call, *args, **options), lambda: None)

    @staticmethod
    async def _wait(job, leave):
        """The job's result. Who is cancelled here calls `leave`, and waits until the job has ended or never begins."""
        waiter = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(waiter)
        except asyncio.CancelledError:
            leave()
            if not job.cancel():
                await _outlast(waiter)
            raise

    @property
    def closed(self):
        return self._native.closed

    def close(self):
        """Lets asyncio's calls that run finish, then disconnects. Later calls raise Unavailable."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True)
        self._native.close()

    def _abandon(self):
        """In a child of fork(): drops what is the parent's."""
        self._native.abandon()
        self._executor = None
        self._lock = threading.Lock()  # the parent's may be taken, for ever

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, error, trace):
        await asyncio.get_running_loop().run_in_executor(None, self.close)


async def _outlast(waiter):
    """Until the call is over, however often the coroutine that waits for it is cancelled."""
    while not waiter.done():
        try:
            await asyncio.wait([waiter])
        except asyncio.CancelledError:
            pass  # the first one is passed on when it is safe
    if not waiter.cancelled():
        waiter.exception()  # nobody else will ask


def _abandon_all():
    for one in list(_open):
        one._abandon() if isinstance(one, Connection) else one.abandon()


process.at_fork_in_child(_abandon_all)
