"""A saved state that is kept in memory.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class Kept(ShardSituation):
    """A state that is neither written nor copied, while its sampler goes on to the epoch's end.

    Programs that write checkpoints in the background keep states so.
    """

    rule: ClassVar[str] = "SHARD-9"
    fact: ClassVar[str] = "a saved state changes while its sampler goes on"
    capability: ClassVar[str] = "kept_state"
    may_crash: ClassVar[bool] = True
    means: ClassVar[str] = "a state that is kept in memory while its sampler goes on"

    kind: Literal["kept"] = "kept"
