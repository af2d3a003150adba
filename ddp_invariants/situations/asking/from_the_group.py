"""Rank and world size from the process group.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class FromTheGroup(ShardSituation):
    """A sampler that gets no rank and no world size, and takes both from the process group."""

    fact: ClassVar[str] = (
        "rank and world size from the process group give other indices than the same arguments"
    )
    capability: ClassVar[str] = "from_the_group"
    means: ClassVar[str] = "rank and world size from the process group"

    kind: Literal["from the group"] = "from the group"
