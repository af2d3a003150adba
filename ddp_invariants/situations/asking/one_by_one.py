"""Samplers of the ranks that iterate one after another.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class OneByOne(ShardSituation):
    """Ranks that are asked one after another: the last rank iterates all epochs before any other."""

    fact: ClassVar[str] = (
        "a rank's indices depend on other samplers that the process has made or iterated"
    )
    capability: ClassVar[str] = "one_by_one"
    means: ClassVar[str] = "samplers in one process that iterate one after another"

    kind: Literal["one by one"] = "one by one"

    def expected(self, case: Any) -> tuple[int, ...]:
        """Return all epochs."""
        return tuple(range(len(case.epochs)))
