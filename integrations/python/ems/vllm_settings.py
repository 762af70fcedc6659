"""The settings of vLLM's connector: what its scheduler and its workers read of vLLM's configuration."""
import json
import os
from dataclasses import dataclass, field

from ems.engine_queue import EngineQueue, hasher_of

_QUEUE_OPTIONS = ('controller', 'namespace', 'timeout', 'start_timeout', 'durability', 'shm_token', 'transport')
_OWN_OPTIONS = ('domain', 'layout', 'lookup_wait', 'staging_bytes', 'block_dim')
_MODEL_FIELDS = ('revision', 'quantization', 'hf_config_path', 'hf_overrides', 'rope_scaling', 'rope_theta',
                 'disable_sliding_window', 'override_attention_dtype')  # of vLLM's ModelConfig, where it has them: KV is another with another value


@dataclass
class Settings:
    """What of vLLM's configuration makes bytes differ, the same in scheduler and workers, and this connector's options."""
    model: str
    dtype: str
    block_tokens: int
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    extra: dict
    custom: list = field(default_factory=list)

    @staticmethod
    def of(vllm_config, block_tokens=None):
        """block_tokens: of the blocks that vLLM's block ids name; None: as its configuration says."""
        extra = dict(getattr(vllm_config.kv_transfer_config, 'kv_connector_extra_config', None) or {})
        unknown = sorted(set(extra) - set(_QUEUE_OPTIONS) - set(_OWN_OPTIONS))
        if unknown:
            raise ValueError(f'kv_connector_extra_config has {", ".join(unknown)}; known are '
                             f'{", ".join(_QUEUE_OPTIONS + _OWN_OPTIONS)}')
        parallel, model, cache = vllm_config.parallel_config, vllm_config.model_config, vllm_config.cache_config
        cache_dtype = str(getattr(cache, 'cache_dtype', ''))
        role = str(getattr(vllm_config.kv_transfer_config, 'kv_role', None) or 'kv_both')
        if role != 'kv_both':
            raise ValueError(f'kv_role is {role}: EMS loads and saves in every engine; say kv_both')
        if not getattr(model, 'is_prefix_caching_supported', True):
            raise ValueError(f'{model.model}: vLLM caches no prefixes of such a model, as one that pools over all tokens of a prompt, '
                             'and so does EMS')
        for name in ('decode_context_parallel_size', 'prefill_context_parallel_size'):
            if int(getattr(parallel, name, 1) or 1) > 1:
                raise ValueError(f'{name} is {getattr(parallel, name)}: EMS takes blocks that one rank has whole; use LMCache with '
                                 'EMS behind it')
        if getattr(cache, 'calculate_kv_scales', False) and cache_dtype.startswith('fp8'):
            raise ValueError('calculate_kv_scales: each process finds scales of its own, which its blocks do not carry; use '
                             "the checkpoint's")
        tp_size = int(getattr(parallel, 'tensor_parallel_size', 1))
        pp_size = int(getattr(parallel, 'pipeline_parallel_size', 1))
        if tp_size * pp_size > 1 and getattr(parallel, 'distributed_executor_backend', None) == 'external_launcher':
            raise ValueError('distributed_executor_backend is external_launcher: each rank has a scheduler of its own, which hears of '
                             "no other rank's load errors; let vLLM start the ranks")
        rank = int(getattr(parallel, 'rank', 0))  # of all replicas, where a launcher from outside starts several
        return Settings(
            model=str(model.model), dtype=f'{getattr(model, "dtype", "")}/{cache_dtype}',
            block_tokens=int(block_tokens or cache.block_size),
            tp_rank=rank % tp_size, tp_size=tp_size, pp_rank=rank // tp_size % pp_size, pp_size=pp_size, extra=extra,
            custom=model_fields(vllm_config))

    @property
    def workers(self):
        """How many there are: each has its part of a block."""
        return self.tp_size * self.pp_size

    @property
    def timeout(self):
        """Seconds for each batch."""
        return float(self.extra.get('timeout', 1.0))

    @property
    def staging_bytes(self):
        """Memory of the saves under way in each worker."""
        return int(self.extra.get('staging_bytes', 1 << 30))

    def domain(self, layout, tp_rank, pp_rank):
        """Of the blocks of a worker. 'seat' is in the keys of all blocks that pools hold: it stays."""
        return {'model': self.model, 'dtype': self.dtype, 'kv_layout': layout, 'tp_rank': tp_rank, 'tp_size': self.tp_size,
                'pp_rank': pp_rank, 'pp_size': self.pp_size, 'block_tokens': self.block_tokens,
                'custom': [('seat', 'vllm'), ('domain', str(self.extra.get('domain', ''))), *self.custom]}

    def keys(self, layout, tp_rank, pp_rank):
        """A function: names of blocks → their keys in the pool."""
        hasher = hasher_of(self.domain(layout, tp_rank, pp_rank))
        return lambda names: [hasher.own_key(name) for name in names]

    def queue(self, moves_blocks=False):
        """Takes keys; the layout is known later than it is made. moves_blocks: with threads for copies as fast as a device's."""
        threads = max(3, min(8, (os.cpu_count() or 2) // 2)) if moves_blocks else 3
        options = {name: self.extra[name] for name in _QUEUE_OPTIONS if name in self.extra}
        return EngineQueue({'model': self.model}, block_tokens=self.block_tokens,
                           **{'threads': threads, 'lanes': threads, **options, 'timeout': self.timeout})


def model_fields(vllm_config):
    """[(name, text)] of a model's options with which its KV is another, beside name and dtypes."""
    model = vllm_config.model_config
    return [*((name, _text(getattr(model, name, None))) for name in _MODEL_FIELDS), ('context', _context(model)),
            ('draft', _draft(vllm_config))]


def _context(model):
    """The context's length where KV depends on it: models with two sets of RoPE factors choose one by it."""
    config = getattr(model, 'hf_text_config', None) or getattr(model, 'hf_config', None)
    if config is not None:
        ropes = ' '.join(str(getattr(config, name, '')) for name in ('rope_scaling', 'rope_parameters'))
        if not any(word in ropes for word in ('short_factor', 'long_factor', 'longrope', "'su'")):
            return ''
    return _text(getattr(model, 'max_model_len', None))


def _draft(vllm_config):
    """The model that drafts: its layers are among those whose KV is kept."""
    model = getattr(getattr(vllm_config, 'speculative_config', None), 'draft_model_config', None)
    fields = ('model', 'dtype', *_MODEL_FIELDS) if model is not None else ()
    return '/'.join(_text(getattr(model, name, None)) for name in fields)


def _text(value):
    """Of an option: '' where it is not set, and the same in each process."""
    if not value:
        return ''
    if callable(value):
        return f'{getattr(value, "__module__", "")}.{getattr(value, "__qualname__", type(value).__qualname__)}'
    return json.dumps(value, sort_keys=True, default=_text) if isinstance(value, dict) else str(value)
