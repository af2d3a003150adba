"""Several calls of `set_epoch` before an iteration.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.fields import between
from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class SetAgain(ShardSituation):
    """Calls of `set_epoch` with other epochs, without any iteration between them.

    Attributes:
        before: The epochs that are set first.
    """

    fact: ClassVar[str] = (
        "a call of set_epoch that no iteration followed changes the indices of a later epoch"
    )
    capability: ClassVar[str] = "set_again"
    means: ClassVar[str] = "set_epoch called several times before an iteration"

    before: tuple[int, ...] = (1,)
    kind: Literal["set again"] = "set again"

    def check(self, case: Any) -> None:
        """Insist on epochs in range."""
        del case
        between("number of epochs set before", len(self.before), 1, 8)
        for epoch in self.before:
            between("epoch set before", epoch, 0, 2**31)

    def simpler(self) -> Iterator["SetAgain"]:
        """Yield a single earlier epoch."""
        if self.before != (1,):
            yield SetAgain((1,))

    @classmethod
    def drawn(cls, choice: Callable[[tuple[Any, ...]], Any]) -> "SetAgain":
        """Draw the epochs."""
        return cls(choice(((1,), (7,), (9, 9), (0, 4), (2, 1))))
