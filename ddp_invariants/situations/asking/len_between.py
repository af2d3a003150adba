"""Calls of `len` before, during and after an iteration.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class LenBetween(ShardSituation):
    """Calls of `len(sampler)` before, during and after an iteration, and before the next epoch is set.

    None of them may change the indices, and all must return one number.
    """

    fact: ClassVar[str] = "len(sampler) changes during an iteration, or changes the indices"
    capability: ClassVar[str] = "len_between"
    means: ClassVar[str] = "len(sampler) during an iteration"

    kind: Literal["len between"] = "len between"
