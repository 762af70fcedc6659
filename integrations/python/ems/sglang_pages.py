"""Pages of one host pool of SGLang: what makes their bytes, so that no other pool answers for it, and where they lie."""
import logging

from ems.engine_queue import hasher_of
from ems.errors import InvalidArgument

log = logging.getLogger('ems')
_ELSEWHERE = ('tp_rank', 'tp_size', 'tp_lcm_size', 'pp_rank', 'pp_size')
_REPLICAS = ('dp_rank', 'dp_size')  # they compute the same
RANKS = (*_ELSEWHERE, *_REPLICAS, 'attn_cp_rank', 'attn_cp_size')  # that are known
_SHAPE = ('layout', 'page_size', 'layer_num', 'start_layer', 'end_layer', 'head_num', 'head_dim', 'v_head_dim', 'kv_lora_rank',
          'qk_rope_head_dim')
# Of pools beside the KV pool: states of Mamba, the indexer of DSA, compressed pools of DeepSeek V4.
_SHAPE_BESIDE = ('size_per_token', 'num_mamba_layers', 'temporal_dtype', 'temporal_state_shape', 'conv_dtype',
                 'conv_state_shapes', 'indexer_dtype', 'index_head_dim', 'indexer_quant_block_size', 'item_bytes',
                 'slot_page_size', 'state_page_bytes', 'swa_page_size', 'ring_size')
_REPLICATED = ('kv_lora_rank', 'index_head_dim', 'item_bytes', 'state_page_bytes')  # a pool that has one is not split by heads
KV, MAMBA = 'kv', 'mamba'


def slices(fields):
    """[(name, value)] of ranks and sizes beside tp's and pp's, but 0 of 1: such a rank may have a slice of each page.

    One that is not known here is taken for such a one: ranks share less than they might, and never wrong bytes.
    """
    result = []
    for name, value in sorted(fields.items()):
        if not name.endswith(('_rank', '_size')) or name in _ELSEWHERE + _REPLICAS:
            continue
        if str(value) == ('0' if name.endswith('_rank') else '1'):
            continue
        if name not in RANKS:
            log.warning("EMS does not know SGLang's %s: only those with the same %s share pages", name, value)
        result.append((name, str(value)))
    return result


def _dtype_name(dtype):
    """torch.bfloat16: 'bfloat16'. None: ''."""
    return '' if dtype is None else str(dtype).rsplit('.', maxsplit=1)[-1]


def _facts_of(pool, names):
    """{name: text} of what makes the bytes of a page, as the host pool tells it; what it does not tell is left out.

    Its own dtype is the one of storing, uint8 for each kind of fp8; that of the numbers is in the device's pool.
    """
    facts = {'pool': type(pool).__name__, 'pool_stored_dtype': _dtype_name(getattr(pool, 'dtype', None)),
             'pool_dtype': _dtype_name(getattr(getattr(pool, 'device_pool', None), 'dtype', None))}
    for name in names:
        facts[f'pool_{name}'] = str(getattr(pool, name, ''))
    return {name: text for name, text in facts.items() if text}


def is_replicated(pool):
    """Whether each tp rank of an MLA model has the same bytes in this pool: not if it is split by heads, or is not known."""
    return not hasattr(pool, 'head_num') and any(hasattr(pool, name) for name in _REPLICATED)


class Pages:
    """Immutable. `pool`: None, or SGLang's host pool, or group of pools, of which the anchor counts.

    domain: what the deployment has in common. component: what SGLang calls a pool beside the KV pool. Raises InvalidArgument
    for a pool that does not tell its dtype, where the domain does not either.
    """

    def __init__(self, domain, pool=None, component=None):
        anchor = getattr(getattr(pool, 'anchor_entry', None), 'host_pool', None) or pool
        custom = list(domain['custom'])
        if component is not None:
            custom.append(('component', component))
        if pool is not None:
            facts = _facts_of(anchor, _SHAPE if component is None else _SHAPE + _SHAPE_BESIDE)
            if not domain['dtype'] and 'pool_stored_dtype' not in facts:
                raise InvalidArgument('the host pool does not tell its dtype: "dtype" has to be in the extra config')
            custom += sorted(facts.items())
        self.domain, self.pool = {**domain, 'custom': custom}, pool
        # DeepSeek V4's KV pool counts pages and holds none: all there is lies in the pools beside it.
        self.is_logical = getattr(anchor, 'kv_buffer', self) is None
        self._hasher = hasher_of(self.domain)

    def names(self, keys):
        return [self._hasher.own_key(key) for key in keys]

    def memory(self, count, host_indices):
        """(addresses, sizes) of `count` pages, as many pieces for each."""
        page_size = getattr(self.pool, 'page_size', None)
        if page_size is not None and len(host_indices) != count * page_size:
            raise ValueError(f'{count} keys of pages of {page_size}, but {len(host_indices)} indices')
        addresses, sizes = self.pool.get_page_buffer_meta(host_indices)[:2]
        if not addresses or len(addresses) % count:
            raise ValueError(f'{count} keys, but pieces of memory for {len(addresses)}')
        return addresses, sizes
