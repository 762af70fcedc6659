"""EMS: a pool of memory for LLM inference.

Client, ContextCache, KvLayout, LayerLoad   the interface of this project; errors are in ems.errors
DeviceKvLayout                              KV in the memory of a device
ModelCache, ModelTensors, TensorLoad        model weights: versions, loads
Ems, EmsConfig, CcConfig, …                 drop-in names of the SDK that engines know
"""
import atexit
import os

from ems import _ems, errors
from ems.drop_in_types import CcConfig, CcFuture, CcKvOption, CcResult, KvBufferWrapper, PrimaryKey
from ems.cc_v1.cc_config import CcConfig_v1, KVCacheType
from ems.cc_v1.context_cache import ContextCache_v1
from ems.client import Client, KeyInfo, ObjectView
from ems.common.exception import EmsErrorCode, EmsException
from ems.context import ContextCache, KvLayout, LookupResult, SaveResult
from ems.context_caching import ContextCaching
from ems.device_layout import DeviceKvLayout
from ems.facade import Ems, EmsConfig, Health
from ems.layer_load import LayerLoad, LayerReady, LoadResult
from ems.model_reads import ModelTensors, TensorLoad, TensorSlice
from ems.model_records import LoadedTensor, LoadStats, ModelCheck, ModelInfo, PrefetchJob, PrefetchProgress
from ems.models import ModelCache

__version__ = _ems.version
__all__ = [
    'CcConfig', 'CcConfig_v1', 'CcFuture', 'CcKvOption', 'CcResult', 'Client', 'ContextCache', 'ContextCache_v1',
    'ContextCaching', 'DeviceKvLayout', 'Ems', 'EmsConfig', 'EmsErrorCode', 'EmsException', 'Health', 'KVCacheType', 'KvBufferWrapper',
    'KeyInfo', 'KvLayout', 'LayerLoad', 'LayerReady', 'LoadResult', 'LoadStats', 'LoadedTensor', 'LookupResult', 'ModelCache',
    'ModelCheck', 'ModelInfo', 'ModelTensors', 'ObjectView', 'PrefetchJob', 'PrefetchProgress', 'PrimaryKey', 'SaveResult', 'TensorLoad',
    'TensorSlice', 'errors',
]

# debug, info, warn, error or off; lines go to standard error.
_ems.set_log_level(os.environ.get('EMS_LOG_LEVEL') or 'warn')
atexit.register(Ems.shutdown)
