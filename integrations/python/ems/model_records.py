"""The records that ems.ModelCache returns."""
from dataclasses import dataclass, field
from typing import Any, Optional

from ems.errors import Error


@dataclass
class PrefetchJob:
    """A job that brings a version into DRAM. `state`: none, running, done, failed or cancelled. Times in seconds."""
    number: int
    state: str
    priority: int
    error: Optional[Error]
    bytes_done: int
    source_bytes: int
    promoted_bytes: int
    shared_bytes: int
    elapsed: float


@dataclass
class ModelInfo:
    """A version, as the controller knows it. `job`: its last PrefetchJob.

    `first_read`: how often a block is read from the source before the pool knows it, as it was added: 'once', 'twice unless
    checked' (by a checksum of the source) or 'twice'.
    """
    model: str
    version: str
    namespace: str
    source: str
    first_read: str
    bytes: int
    files: int
    blocks: int
    blocks_known: int
    pinned: bool
    age: float
    unused: float
    job: PrefetchJob

    @property
    def name(self) -> str:
        return f'{self.model}@{self.version}'


@dataclass
class ModelCheck:
    """Where the bytes and blocks of a version are: DRAM, the SSDs alone, nowhere, or on servers that did not answer."""
    info: ModelInfo
    dram_bytes: int
    ssd_bytes: int
    absent_bytes: int
    unreachable_bytes: int
    dram_blocks: int
    ssd_blocks: int
    absent_blocks: int
    unreachable_blocks: int


@dataclass
class PrefetchProgress:
    """`bytes_per_s` lately; `time_left` in seconds at that rate, or None."""
    info: ModelInfo
    bytes_per_s: float
    time_left: Optional[float]


@dataclass
class LoadStats:
    """What a load did. `detour`: why blocks were read from the source, '' if none were. Times in seconds."""
    bytes: int
    dram_bytes: int
    ssd_bytes: int
    source_bytes: int
    blocks: int
    misses: int
    jobs: int
    elapsed: float
    waiting: float
    detour: str


@dataclass
class LoadedTensor:
    """A tensor, or the slice of it that was asked for, and what is known of it."""
    name: str
    tensor: Any = field(repr=False)
    file: str
    dtype: str
