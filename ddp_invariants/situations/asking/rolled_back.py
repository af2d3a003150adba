"""A saved state that is loaded into a sampler in use.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class RolledBack(ShardSituation):
    """A state that is loaded into a sampler which is in the middle of a later epoch.

    Programs do so that go back to the last checkpoint after the loss has diverged.
    """

    rule: ClassVar[str] = "SHARD-9"
    fact: ClassVar[str] = (
        "a state that is loaded into a sampler in use does not continue with the rest"
    )
    capability: ClassVar[str] = "rolled_back"
    may_crash: ClassVar[bool] = True
    means: ClassVar[str] = "a state that is loaded into a sampler in use"

    kind: Literal["rolled back"] = "rolled back"
