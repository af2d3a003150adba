"""A call of `set_epoch` while an iteration runs, which then goes on.

torch documents `set_epoch` as a call before an iterator is made, so it is about later iterators. A
sampler whose running iterator changes its order in the middle loses samples and repeats others.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.fields import between
from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class SetMeanwhile(ShardSituation):
    """The next epoch, set while an iteration runs; the iteration goes on, and the next one follows.

    Attributes:
        taken: Items that the iteration yields before.
    """

    fact: ClassVar[str] = (
        "if set_epoch is called while an iteration runs, the ranks' indices do not fit together"
    )
    capability: ClassVar[str] = "set_meanwhile"
    means: ClassVar[str] = "set_epoch called while an iteration runs"
    may_crash: ClassVar[bool] = True

    taken: int = 1
    kind: Literal["set meanwhile"] = "set meanwhile"

    def check(self, case: Any) -> None:
        """Insist on a number in range: before its first item, an iteration may not have begun."""
        del case
        between("taken", self.taken, 1, 4096)

    def simpler(self) -> Iterator["SetMeanwhile"]:
        """Yield the smallest number."""
        if self.taken != 1:
            yield SetMeanwhile(1)

    def expected(self, case: Any) -> tuple[int, ...]:
        """Return nothing: no order is expected."""
        del case
        return ()

    @classmethod
    def drawn(cls, choice: Callable[[tuple[Any, ...]], Any]) -> "SetMeanwhile":
        """Draw the number."""
        return cls(choice((1, 2, 3, 5)))
