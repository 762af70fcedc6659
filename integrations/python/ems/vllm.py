"""EMS in vLLM: EmsTierManager, a secondary tier behind its CPU tier, and EmsConnector, a KV connector. docs/engines/VLLM.md.

Both are made when they are first asked for, for they are subclasses of vLLM's; ems.vllm_tier and ems.vllm_connector are all of
them but that.
"""
import collections
import importlib
import inspect
import logging
import sys

TIER_BASE = 'vllm.v1.kv_offload.tiering.base'
CONNECTOR_BASE = 'vllm.distributed.kv_transfer.kv_connector.v1.base'
TIER_FACTORY = 'vllm.v1.kv_offload.tiering.factory'
TRANSFER_STATE = 'vllm.distributed.kv_transfer.kv_transfer_state'
log = logging.getLogger('ems')


def _theirs(module, name, wanted):
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ImportError(f'{wanted} needs a vLLM with {module}.{name} ("pip install vllm", see docs/engines/VLLM.md), in this '
                          f'Python: {error}') from error


def register_tier(name='ems'):
    """Makes vLLM know the tier under this name, once; to be called by a plug-in, before the engine starts."""
    if name not in _registered:
        _theirs(TIER_FACTORY, 'SecondaryTierFactory', 'register_tier()').register_tier(name, __name__, 'EmsTierManager')
        _registered.add(name)


_registered = set()


def _tier_manager():
    from ems.vllm_domain import domain_of  # pylint: disable=import-outside-toplevel
    from ems.vllm_tier import EVENTS_MAX, TierConnector, block_bytes_of  # pylint: disable=import-outside-toplevel
    base = _theirs(TIER_BASE, 'SecondaryTierManager', 'ems.vllm.EmsTierManager')
    result = _theirs(TIER_BASE, 'JobResult', 'ems.vllm.EmsTierManager')
    theirs = importlib.import_module(TIER_BASE)
    # Newer releases have an enumeration for what lookup() says, ask how a request's blocks are to be offloaded, hear which blocks of
    # a load arrived, and choose tiers by where their blocks are.
    said = getattr(theirs, 'LookupResult', None)
    offloading = getattr(theirs, 'RequestOffloadingContext', None)
    said = None if said is None else {True: said.HIT, False: said.MISS, None: said.RETRY}
    event, mediums, localities = (getattr(theirs, name, None) for name in ('OffloadingEvent', 'Medium', 'Locality'))

    class EmsTierManager(TierConnector, base):
        __doc__ = TierConnector.__doc__

        if mediums is not None:
            medium = mediums.STORAGE

        def __init__(self, offloading_spec=None, primary_kv_view=None, tier_type=None, vllm_config=None, domain=None,
                     block_bytes=None, enable_kv_events=False, locality=None, **config):
            """As vLLM's factory calls it: by name, with what its release has, and the tier's configuration without its type."""
            given = {'offloading_spec': offloading_spec, 'primary_kv_view': primary_kv_view, 'tier_type': tier_type,
                     'vllm_config': vllm_config}
            known = inspect.signature(base.__init__).parameters
            base.__init__(self, **{name: value for name, value in given.items() if name in known})
            self.locality = localities(locality) if locality is not None and localities is not None else None
            publishes = getattr(getattr(offloading_spec, 'kv_events_config', None), 'enable_kv_cache_events', False)
            self._takes_events = bool(enable_kv_events and publishes and event and mediums)
            self._events = collections.deque(maxlen=EVENTS_MAX)
            block_bytes = block_bytes_of(memoryview(primary_kv_view), block_bytes)
            self.domain = domain_of(offloading_spec, vllm_config, domain, block_bytes)
            TierConnector.__init__(self, primary_kv_view, self.domain, block_bytes=block_bytes, job_result=_taking_known(result),
                                   lookup_result=said, on_stored=self._stored, **config)
            log.info('blocks of %d bytes in the domain %s', block_bytes, self.domain)

        def _stored(self, keys):
            if self._takes_events and keys:
                self._events.append(event(keys=keys, medium=self.medium, removed=False, locality=self.locality))

        def take_events(self):
            """What has been stored since the last call, as vLLM's KV events; with enable_kv_events, where vLLM publishes any."""
            events, self._events = self._events, collections.deque(maxlen=EVENTS_MAX)
            return events

        if offloading is not None:
            def on_new_request(self, req_context):
                """As its blocks are computed: what vLLM does by itself."""
                return offloading()
    return EmsTierManager


def _taking_known(cls):
    """`cls`, without those arguments that it does not know."""
    known = inspect.signature(cls).parameters
    return lambda **values: cls(**{name: value for name, value in values.items() if name in known})


def _metadata():
    from ems.vllm_step import Step  # pylint: disable=import-outside-toplevel
    base = _theirs(CONNECTOR_BASE, 'KVConnectorMetadata', 'ems.vllm.EmsConnector')

    class EmsMetadata(base):
        """A step's loads and saves, from the scheduler to the workers; it can be pickled."""

        def __init__(self, step=None):
            self.step = step or Step()
    return EmsMetadata


def _handshake():
    # Releases before it do no handshake.
    base = getattr(importlib.import_module(CONNECTOR_BASE), 'KVConnectorHandshakeMetadata', object)

    class EmsHandshake(base):
        """What a worker tells the scheduler when its KV caches are there; it can be pickled."""

        def __init__(self, pp_rank, tp_rank, layout):
            self.pp_rank, self.tp_rank, self.layout = pp_rank, tp_rank, layout
    return EmsHandshake


def _connector():
    from ems.vllm_connector import Connector  # pylint: disable=import-outside-toplevel
    base = _theirs(CONNECTOR_BASE, 'KVConnectorBase_V1', 'ems.vllm.EmsConnector')
    metadata_class = __getattr__('EmsMetadata')

    class EmsConnector(Connector, base):
        __doc__ = Connector.__doc__

        def __init__(self, vllm_config, role, kv_cache_config=None):
            try:
                base.__init__(self, vllm_config, role, kv_cache_config)
            except TypeError:  # releases before the third argument
                base.__init__(self, vllm_config, role)
            self._open(vllm_config, role, kv_cache_config)

        def _metadata_of(self, step):
            return metadata_class(step)

        def _metadata(self):
            return self._get_connector_metadata()

        def _handshake_of(self, pp_rank, tp_rank, layout):
            return __getattr__('EmsHandshake')(pp_rank, tp_rank, layout)

        def _is_handshake(self, one):
            return isinstance(one, __getattr__('EmsHandshake'))

        def _is_one_of_several(self):
            state = sys.modules.get(TRANSFER_STATE)
            return state is not None and state.has_kv_transfer_group() and state.get_kv_transfer_group() is not self
    return EmsConnector


_CLASSES = {'EmsTierManager': _tier_manager, 'EmsMetadata': _metadata, 'EmsHandshake': _handshake, 'EmsConnector': _connector}


def __getattr__(name):
    if name not in _CLASSES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    cls = globals().get(name)
    if cls is None:
        cls = _CLASSES[name]()
        cls.__module__, cls.__qualname__ = __name__, name  # as pickle looks for it
        globals()[name] = cls
    return cls
