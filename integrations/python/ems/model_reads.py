"""Tensors of a version: by name (ModelTensors), or as they arrive (TensorLoad)."""
import json
import os
import threading

from ems import _ems, model_tensors
from ems.connection import abandon_in_child
from ems.errors import InvalidArgument, NotFound
from ems.model_job import TICK, finish
from ems.model_records import LoadedTensor, LoadStats


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
            self._native = abandon_in_child(
                _ems.ModelSession(self._cache._native, self.model, self.version, self._options))
        return self._native

    def _tables(self, files):
        session = self._session()
        finish(abandon_in_child(session.read_tables(self._timeout)))
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
        return abandon_in_child(self._session().load(wanted, in_file_order, self._timeout))

    def take(self, name, axis, kind, a, b):
        """(dtype, shape, memory) of one tensor."""
        job = self.load([(name, axis, kind, a, b)])
        try:
            finish(job)
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
        return LoadStats(**finish(self._job))

    def cancel(self):
        """Ends the load: when it returns nothing is read any more."""
        self._job.stop()

    def next_loaded(self):
        """The next LoadedTensor, or None when all have come. Raises what the load failed of."""
        try:
            record = None
            while record is None:
                record = self._job.next(TICK)
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
