"""The message of each step from the scheduler's half of vLLM's connector to the workers' half.

The scheduler's half asks the pool which blocks of a prompt are there (exists) before it announces any to vLLM; the workers' half
loads and saves them through host memory of its own. A block that was announced and did not arrive is a load error, and vLLM
computes it.

Wrong KV must not reach the pool: what a step computes may stand on a block that did not arrive, on this worker or, the hidden
states being mixed, on another; and vLLM may have planned the next steps already. So steps have numbers. A worker saves nothing
from its own load error on until the scheduler says that it has heard of it, and of several workers each keeps what it copied
until the scheduler has heard that no worker failed in that step.

vLLM keeps a block that did not arrive in its own prefix cache, to be computed again. A request that ends before it is, or loses its
blocks, leaves it there for others, who take it for computed, and what was computed on it. The scheduler's half remembers such blocks
until they are computed or loaded, and names them in each step that builds on one; workers report them as load errors, so that vLLM
computes them, and nothing on them is stored.

A block is of use when all workers have their parts of it. So the scheduler asks for those of all, and where there are several
workers it alone decides how many blocks a step saves, by what they may have under way.
"""
from dataclasses import dataclass, field


@dataclass
class Transfer:
    """Blocks of a request: names[i] belongs to vLLM's block block_ids[i]."""
    names: list = field(default_factory=list)
    block_ids: list = field(default_factory=list)

    def extend(self, names, block_ids):
        self.names += names
        self.block_ids += block_ids

    def first(self, count):
        return Transfer(self.names[:count], self.block_ids[:count])


@dataclass
class Step:
    """What the scheduler tells the workers with each step."""
    number: int = 0   # from 1
    heard: int = 0    # of all steps up to this one the scheduler knows which loads failed
    void: int = 0     # what was saved in steps up to this one, and is still held, is not to be stored
    loads: Transfer = field(default_factory=Transfer)
    saves: Transfer = field(default_factory=Transfer)  # several workers save these and no others
    lost: list = field(default_factory=list)           # vLLM's blocks that this step takes for computed, and are not
