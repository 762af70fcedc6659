"""The domain of vLLM's tier: what makes the bytes of blocks with one hash differ, as vLLM says it; and what its user adds.

vLLM's block hashes name tokens, LoRA and salt, and neither model nor layout. All that vLLM tells of the others goes in, also what
later releases add: what is not known to leave the bytes alone keeps blocks apart, which costs misses only.
"""
import dataclasses
import hashlib
import importlib
import json

from ems.vllm_settings import model_fields

CANONICAL = 'vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping'
NOT_OF_BYTES = ('engine_id', 'extra_config', 'enable_kv_cache_events', 'data_parallel_index', 'data_parallel_size',
                'data_parallel_rank_local')
_PARALLEL_FIELDS = ('rank', 'tensor_parallel_size', 'pipeline_parallel_size', 'prefill_context_parallel_size',
                    'decode_context_parallel_size')


def domain_of(spec, vllm_config, given, block_bytes):
    """A domain as ems.engine_queue.EngineQueue takes it.

    spec, vllm_config: what vLLM's factory gives, or None. given: the user's `domain`, a text or a dict of such fields; it adds to
    what vLLM says and replaces none of it. block_bytes: of a block in the CPU tier.
    Errors: ValueError  neither vLLM nor the user says which model
    """
    given = {'custom': [('domain', given)]} if isinstance(given, str) else dict(given or {})
    model, facts = _facts(spec, vllm_config)
    model = given.pop('model', '') or model
    if not model:
        raise ValueError('this vLLM does not tell its tier which model it serves: say it, as "domain": {"model": '
                         '"sha256-of-the-weights", "dtype": "bf16"}, or blocks of different models would be taken for each other')
    custom = [*given.pop('custom', []), ('block_bytes', str(block_bytes)), *facts]
    return {'model': str(model), **given, 'custom': custom}


def _facts(spec, vllm_config):
    """(model or '', [(name, text)])"""
    config = getattr(spec, 'config', None)
    if dataclasses.is_dataclass(config):
        facts = _fields(config)
        if getattr(config, 'canonical_layout', False):
            facts['canonical_format'] = importlib.import_module(CANONICAL).canonical_format_id()
        return getattr(getattr(config, 'model', None), 'name', ''), [('vllm', _json(facts))]
    # Before the middle of 2026 the tier got vLLM's configuration itself.
    vllm_config = vllm_config or getattr(spec, 'vllm_config', None)
    model = getattr(getattr(vllm_config, 'model_config', None), 'model', '')
    if not model:
        return '', []
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    facts = {name: getattr(parallel, name, None) for name in _PARALLEL_FIELDS}
    facts.update(name=model, dtype=str(vllm_config.model_config.dtype), cache_dtype=str(cache.cache_dtype),
                 block_size=cache.block_size, offloaded=str(getattr(spec, 'extra_config', {}).get('block_size', '')),
                 groups=[[group.kv_cache_spec.block_size, *group.layer_names]
                         for group in getattr(getattr(spec, 'kv_cache_config', None), 'kv_cache_groups', [])])
    return model, [('vllm', _json(facts)), *model_fields(vllm_config)]


def _fields(config):
    return {field.name: _fields(value) if dataclasses.is_dataclass(value) else value
            for field in dataclasses.fields(config) if field.name not in NOT_OF_BYTES
            for value in [getattr(config, field.name)]}


def _json(facts):
    """The names of all layers, which may be hundreds, by their digest."""
    groups = json.dumps(facts.pop('groups', []), default=_plain).encode()
    return json.dumps({**facts, 'groups': hashlib.sha256(groups).hexdigest()}, sort_keys=True, default=_plain)


def _plain(value):
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else str(value)
