"""A state saved in an iteration that follows one that was left.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.fields import between
from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class LeftBefore(ShardSituation):
    """An iteration that is left in the middle, and a state saved in the next one.

    Trainers look at some batches before they begin.

    Attributes:
        taken: Items taken before.
    """

    rule: ClassVar[str] = "SHARD-9"
    fact: ClassVar[str] = (
        "a state saved after an iteration was left in the middle does not continue with the rest"
    )
    capability: ClassVar[str] = "left_before"
    means: ClassVar[str] = "a state saved after an iteration that was left in the middle"

    taken: int = 1
    kind: Literal["left before"] = "left before"

    def check(self, case: Any) -> None:
        """Insist on a number in range."""
        del case
        between("taken", self.taken, 1, 4096)

    def simpler(self) -> Iterator["LeftBefore"]:
        """Yield the smallest number."""
        if self.taken != 1:
            yield LeftBefore(1)

    @classmethod
    def drawn(cls, choice: Callable[[tuple[Any, ...]], Any]) -> "LeftBefore":
        """Draw the number."""
        return cls(choice((2, 1, 3, 5)))
