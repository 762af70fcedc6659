"""EMS as a secondary tier behind vLLM's CPU tier, without what it is a subclass of: ems.vllm.EmsTierManager is that."""
import logging
import time
from dataclasses import dataclass

from ems.engine_queue import EngineQueue

log = logging.getLogger('ems')
LOOKUPS_MAX = 1 << 16  # answers that nobody has asked for again are forgotten beyond it
FAILED_MAX = 1 << 16   # keys whose load failed; beyond it the first ones are asked for again
ANSWER_SECONDS = 1.0   # an answer counts so long
EVENTS_MAX = 1 << 16   # jobs; vLLM takes them each step
LOOKUP_BATCH = 256     # keys
STEP_SECONDS = 0.001   # without a look-up: the next one is of another step
LOOK_EVERY = 50e-6     # seconds
NO_ROOM = 'too many batches wait'  # what the queue says of a batch that nobody has tried
DRAIN_SECONDS = 60.0   # far beyond the timeout of any batch


@dataclass
class _Job:
    job_id: int
    kind: str
    keys: list
    begin: float


def block_bytes_of(view, block_bytes=None):
    """Bytes of a block of the CPU tier, a memoryview; `block_bytes`: as its user says, or None."""
    if block_bytes is None:
        if view.ndim < 2:
            raise ValueError('the view of the CPU tier is flat: block_bytes is needed')
        block_bytes = view.nbytes // view.shape[0]
    if block_bytes <= 0 or view.nbytes % block_bytes:
        raise ValueError(f'a CPU tier of {view.nbytes} bytes is not blocks of {block_bytes}')
    return block_bytes


