"""What LMCache does with a native plug-in: one thread polls its eventfd and drains it, others submit and wait."""
import select
import threading


class Loop:
    """Keeps to the contract: drains on readability only, keeps buffers until the completion, takes each id once."""

    def __init__(self, connector):
        self.connector = connector
        self.doubled = []     # ids that completed twice
        self.drained = 0      # drains
        self.error = None     # what ended the thread, if anything has
        self._over = {}
        self._kept = {}
        self._changed = threading.Condition()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name='lmcache-loop')
        self._thread.start()

    def _run(self):
        poller = select.poll()
        poller.register(self.connector.event_fd(), select.POLLIN)
        try:
            while not self._stop:
                if poller.poll(500):
                    self._take(self.connector.drain_completions())
        except BaseException as error:  # pylint: disable=broad-except
            self.error = error

    def _take(self, completions):
        with self._changed:
            self.drained += 1
            for number, ok, error, flags in completions:
                if number in self._over:
                    self.doubled.append(number)
                self._over[number] = (ok, error, flags)
                self._kept.pop(number, None)
            self._changed.notify_all()

    def submit(self, call, *arguments):
        with self._changed:  # its completion may come before the id is known here
            number = call(*arguments)
            if number not in self._over:
                self._kept[number] = arguments
        return number

    def wait(self, number, seconds=30):
        """(ok, error, [bool])"""
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._over, seconds):
                raise AssertionError(f'future {number} is not over after {seconds} s')
            return self._over[number]

    def set(self, keys, values):
        return self.wait(self.submit(self.connector.submit_batch_set, keys, [memoryview(value) for value in values]))

    def get(self, keys, buffers):
        return self.wait(self.submit(self.connector.submit_batch_get, keys, [memoryview(buffer) for buffer in buffers]))

    def exists(self, keys):
        return self.wait(self.submit(self.connector.submit_batch_exists, keys))

    def delete(self, keys):
        return self.wait(self.submit(self.connector.submit_batch_delete, keys))

    def stop(self):
        self._stop = True
        self._thread.join()
        if self.error is not None:
            raise self.error


def key(chunk, model='llama', rank=0, group=0, salt=''):
    """As LMCache spells them: model@kv_rank@object_group@chunk hash[@salt]."""
    return f'{model}@{rank:08x}@{group:x}@{chunk:064x}' + (f'@{salt}' if salt else '')
