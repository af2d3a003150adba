"""A saved state that is kept in memory.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class Kept(ShardSituation):
    """A state that is neither written nor copied, while its sampler goes on to the epoch's end.

    Then the program loads it into one sampler, and once more into another one. Programs that write
    checkpoints in the background, or that try a step again, keep states so.
    """

    rule: ClassVar[str] = "SHARD-9"
    fact: ClassVar[str] = "a saved state that is kept in memory changes"
    capability: ClassVar[str] = "kept_state"
    may_crash: ClassVar[bool] = True
    means: ClassVar[str] = "a state that is kept in memory while samplers go on from it"

    kind: Literal["kept"] = "kept"
