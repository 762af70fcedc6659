"""ems.ModelCache: versions of models in the pool, loaded as files, memory or tensors.

Long calls run on a thread of the extension module; the caller's thread waits in Python, so that Ctrl-C, progress
callbacks and asyncio work as they do everywhere, and whoever leaves early ends the call and waits until nothing is written.
"""
import asyncio
import concurrent.futures
import json
import os
import threading
import weakref
from dataclasses import dataclass, field

from ems import _ems, model_tensors, process
from ems.client import _outlast, default_controller
from ems.errors import InvalidArgument, NotFound

_TICK = 0.1  # seconds between two looks at signals and progress
_open = weakref.WeakSet()  # what a child of fork() must let go of without ending it


@dataclass
class PrefetchJob:
    """A job that brings a version into DRAM. `state`: none, running, done, failed or cancelled. Times in seconds."""
    number: int
    state: str
    priority: int
    error: object
    bytes_done: int
    source_bytes: int
    promoted_bytes: int
    shared_bytes: int
    elapsed: float


@dataclass
class ModelInfo:
    """A version, as the controller knows it. `job`: its last PrefetchJob."""
    model: str
    version: str
    namespace: str
    source: str
    bytes: int
    files: int
    blocks: int
    blocks_known: int
    pinned: bool
    age: float
    unused: float
    job: PrefetchJob

    @property
    def name(self):
        return f'{self.model}@{self.version}'


@dataclass
class ModelCheck:
    """Where the bytes and blocks of a version are: DRAM, the SSDs alone, nowhere, or on servers that did not answer."""
    info: ModelInfo
    dram_bytes: int
    ssd_bytes: int
    absent_bytes: int
    unreachable_bytes: int
    dram_blocks: int
    ssd_blocks: int
    absent_blocks: int
    unreachable_blocks: int


@dataclass
class PrefetchProgress:
    """`bytes_per_s` lately; `time_left` in seconds at that rate, or None."""
    info: ModelInfo
    bytes_per_s: float
    time_left: object


@dataclass
class LoadStats:
    """What a load did. `detour`: why blocks were read from the source, '' if none were. Times in seconds."""
    bytes: int
    dram_bytes: int
    ssd_bytes: int
    source_bytes: int
    blocks: int
    misses: int
    jobs: int
    elapsed: float
    waiting: float
    detour: str


@dataclass
class LoadedTensor:
    """A tensor, or the slice of it that was asked for, and what is known of it."""
    name: str
    tensor: object = field(repr=False)
    file: str
    dtype: str


def _info(fields):
    return ModelInfo(**dict(fields, job=PrefetchJob(**fields['job'])))


def _finish(job, on_progress=None):
    """The result of a job. What is raised meanwhile (KeyboardInterrupt, by `on_progress`) ends it first."""
    try:
        while not job.wait(_TICK):
            if on_progress is not None:
                on_progress(*job.progress())
        if on_progress is not None:
            on_progress(*job.progress())
    except BaseException:
        job.stop()
        raise
    return job.result()


