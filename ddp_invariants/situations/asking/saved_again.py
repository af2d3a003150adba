"""A state that is saved again before the resumed sampler is iterated.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class SavedAgain(ShardSituation):
    """A state that is saved as soon as one is loaded, and then loaded into a third sampler.

    A job that is stopped again before its first batch does so.
    """

    rule: ClassVar[str] = "SHARD-9"
    fact: ClassVar[str] = (
        "a state saved as soon as one is loaded does not continue with the rest of the epoch"
    )
    capability: ClassVar[str] = "saved_again"
    means: ClassVar[str] = "a state that is saved again as soon as it is loaded"

    kind: Literal["saved again"] = "saved again"
