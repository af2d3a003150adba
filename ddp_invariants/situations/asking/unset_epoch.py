"""Iterations without any call of `set_epoch`.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class UnsetEpoch(ShardSituation):
    """A program that never calls `set_epoch`.

    Nobody says which epoch it gets, so no order is expected: the shards of all ranks must cover the
    dataset, without overlap beyond the padding. If the case saves a state before the first index,
    ranks that load such a state are asked, too.
    """

    fact: ClassVar[str] = "without set_epoch, the ranks' indices do not fit together"
    capability: ClassVar[str] = "unset_epoch"
    means: ClassVar[str] = "iterations without set_epoch"

    kind: Literal["unset epoch"] = "unset epoch"

    def expected(self, case: Any) -> tuple[int, ...]:
        """Return no epoch."""
        del case
        return ()
