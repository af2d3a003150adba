"""A dataset whose length changes between two epochs.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.fields import between, require
from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class ChangedLength(ShardSituation):
    """A dataset that grows or shrinks after the first epoch, under a sampler made before.

    No document says when a sampler reads the length. It may keep to the length at construction,
    or deal the present samples, or raise. The ranks' indices must fit the one or the other.

    Attributes:
        by: Samples that the dataset gains; below 0, samples that it loses. One sample is left.
    """

    fact: ClassVar[str] = (
        "after the dataset's length changed, the ranks' indices fit neither the old length nor "
        "the new one"
    )
    capability: ClassVar[str] = "changed_length"
    may_crash: ClassVar[bool] = True
    means: ClassVar[str] = "a dataset whose length changes between two epochs"

    by: int = -2
    kind: Literal["changed length"] = "changed length"

    def check(self, case: Any) -> None:
        """Insist on a change in range."""
        del case
        between("by", self.by, -4096, 4096)
        require(self.by != 0, "by", self.by, "not 0")

    def simpler(self) -> Iterator["ChangedLength"]:
        """Yield the smallest changes in the same direction."""
        for by in (-1, -2) if self.by < 0 else (1, 2):
            if abs(by) < abs(self.by):
                yield ChangedLength(by)

    def samples(self, case: Any) -> int:
        """Return the dataset's length in the end."""
        samples: int = case.data.samples
        return max(1, samples + self.by)

    def expected(self, case: Any) -> tuple[int, ...]:
        """Return no epoch."""
        del case
        return ()

    @classmethod
    def drawn(cls, choice: Callable[[tuple[Any, ...]], Any]) -> "ChangedLength":
        """Draw the change."""
        return cls(choice((-2, -1, 1, 2, -5, 5, -9, 9, 16)))
