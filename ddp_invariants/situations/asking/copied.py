"""A copy of a sampler.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class Copied(ShardSituation):
    """A deep copy of a sampler, made after `set_epoch`, as for a process that gets it pickled.

    The copy is iterated after the original has gone on to the next epoch.
    """

    fact: ClassVar[str] = "a copy of the sampler yields other indices"
    capability: ClassVar[str] = "copied"
    may_crash: ClassVar[bool] = True
    means: ClassVar[str] = "a deep copy of the sampler"

    kind: Literal["copied"] = "copied"
