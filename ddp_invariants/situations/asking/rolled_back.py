"""A saved state that is loaded into a sampler in use.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class RolledBack(ShardSituation):
    """A state that is loaded into a sampler which is in the middle of a later epoch.

    Programs do so that go back to the last checkpoint after the loss has diverged.

    Attributes:
        begun: False if the state is that of an epoch's start, and not saved after the batches that
            the case names.
    """

    rule: ClassVar[str] = "SHARD-9"
    fact: ClassVar[str] = (
        "a state that is loaded into a sampler in use does not continue with the rest"
    )
    capability: ClassVar[str] = "rolled_back"
    may_crash: ClassVar[bool] = True
    means: ClassVar[str] = "a state that is loaded into a sampler in use"

    begun: bool = True
    kind: Literal["rolled back"] = "rolled back"

    @property
    def words(self) -> str:
        """The situation as `describe` prints it."""
        return self.kind if self.begun else f"{self.kind} to the epoch's start"

    def simpler(self) -> Iterator["RolledBack"]:
        """Yield a state of an epoch that was begun."""
        if not self.begun:
            yield RolledBack()

    @classmethod
    def drawn(cls, choice: Callable[[tuple[Any, ...]], Any]) -> "RolledBack":
        """Draw whether the epoch was begun."""
        return cls(choice((True, False)))
