"""A process group that is a part of all processes.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class InAGroup(ShardSituation):
    """A sampler that gets a process group in place of a rank and a world size.

    The group consists of every second process, as if each model were divided between two.
    """

    fact: ClassVar[str] = (
        "a process group gives other indices than its rank and world size as arguments"
    )
    capability: ClassVar[str] = "in_a_group"
    means: ClassVar[str] = "a process group in place of rank and world size"

    kind: Literal["in a group"] = "in a group"
