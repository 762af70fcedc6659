"""EMS as a KV connector of vLLM, without what it is a subclass of: ems.vllm.EmsConnector is that."""
import logging

from ems.vllm_scheduler import SchedulerHalf
from ems.vllm_settings import Settings
from ems.vllm_worker import WorkerHalf

log = logging.getLogger('ems')


def _check_groups(groups):
    """One group, whose requests keep all of their blocks."""
    if len(groups) > 1:
        raise ValueError(f'a model with {len(groups)} KV cache groups: EMS takes one; use LMCache with EMS behind it')
    for group in groups:
        spec = getattr(group, 'kv_cache_spec', None)
        for one in (spec, *getattr(spec, 'kv_cache_specs', {}).values()):
            if type(one).__name__.startswith(('SlidingWindow', 'ChunkedLocal', 'Mamba')):
                raise ValueError(f'a model with {type(one).__name__}, whose requests do not keep all of their blocks: use LMCache '
                                 'with EMS behind it')


def _check_failure_policy(transfer_config):
    """Newer releases fail requests unless they are told not to."""
    if getattr(transfer_config, 'kv_load_failure_policy', 'recompute') == 'fail':
        log.error('kv_load_failure_policy is "fail": each block that is evicted between its look-up and its load ends a request with '
                  'an error. Say "kv_load_failure_policy": "recompute" in --kv-transfer-config; under MultiConnector, whose own '
                  'policy counts, say it there, and in the entry of EmsConnector, too')


def _block_tokens_of(groups):
    """Tokens of the blocks of the one group, which need not be those of vLLM's configuration; None: this vLLM does not say."""
    return next((getattr(getattr(group, 'kv_cache_spec', None), 'block_size', None) for group in groups), None)


def block_bytes_of(kv_cache_config):
    """Of a block in all layers of one worker; 0: this vLLM does not say."""
    tensors = getattr(kv_cache_config, 'kv_cache_tensors', None) or []
    return sum(tensor.size for tensor in tensors) // max(1, getattr(kv_cache_config, 'num_blocks', None) or 1)


class Connector:
    """KVConnectorBase_V1's methods; `role` says which half it is."""

    requires_kv_delivery = False  # a block that is not saved is a miss

    def _open(self, vllm_config, role, kv_cache_config=None):
        groups = getattr(kv_cache_config, 'kv_cache_groups', None) or []
        _check_groups(groups)
        settings = Settings.of(vllm_config, _block_tokens_of(groups))
        self._settings = settings
        self._num_blocks = getattr(kv_cache_config, 'num_blocks', None)
        is_scheduler = str(getattr(role, 'name', role)).upper() == 'SCHEDULER'
        if is_scheduler:
            _check_failure_policy(vllm_config.kv_transfer_config)
        self._scheduler = SchedulerHalf(settings, block_bytes_of(kv_cache_config)) if is_scheduler else None
        self._worker = None if is_scheduler else WorkerHalf(settings)

    def _metadata_of(self, step):
        raise NotImplementedError

    def _metadata(self):
        raise NotImplementedError

    def _handshake_of(self, pp_rank, tp_rank, layout):
        raise NotImplementedError

    def _is_handshake(self, one):
        raise NotImplementedError

    def _is_one_of_several(self):
        """Whether vLLM's own connector is another one, as MultiConnector, that calls this one."""
        raise NotImplementedError

    # --- Scheduler

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self._scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self._scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        return self._metadata_of(self._scheduler.build_metadata(scheduler_output))

    def update_connector_output(self, connector_output):
        self._scheduler.update_output(getattr(connector_output, 'invalid_block_ids', None) or ())

    def set_xfer_handshake_metadata(self, metadata):
        """metadata: a worker's rank, or ranks → what its get_handshake_metadata said; MultiConnector hands over others', too."""
        self._scheduler.set_layout([(one.pp_rank, one.tp_rank, one.layout) for one in metadata.values() if self._is_handshake(one)])

    set_xfer_handshake_metadata_pp_aware = set_xfer_handshake_metadata

    def request_finished(self, request, block_ids):
        return self._scheduler.request_finished(request, block_ids)

    def reset_cache(self):
        """After weights have changed: from now on this engine shares blocks with nobody, until it is started again."""
        self._scheduler.reset_cache()
        return True

    # --- Worker

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config):
        """No: nothing is done layer by layer."""
        return False

    def register_kv_caches(self, kv_caches):
        self._worker.register_kv_caches(kv_caches, self._num_blocks)
        if self._is_one_of_several():  # whose load errors this worker does not see
            self._worker.hold_saves()

    def get_handshake_metadata(self):
        """How this worker names its blocks, for the scheduler, unless that is told in the configuration.

        MultiConnector hands what one of its connectors says to all of them, and some end the start over it.
        """
        if not self._worker.layout or 'layout' in self._settings.extra or self._is_one_of_several():
            return None
        return self._handshake_of(self._settings.pp_rank, self._settings.tp_rank, self._worker.layout)

    def start_load_kv(self, forward_context, **kwargs):
        self._worker.start(self._metadata().step)

    def wait_for_layer_load(self, layer_name):
        """start_load_kv has put all in place."""

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        """wait_for_save copies all layers."""

    def wait_for_save(self):
        self._worker.finish_saves()

    def get_block_ids_with_load_errors(self):
        return self._worker.load_errors()

    def get_finished(self, finished_req_ids):
        """Nothing is loaded or saved behind vLLM's back."""
        return None, None

    def shutdown(self):
        (self._scheduler or self._worker).close()
