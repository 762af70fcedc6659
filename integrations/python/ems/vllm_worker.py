"""The workers' half of vLLM's connector: it loads and saves blocks, and stores none that may be wrong (ems.vllm_step)."""
import collections
import dataclasses
import hashlib
import json
import logging
import sys
import time

import numpy

from ems import paged_rows

log = logging.getLogger('ems')
LOAD_BYTES = 64 << 20  # at a time: what has arrived when the time is over counts
SAVE_BYTES = 64 << 20  # at a time: the pool gets the first ones while others are copied
LOADS_AHEAD = 3  # parts that the pool is asked for: one more is put in place meanwhile


class WorkerHalf:
    """Threading: vLLM's worker thread. Waits for loads, the queue's timeout at most; never for saves."""

    def __init__(self, settings):
        self._settings = settings
        self._queue = settings.queue(moves_blocks=True)
        self._timeout = settings.timeout
        self._staging_bytes = settings.staging_bytes
        self._block_dim = settings.extra.get('block_dim')
        self._is_alone = settings.workers == 1  # its own load errors are all there are
        self._layers = {}      # name → (tensor, block dimension, offset in a row, bytes)
        self._row = 0
        self._keys = None
        self._rows = paged_rows.HostRows([], 0)  # what copies blocks
        self._loads = {}       # batch that is waited for → its result, None before
        self._placed = ()      # rows of the last loads: the device may still read them
        self._errors = set()
        self._unheard = 0      # the step of the last load error that the scheduler has not heard of; 0: none
        self._saving = None    # the step whose blocks wait_for_save copies
        self._held = []        # (step, keys, rows): of steps of which it is not yet known that no worker failed
        self._under_way = {}   # batch → bytes
        self._has_told = False  # that staging_bytes are too few
        self.layout = ''
        self.skipped_blocks = 0

    def register_kv_caches(self, kv_caches, num_blocks=None):
        """kv_caches: layer name → tensor; layers that share one are given once each. A block's bytes are those of all tensors, in
        the order of their layers' names."""
        self._layers, self._row = {}, 0
        shapes, seen = [], set()
        for name, tensor in sorted(kv_caches.items()):
            if id(tensor) in seen:  # of a layer before it, whose KV it attends to
                continue
            seen.add(id(tensor))
            dim = self._dim_of(tensor, num_blocks) if self._block_dim is None else int(self._block_dim)
            if num_blocks is not None:
                tensor = _by_blocks(name, tensor, dim, num_blocks)
            size = paged_rows.row_bytes(tensor, dim)
            self._layers[name] = (tensor, dim, self._row, size)
            self._row += size
            shapes.append([name, dim, *_shape_of(tensor, dim)])
        self._rows = paged_rows.rows_of(list(self._layers.values()), self._row)
        self.layout = str(self._settings.extra.get('layout', hashlib.sha256(json.dumps(shapes).encode()).hexdigest()))
        self._keys = self._settings.keys(self.layout, self._settings.tp_rank, self._settings.pp_rank)
        log.info('blocks of %d bytes in the domain %s', self._row,
                 self._settings.domain(self.layout, self._settings.tp_rank, self._settings.pp_rank))

    def hold_saves(self):
        """From now on nothing is stored before the scheduler has heard that no load failed in its step."""
        self._is_alone = False

    @staticmethod
    def _dim_of(tensor, num_blocks):
        """[blocks, …], or [K and V, blocks, …]."""
        if num_blocks is not None:
            for counts in (lambda extent: extent == num_blocks, lambda extent: extent > 0 and extent % num_blocks == 0):
                if counts(tensor.shape[0]) != counts(tensor.shape[1]):
                    return 0 if counts(tensor.shape[0]) else 1
        return 1 if len(tensor.shape) == 5 and tensor.shape[0] == 2 else 0

    def start(self, step):
        """Puts what is loaded in place, in all layers: when a CUDA graph is replayed, nothing is called for each layer."""
        self._drain()
        self._saving = None
        for copied, _ in self._placed:
            copied.synchronize()
        self._placed = ()
        self._release(step)
        self._load(step.loads)
        self._errors.update(step.lost)
        if self._errors:
            self._unheard = step.number
        # What this step computes may stand on blocks that did not arrive.
        count = 0 if self._unheard else min(len(step.saves.names), self._room())
        self.skipped_blocks += len(step.saves.names) - count
        if len(step.saves.names) * self._row > self._staging_bytes and not self._has_told:
            self._has_told = True
            log.warning('a step has %d blocks of %d bytes to save: no more than staging_bytes (%d) of them are; give more of it',
                        len(step.saves.names), self._row, self._staging_bytes)
        if count:  # the first ones: of each request a prefix counts
            self._saving = dataclasses.replace(step, saves=step.saves.first(count))

    def _room(self):
        """Blocks that may be copied now. Of several workers the scheduler has counted (ems.vllm_staging), and each obeys."""
        if self._settings.workers > 1:
            return sys.maxsize
        return max(0, self._staging_bytes - self._staged()) // max(1, self._row)

    def _staged(self):
        return sum(self._under_way.values()) + sum(rows.nbytes for _, _, rows in self._held)

    def _load(self, loads):
        """In parts, in staging_bytes together: while one is put in place, the pool is asked for those behind it."""
        if not self._layers:
            self._errors.update(loads.block_ids)
        if not loads.names or not self._layers:
            return
        until = time.monotonic() + self._timeout
        count = max(1, min(self._staging_bytes // (2 * LOADS_AHEAD), LOAD_BYTES) // max(1, self._row))
        asked, placed = collections.deque(), collections.deque()
        self._placed = placed
        self._rows.begin()
        for at in range(0, len(loads.names), count):
            if len(asked) == LOADS_AHEAD:
                self._place(*asked.popleft(), placed, until)
            asked.append((*self._ask(loads.names[at:at + count], until), loads.block_ids[at:at + count]))
        while asked:
            self._place(*asked.popleft(), placed, until)
        self._rows.join()

    def _ask(self, names, until):
        """(batch, rows that it fills); (0, None) when the time is over, or there is no memory for rows."""
        if time.monotonic() >= until:
            return 0, None
        try:
            rows = self._rows.empty(len(names))
        except Exception as error:  # pylint: disable=broad-except  # an engine's thread must not end for it
            log.error('%d blocks are not loaded: %s', len(names), error)
            return 0, None
        batch = self._queue.submit('get', self._keys(names), list(rows), hashed=True)
        self._loads[batch] = None
        return batch, rows

    def _place(self, batch, rows, ids, placed, until):
        """placed: (event, rows) of copies that may still run."""
        self._drain()
        while batch and self._loads[batch] is None and time.monotonic() < until:
            self._queue.wait(until - time.monotonic())
            self._drain()
        done = self._loads.pop(batch, None)
        if batch and done is None:  # the queue keeps the rows until it is over
            self._under_way[batch] = rows.nbytes
        done = done or [False] * len(ids)
        self._errors.update(block for block, arrived in zip(ids, done) if not arrived)
        arrived = [i for i, is_there in enumerate(done) if is_there]
        if arrived:
            try:
                self._rows.load(rows, arrived, [ids[i] for i in arrived])
            except Exception as error:  # pylint: disable=broad-except  # as above: mostly the device has no memory left
                log.error('%d blocks that arrived are not put in place: %s', len(arrived), error)
                self._errors.update(ids)
            placed.append((self._rows.copied(), rows))
        if len(placed) > LOADS_AHEAD:
            copied, _read = placed.popleft()  # its rows have to stay until then
            copied.synchronize()

    def _drain(self):
        for batch, _, _, done in self._queue.drain():
            if batch in self._loads:
                self._loads[batch] = done
            else:
                self._under_way.pop(batch, None)

    def load_errors(self):
        """Blocks of vLLM whose bytes did not arrive since the last call."""
        errors, self._errors = self._errors, set()
        return errors

    def finish_saves(self):
        """Copies all layers; the pool gets them behind this."""
        step, self._saving = self._saving, None
        # vLLM calls this in a `finally`, too: then the forward pass has not computed what is in the blocks.
        if step is None or sys.exc_info()[0] is not None:
            return
        count = max(1, SAVE_BYTES // max(1, self._row))
        names, ids = step.saves.names, step.saves.block_ids
        parts = []  # the pool gets the first one while others are copied
        self._rows.begin()
        try:
            for at in range(0, len(names), count):
                rows = self._rows.empty(len(names[at:at + count]))
                parts.append([None, self._keys(names[at:at + count]), rows])
                self._rows.save(ids[at:at + count], rows)
                parts[-1][0] = self._rows.copied()
        except Exception as error:  # pylint: disable=broad-except  # an engine's thread must not end for it
            self._rows.copied().synchronize()  # what has begun still fills its rows
            parts = [part for part in parts if part[0] is not None]
            skipped = len(names) - sum(len(keys) for _, keys, _ in parts)
            self.skipped_blocks += skipped
            log.error('%d blocks are not saved: %s', skipped, error)
        for copied, keys, rows in parts:
            copied.synchronize()
            if self._is_alone:
                self._send(keys, rows)
            else:
                self._held.append((step.number, keys, rows))

    def _release(self, step):
        """Sends or drops what was held, by what the scheduler has heard."""
        if step.void >= self._unheard:
            self._unheard = 0
        held, self._held = self._held, []
        for number, keys, rows in held:
            if number <= step.void:
                self.skipped_blocks += len(keys)
            elif number <= step.heard:
                self._send(keys, rows)
            else:
                self._held.append((number, keys, rows))

    def _send(self, keys, rows):
        self._under_way[self._queue.submit('set', keys, list(rows), hashed=True)] = rows.nbytes

    def close(self):
        """What is still held is not stored."""
        self._held = []
        for copied, _ in self._placed:
            copied.synchronize()
        self._queue.close()


def _by_blocks(name, tensor, dim, num_blocks):
    """A view whose dimension `dim` counts vLLM's blocks: where an attention kernel's are smaller, several in a row are one."""
    extent = int(tensor.shape[dim])
    if extent == num_blocks:
        return tensor
    if extent % num_blocks or not extent:
        raise ValueError(f'{name}: dimension {dim} of {tuple(tensor.shape)} does not count the {num_blocks} blocks; if another '
                         'does, give block_dim')
    count = extent // num_blocks
    if not isinstance(tensor, numpy.ndarray):
        return tensor.unflatten(dim, (num_blocks, count))
    shape, strides = list(tensor.shape), list(tensor.strides)
    shape[dim:dim + 1], strides[dim:dim + 1] = [num_blocks, count], [strides[dim] * count, strides[dim]]
    return numpy.lib.stride_tricks.as_strided(tensor, shape, strides)


def _shape_of(tensor, dim):
    """(extents without the number of blocks, order of the dimensions in memory, type), as JSON has them."""
    strides = tensor.strides if isinstance(tensor, numpy.ndarray) else tensor.stride()
    order = sorted(range(len(strides)), key=lambda at: -strides[at])
    return [int(n) for at, n in enumerate(tensor.shape) if at != dim], order, str(tensor.dtype).rsplit('.', 1)[-1]