class TierConnector:
    """Four methods on vLLM's scheduler thread; none waits for the pool, none raises.

    primary_kv_view: a memoryview of the CPU tier, blocks along its first dimension, or flat with `block_bytes` given. Blocks
    go straight between it and the pool. `domain`: what vLLM's block hashes do not cover, a dict of ems.ContextCache's domain
    (model, dtype, kv_layout, tp_rank, tp_size, …). Other options as ems.engine_queue.EngineQueue.

    A look-up of a key is answered None ("ask again") until the pool has said whether it is there. vLLM asks for each block of a
    prompt in one step: the look-ups of a step together wait `lookup_wait` seconds, and later keys go in batches, the last when the
    step is over. submit_lookup(keys) asks for many at once. A job succeeds when all of its blocks arrived, or are stored; the
    blocks of a load that did not arrive are undefined, and their keys are absent until they have been stored from here: vLLM
    would load them for ever.
    """

    def __init__(self, primary_kv_view, domain, *, block_bytes=None, lookup_wait=0.0002, job_result=None, lookup_result=None,
                 on_stored=None, **options):
        view = memoryview(primary_kv_view)
        self._block_bytes = block_bytes_of(view, block_bytes)
        self._blocks = view.nbytes // self._block_bytes
        self._queue = EngineQueue({'model': 'vllm', **domain}, **options)
        self._view = view.cast('B')
        self._job_result = job_result or (lambda job_id, success, **_: (job_id, success))
        self._on_stored = on_stored or (lambda keys: None)
        self._lookup_result = lookup_result or {True: True, False: False, None: None}
        self._lookup_wait = float(lookup_wait)
        self._jobs = {}      # batch → _Job
        self._failed = {}    # keys whose load failed, the first one first
        self._lookups = {}   # batch → keys
        self._next = {}      # keys of the next batch of look-ups, in their order
        self._looked = 0.0   # when the last look-up came
        self._wait_left = self._lookup_wait
        self._answers = {}   # key → (None while it is asked for, then whether it is there; the batch; since when)
        self._over = []

    def lookup(self, key, req_context=None):
        """True, False, or None: ask again. False counts once, True until its block is loaded or stored, each for a second."""
        self._end_old_step()
        self._drain()
        if key in self._failed:
            return self._lookup_result[False]
        is_again = key in self._next
        if not self._is_asked(key):
            self._answers.pop(key, None)
            self._next[key] = None
        if is_again or self._wait_left > 0 or len(self._next) >= LOOKUP_BATCH:
            self._submit_next()
        self._wait(key)
        self._looked = time.monotonic()
        answer = self._answers.get(key, (None,))[0]
        if answer is False:
            del self._answers[key]
        return self._lookup_result[answer]

    def _is_asked(self, key):
        """Whether it has been answered, not too long ago, or will be."""
        if key in self._next:
            return True
        answer = self._answers.get(key)
        return answer is not None and (answer[0] is None or time.monotonic() - answer[2] < ANSWER_SECONDS)

    def _end_old_step(self):
        """Where on_schedule_end is not called; and get_finished, once in a step or before each look-up, says it not."""
        if time.monotonic() - self._looked > STEP_SECONDS:
            self._end_step()

    def _end_step(self):
        self._wait_left = self._lookup_wait
        self._submit_next()

    def _wait(self, key):
        """While this step may: the pool mostly answers at once."""
        while self._wait_left > 0 and self._answers.get(key, (False,))[0] is None:
            begin = time.monotonic()
            time.sleep(LOOK_EVERY)  # poll(2) counts in milliseconds
            self._wait_left -= max(LOOK_EVERY, time.monotonic() - begin)
            self._drain()

    def submit_lookup(self, keys):
        """Asks for keys in one batch; lookup() then says what is there."""
        self._next.update(dict.fromkeys(key for key in keys if key not in self._failed and not self._is_asked(key)))
        self._submit_next()

    def _submit_next(self):
        keys, self._next = list(self._next), {}
        if not keys:
            return
        if len(self._answers) + len(keys) > LOOKUPS_MAX:
            self._answers = {key: answer for key, answer in self._answers.items() if answer[0] is None}
        batch = self._queue.submit('exists', keys)
        self._answers.update(dict.fromkeys(keys, (None, batch, 0)))
        self._lookups[batch] = keys

    def submit_store(self, job_metadata):
        """job_metadata: job_id, keys, block_ids (chunk_ids in newer releases). What the pool has already moves no bytes."""
        self._submit('set', job_metadata)

    def submit_load(self, job_metadata):
        self._submit('get', job_metadata)

    def _submit(self, kind, metadata):
        job = _Job(metadata.job_id, kind, list(metadata.keys), time.monotonic())
        try:
            memory = self._memory(metadata.block_ids if hasattr(metadata, 'block_ids') else metadata.chunk_ids)
        except Exception as error:
            log.error('job %s: %s', job.job_id, error)
            self._end(job, [False] * len(job.keys))
            return
        self._jobs[self._queue.submit(kind, job.keys, memory)] = job

    def _memory(self, block_ids):
        size = self._block_bytes
        ids = block_ids.tolist() if hasattr(block_ids, 'tolist') else list(block_ids)
        for block in ids:
            if not 0 <= block < self._blocks:
                raise IndexError(f'block {block} of a CPU tier of {self._blocks}')
        return [self._view[block * size:(block + 1) * size] for block in ids]

    def get_finished(self):
        """What is over since the last call, each job once."""
        self._end_old_step()
        self._drain()
        over, self._over = self._over, []
        return over

    def get_finished_jobs(self):
        """Newer releases' name of get_finished."""
        return self.get_finished()

    def drain_jobs(self):
        """Waits until all jobs are over: each takes `timeout` at most. get_finished still tells of them."""
        self._end_step()
        until = time.monotonic() + DRAIN_SECONDS
        self._drain()
        while self._jobs and time.monotonic() < until:
            self._queue.wait(until - time.monotonic())
            self._drain()

    def _drain(self):
        for batch, _, error, done in self._queue.drain():
            if batch in self._jobs:
                self._end(self._jobs.pop(batch), done)
            is_refused, now = NO_ROOM in (error or ''), time.monotonic()
            for key, is_there in zip(self._lookups.pop(batch, ()), done):
                if self._answers.get(key) != (None, batch, 0):
                    continue
                if is_refused:  # not known: the next question goes to the pool
                    del self._answers[key]
                else:
                    self._answers[key] = (is_there, batch, now)

    def _end(self, job, done):
        moved = [key for key, has_moved in zip(job.keys, done) if has_moved]
        is_load = job.kind == 'get'
        self._over.append(self._job_result(
            job_id=job.job_id, success=all(done), transfer_time=time.monotonic() - job.begin,
            successful_keys=tuple(moved) if is_load and moved and not all(done) else None))
        for key in job.keys:  # what was answered before may not be so any more
            self._answers.pop(key, None)
        if is_load:
            self._failed.update((key, None) for key, has_moved in zip(job.keys, done) if not has_moved)
            while len(self._failed) > FAILED_MAX:
                del self._failed[next(iter(self._failed))]
        else:
            for key in moved:
                self._failed.pop(key, None)
            self._on_stored(moved)

    def touch(self, keys, req_context=None):
        """A look-up touches: keys that are there become the youngest."""
        self._queue.submit('exists', list(keys))

    def request_finished(self, req_context=None):
        """Nothing is kept for a request."""

    def on_request_finished(self, req_context=None):
        """Newer releases' name of request_finished."""

    def on_schedule_end(self, context=None):
        """Sends the look-ups that have come since the last batch."""
        self._end_step()

    def shutdown(self):
        """Waits for what runs: afterwards nothing touches the CPU tier, nor keeps it mapped."""
        self._queue.close()
        self._drain()
        self._view.release()
