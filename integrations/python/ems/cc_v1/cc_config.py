"""Drop-in surface: CcConfig_v1."""
import enum
from dataclasses import dataclass


class KVCacheType(str, enum.Enum):
    """How an engine's attention keeps KV. With MLA all ranks of a tensor parallel group hold the same bytes."""
    GQA = 'GQA'
    MHA = 'MHA'
    MLA = 'MLA'
    MQA = 'MQA'


@dataclass
class CcConfig_v1:  # pylint: disable=invalid-name
    """Who this process is. Checked by Ems.init; fields may be set until then."""
    rank_id: int
    device_id: int
    model_id: str
    tp_world_size: int = 1
    pp_world_size: int = 1
    rank_in_tp_group: int = 0
    rank_in_pp_group: int = 0
    llm_engine: str = 'vllm'
    kvcache_type: KVCacheType = KVCacheType.GQA
