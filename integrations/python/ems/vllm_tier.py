"""EMS as a secondary tier behind vLLM's CPU tier, without what it is a subclass of: ems.vllm.EmsTierManager is that."""
import logging

from ems.engine_queue import EngineQueue

log = logging.getLogger('ems')
LOOKUPS_MAX = 1 << 16  # answers that nobody has asked for again are forgotten beyond it
IN_TRANSFER = None


class TierSeat:
    """Four methods on vLLM's scheduler thread; none waits for the pool, none raises.

    primary_kv_view: a memoryview of the CPU tier, blocks along its first dimension, or flat with `block_bytes` given. Blocks
    go straight between it and the pool. `domain`: what vLLM's block hashes do not cover, a dict of ems.ContextCache's domain
    (model, dtype, kv_layout, tp_rank, tp_size, …). Other options as ems.engine_queue.EngineQueue.

    A look-up of a key is answered None ("ask again") until the pool has said whether it is there: submit_lookup(keys) asks for
    many at once. A job succeeds when all of its blocks arrived, or are stored; after a failed load its blocks are undefined.
    """

    def __init__(self, primary_kv_view, domain, *, block_bytes=None, job_result=None, **options):
        view = memoryview(primary_kv_view)
        if block_bytes is None:
            if view.ndim < 2:
                raise ValueError('the view of the CPU tier is flat: block_bytes is needed')
            block_bytes = view.nbytes // view.shape[0]
        if block_bytes <= 0 or view.nbytes % block_bytes:
            raise ValueError(f'a CPU tier of {view.nbytes} bytes is not blocks of {block_bytes}')
        self._view = view.cast('B')
        self._block_bytes = block_bytes
        self._blocks = view.nbytes // block_bytes
        self._queue = EngineQueue({'model': 'vllm', **domain}, **options)
        self._job_result = job_result or (lambda job_id, success: (job_id, success))
        self._jobs = {}      # batch → job
        self._lookups = {}   # batch → keys
        self._answers = {}   # key → None while it is asked for, then whether it is there
        self._over = []

    def lookup(self, key, req_context=None):
        """True, False, or None: ask again. An answer counts once: whoever asks later asks the pool again."""
        self._drain()
        if key not in self._answers:
            self.submit_lookup([key])
            self._drain()
        if self._answers[key] is None:
            return IN_TRANSFER
        return self._answers.pop(key)

    def submit_lookup(self, keys):
        """Asks for keys in one batch; lookup() then says what is there."""
        keys = [key for key in dict.fromkeys(keys) if key not in self._answers]
        if not keys:
            return
        if len(self._answers) + len(keys) > LOOKUPS_MAX:
            self._answers = {key: answer for key, answer in self._answers.items() if answer is None}
        self._answers.update(dict.fromkeys(keys))
        self._lookups[self._queue.submit('exists', keys)] = keys

    def submit_store(self, job_metadata):
        """job_metadata: job_id, keys, block_ids. What the pool has already moves no bytes."""
        self._submit('set', job_metadata)

    def submit_load(self, job_metadata):
        self._submit('get', job_metadata)

    def _submit(self, kind, job):
        keys = list(job.keys)
        try:
            memory = self._memory(job.block_ids)
        except Exception as error:
            log.error('job %s: %s', job.job_id, error)
            self._over.append(self._job_result(job_id=job.job_id, success=False))
            return
        self._jobs[self._queue.submit(kind, keys, memory)] = job.job_id

    def _memory(self, block_ids):
        size = self._block_bytes
        ids = block_ids.tolist() if hasattr(block_ids, 'tolist') else list(block_ids)
        for block in ids:
            if not 0 <= block < self._blocks:
                raise IndexError(f'block {block} of a CPU tier of {self._blocks}')
        return [self._view[block * size:(block + 1) * size] for block in ids]

    def get_finished(self):
        """What is over since the last call, each job once."""
        self._drain()
        over, self._over = self._over, []
        return over

    def _drain(self):
        for batch, _, _, done in self._queue.drain():
            if batch in self._jobs:
                self._over.append(self._job_result(job_id=self._jobs.pop(batch), success=all(done)))
            else:
                self._answers.update(zip(self._lookups.pop(batch), done))

    def touch(self, keys, req_context=None):
        """A look-up touches: keys that are there become the youngest."""
        self._lookups[self._queue.submit('exists', list(keys))] = ()

    def request_finished(self, req_context=None):
        """Nothing is kept for a request."""

    def shutdown(self):
        """Waits for what runs: afterwards nothing touches the CPU tier."""
        self._queue.close()
