"""ems.ModelCache: versions of models in the pool, loaded as files, memory or tensors.

Long calls run on a thread of the extension module; the caller's thread waits in Python, so that Ctrl-C, progress
callbacks and asyncio work as they do everywhere, and a caller that leaves early ends the call and waits until nothing is written.
"""
import concurrent.futures
import os
import threading
import warnings

from ems import _ems, process
from ems.connection import Connection, abandon_in_child, default_controller
from ems.model_job import finish
from ems.model_reads import ModelTensors, TensorLoad
from ems.model_records import LoadStats, ModelCheck, ModelInfo, PrefetchJob, PrefetchProgress


def _info(fields):
    return ModelInfo(**dict(fields, job=PrefetchJob(**fields['job'])))


class ModelCache(Connection):
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
        native = _ems.ModelCache(
            controller=controller or default_controller(), namespace=namespace, transport=transport,
            connections_per_server=connections_per_server, start_timeout=start_timeout,
            credentials=credentials or {}, ca_file=ca_file, shm_token=shm_token)
        super().__init__(native, executor_threads, 'ems-py-model')

    # --- Versions

    def add(self, model, url, version='', *, files=(), include=(), credentials='', block_bytes=None, bytes_per_s_max=0,
            verify='auto', ignore_etags=False, timeout=60.0):
        """Makes a version of what `url` (folder, http(s)://, s3://) has now; reads headers alone. Returns a ModelInfo.

        `files`: only these; `include`: of those, only what matches one of these patterns. `credentials`: the name under
        which servers find the source's keys. `verify`: whether a block is read twice, over two connections, when it is
        read for the first time, and has to be the same: 'auto' where the source gives nothing to compare it with (plain
        http without a checksum), 'always' also where it does, 'never' nowhere: what is damaged on the way may then be
        cached, of which a RuntimeWarning tells. It costs twice the source's bytes, once. `ignore_etags`: the object
        store's are no MD5. The same files again: what is there; `verify` counts while nobody has used, prefetched or
        pinned it since it was added. AlreadyExists: it has other files, or is to be verified always and may have been
        read once.
        """
        job, told = self._native.add(model, version, url, files, include, credentials, block_bytes, bytes_per_s_max,
                                     verify, ignore_etags, timeout)
        finish(abandon_in_child(job))
        for text in told():
            warnings.warn(text, RuntimeWarning, stacklevel=2)
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
        finish(abandon_in_child(self._native.wait_prefetched(model, version, timeout)), on_progress)
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
        return LoadStats(**finish(abandon_in_child(job), on_progress))

    def load_buffers(self, model, version='', *, files=None, on_progress=None, timeout=600.0, **options):
        """Loads files into memory: {path: memory}.

        `files`: None (all), a list of paths, or a dict {path: writable memory of exactly the file's size, or None}. For
        those without memory of the caller's a writable memoryview is made, 64-byte aligned, which owns its bytes.
        """
        given = files if isinstance(files, dict) else None
        pairs = None if files is None else [(path, given[path] if given is not None else None) for path in files]
        job = abandon_in_child(self._native.load_buffers(model, version, pairs, options, timeout))
        finish(job, on_progress)
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

    async def _run_stoppable(self, call, *args, on_progress=None, **options):
        """Calls with a progress callback, which ends them when nobody waits any more."""
        left = threading.Event()

        def look(done, total):
            if left.is_set():
                raise concurrent.futures.CancelledError
            if on_progress is not None:
                on_progress(done, total)
        return await self._wait(self._start(call, *args, on_progress=look, **options), left.set)
