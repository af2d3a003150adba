"""An iteration that the program leaves in the middle, and begins again.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.fields import between
from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class Abandoned(ShardSituation):
    """An iteration that is left after some items; the next one starts from the beginning.

    Attributes:
        taken: Items taken before.
    """

    fact: ClassVar[str] = (
        "after an iteration was left in the middle, the next one does not start from the beginning"
    )
    capability: ClassVar[str] = "abandoned"
    means: ClassVar[str] = "an iteration that is left in the middle and begun again"

    taken: int = 1
    kind: Literal["abandoned"] = "abandoned"

    def check(self, case: Any) -> None:
        """Insist on a number in range."""
        del case
        between("taken", self.taken, 1, 4096)

    def simpler(self) -> Iterator["Abandoned"]:
        """Yield the smallest number."""
        if self.taken != 1:
            yield Abandoned(1)

    @classmethod
    def drawn(cls, choice: Callable[[tuple[Any, ...]], Any]) -> "Abandoned":
        """Draw the number."""
        return cls(choice((2, 1, 3, 5, 13)))
