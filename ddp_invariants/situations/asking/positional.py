"""Arguments by position.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class Positional(ShardSituation):
    """A sampler whose arguments are given by position, as far as the signature permits."""

    fact: ClassVar[str] = "arguments by position give other indices than the same arguments by name"
    capability: ClassVar[str] = "positional"
    means: ClassVar[str] = "arguments by position"

    kind: Literal["positional"] = "positional"
