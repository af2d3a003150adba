"""Random numbers that the program draws during an iteration.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class DrawsBetween(ShardSituation):
    """A program that draws from the global random generators between two indices.

    It gets the numbers that it would get without the sampler, and the indices stay the same.
    """

    fact: ClassVar[str] = (
        "an iteration changes the random numbers that the program draws between indices, or these "
        "change the indices"
    )
    capability: ClassVar[str] = "draws_between"
    means: ClassVar[str] = "random numbers drawn between two indices"

    kind: Literal["draws between"] = "draws between"
