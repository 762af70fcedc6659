"""The queue that the connectors in engines share: batches of named blocks, submitted now and polled later, with or without a pool.

An engine must start, and go on, without the pool: while it cannot be reached, batches are over at once without a hit, and a
thread tries again each second.
"""
import logging
import select
import threading
import weakref

from ems import _ems, process
from ems.client import Client
from ems.connection import abandon_in_child
from ems.errors import Error, InvalidArgument, NotFound

RETRY_SECONDS = 1.0
BOUNDS = {'threads': 256, 'lanes': 256, 'waiting_max': 1 << 20}
DOMAIN_FIELDS = {'dtype': '', 'kv_layout': '', 'tp_rank': 0, 'tp_size': 1, 'pp_rank': 0, 'pp_size': 1, 'lora': '',
                 'cache_salt': '', 'multimodal_hashes': [], 'custom': [], 'hash': 'sha256', 'block_tokens': 128}
log = logging.getLogger('ems')


def hasher_of(domain, block_tokens=128):
    """What makes keys of names in a domain, as EngineQueue takes it."""
    return _ems.BlockHasher(**{**DOMAIN_FIELDS, 'block_tokens': block_tokens, **domain})


class EngineQueue:
    """Thread-safe. Blocks live in a domain: names of different domains never meet.

    domain: model and the other fields of ems.ContextCache's domain, as a dict. timeout: seconds for each batch, its wait for a
    thread included. start_timeout: how long the constructor waits for the pool. Raises what is wrong with the arguments, or
    NotFound for a namespace that is not there; never because the pool is away, or something else answers in its place.
    """

    def __init__(self, domain, *, controller=None, namespace=None, timeout=2.0, start_timeout=3.0, threads=3, lanes=3,
                 waiting_max=1024, durability='', shm_token='', transport='auto', block_tokens=128):
        for name, value in (('threads', threads), ('lanes', lanes), ('waiting_max', waiting_max)):
            if not 1 <= value <= BOUNDS[name]:
                raise InvalidArgument(f'{name} is {value}; it may be 1 to {BOUNDS[name]}')
        self._client = None
        self._closing = threading.Event()
        self._connecting = None
        self._native = abandon_in_child(_ems.BatchQueue(
            hasher=hasher_of(domain, block_tokens), threads=threads, lanes=lanes, waiting_max=waiting_max, timeout=timeout,
            durability=durability))
        self._connect_with = {'controller': controller, 'namespace': namespace, 'timeout': timeout, 'shm_token': shm_token,
                              'transport': transport}
        process.connecting()
        try:
            self._attach(start_timeout)
        except (NotFound, InvalidArgument):
            raise
        except Error as error:
            log.warning('the pool cannot be reached, all is a miss until it can: %s', error)
            # By a weak reference: a queue that is dropped without close() ends its thread, too.
            mine = weakref.ref(self, lambda _, closing=self._closing: closing.set())
            self._connecting = threading.Thread(target=_connect_later, args=(mine, self._closing), name='ems-connect',
                                                daemon=True)
            self._connecting.start()

    def _attach(self, start_timeout):
        client = Client(start_timeout=start_timeout, **self._connect_with)
        self._native.attach(client._native)
        self._client = client

    @property
    def client(self):
        """The ems.Client, or None while the pool cannot be reached."""
        return self._client

    @property
    def event_fd(self):
        """Readable while there is something to drain."""
        return self._native.event_fd

    def submit(self, kind, names, memory=None, *, hashed=False):
        """Starts a batch and returns its id: 'set', 'get', 'exists' or 'remove'. Never blocks, and never raises.

        memory[i]: what has the buffer protocol, or a list of it; for 'get' writable, and exactly as long as the block. It is
        kept until the batch has been drained. `hashed`: names are keys already. What makes no sense is over at once, too; names
        that cannot be counted have no bools.
        """
        try:
            names = list(names)
            return self._native.submit(kind, names, memory, hashed)
        except Exception as error:  # an engine's thread must not end for it
            log.error('a batch was refused: %s', error)
            return self._native.fail(_count(names), str(error))

    def drain(self):
        """[(id, ok, error text or None, [bool for each name])] of all that is over. Never blocks.

        ok: of a set, all blocks are stored; of a get, all have arrived; of others, some block was answered.
        """
        return self._native.drain()

    def run_at(self, kind, names, addresses=None, sizes=None, parts=1, *, hashed=False):
        """A batch on this thread; returns (bools, error text or None), always a bool for each name. Never raises.

        addresses, sizes: `parts` pieces of memory of each name; they are not checked.
        """
        try:
            names = list(names)
            return self._native.run_at(kind, names, addresses, sizes, parts, hashed)
        except Exception as error:
            log.error('a batch was refused: %s', error)
            return [False] * _count(names), str(error)

    def wait(self, seconds):
        """Waits until there is something to drain; False: not in this time."""
        poller = select.poll()  # select() knows no descriptors above 1023
        poller.register(self.event_fd, select.POLLIN)
        return bool(poller.poll(max(0, seconds) * 1000))  # below 0 it would wait for ever

    def close(self):
        """Ends what waits, and waits for what runs: then nothing touches memory any more. Again: does nothing."""
        self._closing.set()
        if self._connecting is not None:
            self._connecting.join()
        self._native.close()
        if self._client is not None:
            self._client.close()


def _count(names):
    return len(names) if isinstance(names, list) else 0


def _connect_later(mine, closing):
    """`mine`: a weak reference to the queue. Tries until it is connected, closed or gone."""
    told = False
    while not closing.wait(RETRY_SECONDS):
        queue = mine()
        if queue is None:
            return
        try:
            queue._attach(RETRY_SECONDS)
            log.warning('the pool is connected')
            return
        except Exception as error:  # whatever it is: the engine goes on without the pool
            is_final = isinstance(error, (NotFound, InvalidArgument))  # no time will mend it
            log.log(logging.WARNING if is_final and not told else logging.DEBUG, 'not connected yet: %s', error)
            told = told or is_final
        del queue