class ModelCache:
    """Versions of models in a pool. Thread-safe. Times are in seconds; nothing is connected before the first call.

    A version is named by `model='qwen/7b', version='v1'` or by 'qwen/7b@v1'; without a version it is the one that was
    added last. Calls raise classes of ems.errors: NotFound (no such version or file), InvalidArgument, Unavailable (no
    controller), DeadlineExceeded, PermissionDenied (the servers' models.file_root), FailedPrecondition (the source has
    changed), Cancelled, ….

    `credentials`: a dict of access_key, secret_key, session_token, bearer_token, for reads of sources by this process:
    add, and loads without the pool. `namespace` is that of versions that are added; it is made when it is missing.
    """

    def __init__(self, controller=None, namespace='models', *, transport='auto', connections_per_server=8,
                 start_timeout=5.0, credentials=None, ca_file='', shm_token='', executor_threads=4):
        process.connecting()
        self._native = _ems.ModelCache(
            controller=controller or default_controller(), namespace=namespace, transport=transport,
            connections_per_server=connections_per_server, start_timeout=start_timeout,
            credentials=credentials or {}, ca_file=ca_file, shm_token=shm_token)
        self._executor = None
        self._executor_threads = executor_threads
        self._lock = threading.Lock()
        _open.add(self)

    def _started(self, job):
        _open.add(job)
        return job

    # --- Versions

    def add(self, model, url, version='', *, files=(), include=(), credentials='', block_bytes=None, bytes_per_s_max=0,
            timeout=60.0):
        """Makes a version of what `url` (folder, http(s)://, s3://) has now; reads headers alone. Returns a ModelInfo.

        `files`: only these; `include`: of those, only what matches one of these patterns. `credentials`: the name under
        which servers find the source's keys. The same files again: what is there. AlreadyExists: it has other files.
        """
        job = self._started(self._native.add(model, version, url, files, include, credentials, block_bytes,
                                             bytes_per_s_max, timeout))
        _finish(job)
        return self.get(model, version)

    def list(self, *, timeout=10.0):
        """All versions as ModelInfo, in the order in which they were added."""
        return [_info(fields) for fields in self._native.list(timeout)]

    def get(self, model, version='', *, timeout=10.0):
        return _info(self._native.get(model, version, timeout))

    def files(self, model, version='', *, timeout=10.0):
        """{path: bytes}, in the version's order."""
        return dict(self._native.files(model, version, timeout))

    def check(self, model, version='', *, timeout=10.0):
        """How much of the version is in the pool, as a ModelCheck."""
        fields = self._native.check(model, version, timeout)
        return ModelCheck(**dict(fields, info=_info(fields['info'])))

    def pin(self, model, version='', *, timeout=10.0):
        """Keeps it: it is not evicted, and what gets lost is brought back."""
        return _info(self._native.pin(model, version, timeout))

    def unpin(self, model, version='', *, timeout=10.0):
        return _info(self._native.unpin(model, version, timeout))

    def remove(self, model, version='', *, timeout=10.0):
        """Forgets it. Needs a version. FailedPrecondition: it is pinned."""
        self._native.remove(model, version, timeout)

    # --- Jobs

    def prefetch(self, model, version='', *, priority=0, timeout=10.0):
        """Begins a job that brings the version into the servers' DRAM, or joins the one that runs. Does not wait."""
        return _info(self._native.prefetch(model, version, priority, timeout))

    def progress(self, model, version='', *, timeout=10.0):
        """How the last job gets on, as a PrefetchProgress. Rate and time come from successive calls."""
        fields = self._native.progress(model, version, timeout)
        return PrefetchProgress(**dict(fields, info=_info(fields['info'])))

    def wait_prefetched(self, model, version='', *, on_progress=None, timeout=600.0):
        """Waits for the end of the job; returns its ModelInfo. `on_progress(bytes done, bytes)` comes ten times a second.

        Raises what the job failed of, Cancelled, DeadlineExceeded, FailedPrecondition (it was never prefetched).
        """
        _finish(self._started(self._native.wait_prefetched(model, version, timeout)), on_progress)
        return self.get(model, version)

    def cancel(self, model, version='', *, timeout=10.0):
        """Ends the job that runs."""
        return _info(self._native.cancel(model, version, timeout))

    # --- Loads. Options of all: threads (4), batch_bytes (64 MiB), verify_digests (False), fallback_to_source (True),
    # pool_patience (10 s), priority (0).

    def load_files(self, model, folder, version='', *, files=None, sync=True, on_progress=None, timeout=600.0, **options):
        """Loads all files, or `files`, into a folder. Under its own name a file is whole, or as it was. LoadStats.

        sync=False: not safe from a power failure.
        """
        job = self._native.load_files(model, version, os.fspath(folder), files, sync, options, timeout)
        return LoadStats(**_finish(self._started(job), on_progress))

    def load_buffers(self, model, version='', *, files=None, on_progress=None, timeout=600.0, **options):
        """Loads files into memory: {path: memory}.

        `files`: None (all), a list of paths, or a dict {path: writable memory of exactly the file's size, or None}. For
        those without memory of the caller's a writable memoryview is made, 64-byte aligned, which owns its bytes.
        """
        given = files if isinstance(files, dict) else None
        pairs = None if files is None else [(path, given[path] if given is not None else None) for path in files]
        job = self._started(self._native.load_buffers(model, version, pairs, options, timeout))
        _finish(job, on_progress)
        loaded = {path: memory for path, memory in (given or {}).items() if memory is not None}
        while record := job.next(0):
            loaded[record[0]] = memoryview(record[4])
        wanted = self.files(model, version) if files is None else files
        # A file of no bytes asks for no memory.
        return {path: loaded[path] if path in loaded else memoryview(bytearray()) for path in wanted}

    def safe_open(self, model, version='', framework='np', device='cpu', *, files=None, timeout=600.0, **options):
        """The version's tensors by name, as safetensors.safe_open has those of a file. See ModelTensors."""
        return ModelTensors(self, model, version, framework, device, files, timeout, options)

    def load_tensors(self, model, version='', framework='np', device='cpu', *, names=None, rank=0, ranks=1, axis=0,
                     order='any', files=None, timeout=600.0, **options):
        """Loads tensors, in one pass and each as soon as it is complete. An iterator of (name, tensor): a TensorLoad.

        `names`: which (None: all). One rank of tensor parallelism takes slice `rank` of `ranks` equal ones along `axis`:
        an int (tensors without this axis are loaded whole), a dict name → int or None (whole, also those not named), or a
        function (name, shape) → int or None. Only blocks that a slice touches are read.
        order='file': as they lie in the files; what comes early waits.
        """
        return TensorLoad(self, model, version, framework, device, names=names, rank=rank, ranks=ranks, axis=axis,
                          order=order, files=files, timeout=timeout, options=options)

    # --- asyncio: the same on threads of this object. Who cancels one waits until nothing is written any more; loads and
    # waits are ended for it.

    async def aadd(self, model, url, version='', **options):
        return await self._run(self.add, model, url, version, **options)

    async def acheck(self, model, version='', **options):
        return await self._run(self.check, model, version, **options)

    async def aprefetch(self, model, version='', **options):
        return await self._run(self.prefetch, model, version, **options)

    async def await_prefetched(self, model, version='', **options):
        return await self._run_stoppable(self.wait_prefetched, model, version, **options)

    async def aload_files(self, model, folder, version='', **options):
        return await self._run_stoppable(self.load_files, model, folder, version, **options)

    async def aload_buffers(self, model, version='', **options):
        return await self._run_stoppable(self.load_buffers, model, version, **options)

    def _start(self, call, *args, **options):
        with self._lock:
            if self._executor is None:
                self._executor = concurrent.futures.ThreadPoolExecutor(self._executor_threads, 'ems-py-model')
            return self._executor.submit(call, *args, **options)

    async def _run(self, call, *args, **options):
        return await self._wait(self._start(call, *args, **options), lambda: None)

    @staticmethod
    async def _wait(job, leave):
        waiter = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(waiter)
        except asyncio.CancelledError:
            leave()
            if not job.cancel():
                await _outlast(waiter)
            raise

    async def _run_stoppable(self, call, *args, on_progress=None, **options):
        """Calls with a progress callback, which ends them when nobody waits any more."""
        left = threading.Event()

        def look(done, total):
            if left.is_set():
                raise concurrent.futures.CancelledError
            if on_progress is not None:
                on_progress(done, total)
        return await self._wait(self._start(call, *args, on_progress=look, **options), left.set)

    # --- The rest

    @property
    def closed(self):
        return self._native.closed

    def close(self):
        """Later calls raise Unavailable. Loads under way go on, and keep what they need."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True)
        self._native.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, error, trace):
        await asyncio.get_running_loop().run_in_executor(None, self.close)


def _indexed(cache, model, version, tables, timeout, options):
    """Which file each tensor is in. A *.safetensors.index.json beside them decides; names in two files are refused."""
    present = {}
    for file, _, tensors in tables:
        for tensor in tensors:
            present.setdefault(tensor[0], {})[file] = tensor
    known = {file for file, _, _ in tables}
    indexes = [path for path in cache.files(model, version) if path.endswith('.safetensors.index.json')]
    named = {}
    for index in indexes:
        text = bytes(cache.load_buffers(model, version, files=[index], timeout=timeout, **options)[index])
        try:
            weight_map = json.loads(text)['weight_map']
            pairs = [(str(name), os.path.join(os.path.dirname(index), shard)) for name, shard in weight_map.items()]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(f'{index} is no index of safetensors shards: {error!r}') from error
        if not any(shard in known for _, shard in pairs):
            continue  # of files that were not chosen
        for name, shard in pairs:
            if shard in known and shard not in present.get(name, {}):
                raise InvalidArgument(f'{index} looks for {name} in {shard}, which does not have it')
            if shard in known:
                named[name] = shard
        known -= {shard for _, shard in pairs}
    where = {}
    for name, files in present.items():
        if name in named:
            where[name] = (named[name], files[named[name]])
            continue
        others = [file for file in files if file in known]
        if len(others) > 1:
            raise InvalidArgument(f'{name} is in {" and in ".join(sorted(others))}: choose with files=[…]')
        if others:
            where[name] = (others[0], files[others[0]])
    return where


class _Version:
    """A version that is opened: tensors by name, loads of them one at a time. Threading: locked by its owner."""

    def __init__(self, cache, model, version, files, timeout, options):
        info = cache.get(model, version)  # one version from here on, whichever is added meanwhile
        self._cache, self.model, self.version = cache, info.model, info.version
        self._options, self._timeout = options, timeout
        self._native = None
        tables = self._tables(files)
        self.metadata = {key: value for _, metadata, _ in tables for key, value in metadata.items()}
        self.where = _indexed(cache, self.model, self.version, tables, timeout, options)

    def _session(self):
        if self._native is None:
            self._native = _ems.ModelSession(self._cache._native, self.model, self.version, self._options)
            _open.add(self._native)
        return self._native

    def _tables(self, files):
        session = self._session()
        _finish(self._cache._started(session.read_tables(self._timeout)))
        tables = session.tables()
        if files is None:
            return tables
        missing = set(files) - {file for file, _, _ in tables}
        if missing:
            raise NotFound(f'{self.model}@{self.version} has no file with tensors that is called {min(missing)}')
        return [table for table in tables if table[0] in set(files)]

    def tensor(self, name):
        """(name, dtype, shape, bytes, block elements, block bytes)"""
        if name not in self.where:
            raise NotFound(f'{self.model}@{self.version} has no tensor {name}')
        return self.where[name][1]

    def load(self, specs, in_file_order=False):
        """A ModelJob. `specs`: (name, axis, kind, a, b)."""
        wanted = [(self.where[name][0], name, *rest) for name, *rest in specs]
        return self._cache._started(self._session().load(wanted, in_file_order, self._timeout))

    def take(self, name, axis, kind, a, b):
        """(dtype, shape, memory) of one tensor."""
        job = self.load([(name, axis, kind, a, b)])
        try:
            _finish(job)
        except BaseException:
            self._native = None  # stopped, or not what it was: opened again by who asks next
            raise
        return job.next(0)[2:]


class ModelTensors:
    """The tensors of a version. Thread-safe. Loads each when it is asked for; load_tensors is faster for many.

    `framework`: 'np' (numpy; see the table of dtypes in docs/PYTHON_API.md) or 'pt' (torch, on `device`). Tensors own
    their memory, may be written, and stay when this is closed.
    """

    def __init__(self, cache, model, version, framework, device, files, timeout, options):
        self._made = model_tensors.maker(framework, device)
        self._lock = threading.Lock()
        self._version = _Version(cache, model, version, files, timeout, options)

    @property
    def name(self):
        """'model@version'"""
        version = self._opened()
        return f'{version.model}@{version.version}'

    def _opened(self):
        version = self._version
        if version is None:
            raise InvalidArgument('the tensors are closed')
        return version

    def keys(self):
        """Names, sorted."""
        return sorted(self._opened().where)

    def offset_keys(self):
        """Names as the tensors lie in the files."""
        return list(self._opened().where)

    def metadata(self):
        """What the headers say beside tensors, as {str: str}; of all files together."""
        return dict(self._opened().metadata)

    def get_tensor(self, name):
        version = self._opened()
        version.tensor(name)
        with self._lock:
            taken = version.take(name, 0, 'whole', 0, 0)
        return self._made(*taken)

    def get_slice(self, name):
        """A TensorSlice: index it to load a part."""
        self._opened().tensor(name)
        return TensorSlice(self, name)

    def __iter__(self):
        return iter(self.keys())

    def __len__(self):
        return len(self._opened().where)

    def __contains__(self, name):
        return name in self._opened().where

    def close(self):
        self._version = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()


class TensorSlice:
    """A tensor that is not loaded yet: `slice[a:b, …]` loads a part. As safetensors' PySafeSlice."""

    def __init__(self, tensors, name):
        self._tensors, self._name = tensors, name

    def get_shape(self):
        return list(self._tensors._opened().tensor(self._name)[2])

    def get_dtype(self):
        """As the file spells it: 'BF16', 'F8_E4M3', 'Q4_K', …"""
        return self._tensors._opened().tensor(self._name)[1]

    def __getitem__(self, index):
        """ints, slices (steps of 1) and `…`. Reads along the axis whose slice leaves the most out; the rest is cut here."""
        shape = self.get_shape()
        ranges, dropped = model_tensors.ranges_of(index, shape)
        version = self._tensors._opened()
        _, _, _, _, block_elements, _ = version.tensor(self._name)
        if block_elements != 1:
            raise InvalidArgument(f'{self._name} is {self.get_dtype()}: stored in blocks of {block_elements}, it cannot be '
                                  'indexed; get_tensor gives its bytes')
        cuts = [axis for axis, (begin, end) in enumerate(ranges) if end - begin < shape[axis]]
        axis = min(cuts, key=lambda i: (ranges[i][1] - ranges[i][0]) / shape[i], default=None)
        with self._tensors._lock:
            if axis is None:
                taken = version.take(self._name, 0, 'whole', 0, 0)
            else:
                taken = version.take(self._name, axis, 'range', *ranges[axis])
        tensor = self._tensors._made(*taken)
        rest = tuple(slice(None) if i == axis else slice(*ends) for i, ends in enumerate(ranges))
        tensor = tensor[rest] if cuts and cuts != [axis] else tensor
        return tensor[tuple(0 if i in dropped else slice(None) for i in range(len(shape)))] if dropped else tensor


