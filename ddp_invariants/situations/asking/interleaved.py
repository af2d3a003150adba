"""Two live iterators of one sampler, which take turns.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.fields import between
from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class Interleaved(ShardSituation):
    """Two iterators of one sampler: each must give the whole epoch.

    Attributes:
        ahead: Items that the first iterator yields before the second one is made.
    """

    fact: ClassVar[str] = "two iterators of one sampler disturb each other"
    capability: ClassVar[str] = "interleaved"
    means: ClassVar[str] = "two iterators of one sampler at a time"

    ahead: int = 0
    kind: Literal["interleaved"] = "interleaved"

    def check(self, case: Any) -> None:
        """Insist on a number in range."""
        del case
        between("ahead", self.ahead, 0, 4096)

    def simpler(self) -> Iterator["Interleaved"]:
        """Yield the smallest number."""
        if self.ahead != 0:
            yield Interleaved(0)

    def expected(self, case: Any) -> tuple[int, ...]:
        """Return the last epoch for both iterators."""
        return (len(case.epochs) - 1,) * 2

    @classmethod
    def drawn(cls, choice: Callable[[tuple[Any, ...]], Any]) -> "Interleaved":
        """Draw the number."""
        return cls(choice((1, 0, 2, 3)))