class TensorLoad:
    """A load under way, from ModelCache.load_tensors: iterate it, or `async for`, for (name, tensor). For one iteration.

    Leaving a `with` block, or dropping it, ends the load. Tensors that were taken stay.
    """

    def __init__(self, cache, model, version, framework, device, *, names, rank, ranks, axis, order, files, timeout, options):
        if order not in ('any', 'file'):
            raise InvalidArgument(f"order is {order!r}; it may be 'any' or 'file'")
        if ranks < 1 or not 0 <= rank < ranks:
            raise InvalidArgument(f'rank {rank} of {ranks}')
        self._cache = cache
        self._made = model_tensors.maker(framework, device)
        version = _Version(cache, model, version, files, timeout, options)
        specs = []
        for name in version.where if names is None else names:
            shape = version.tensor(name)[2]
            cut = model_tensors.axis_of(axis, name, shape) if ranks > 1 else None
            specs.append((name, 0, 'whole', 0, 0) if cut is None else (name, cut, 'rank', rank, ranks))
        self._bytes = 0
        self._job = version.load(specs, order == 'file')

    def progress(self):
        """(bytes in place, bytes wanted)"""
        return self._job.progress()

    def stats(self):
        """Waits for the end; LoadStats, or raises what the load failed of."""
        return LoadStats(**_finish(self._job))

    def cancel(self):
        """Ends the load: when it returns nothing is read any more."""
        self._job.stop()

    def next_loaded(self):
        """The next LoadedTensor, or None when all have come. Raises what the load failed of."""
        try:
            record = None
            while record is None:
                record = self._job.next(_TICK)
        except BaseException:
            self._job.stop()
            raise
        if record is False:
            self._job.result()
            return None
        file, name, dtype, shape, memory = record
        return LoadedTensor(name=name, tensor=self._made(dtype, shape, memory), file=file, dtype=dtype)

    def __iter__(self):
        while (loaded := self.next_loaded()) is not None:
            yield loaded.name, loaded.tensor

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.cancel()

    async def __aiter__(self):
        while (loaded := await self._cache._wait(self._cache._start(self.next_loaded),
                                                 self._job.ask_to_stop)) is not None:
            yield loaded.name, loaded.tensor

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, error, trace):
        await self._cache._run(self.cancel)


def _abandon_all():
    for one in list(_open):
        if isinstance(one, ModelCache):
            one._native.abandon()
            one._executor = None
            one._lock = threading.Lock()  # the parent's may be taken, for ever
        else:
            one.abandon()


process.at_fork_in_child(_abandon_all)
