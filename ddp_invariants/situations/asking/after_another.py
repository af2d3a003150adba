"""A sampler of another world in the same process.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.fields import between
from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class AfterAnother(ShardSituation):
    """Samplers of an epoch that a sampler of another world size has iterated before.

    No case asks for that epoch in a plain way, so no order is expected: the shards of all ranks must
    cover the dataset, without overlap beyond the padding.

    Attributes:
        ranks: The other world size.
    """

    fact: ClassVar[str] = (
        "after a sampler of another world size, the ranks' indices do not fit together"
    )
    capability: ClassVar[str] = "after_another"
    means: ClassVar[str] = "samplers of several world sizes in one process"

    ranks: int = 2
    kind: Literal["after another"] = "after another"

    def check(self, case: Any) -> None:
        """Insist on a number in range."""
        del case
        between("ranks of the other sampler", self.ranks, 1, 4096)

    def simpler(self) -> Iterator["AfterAnother"]:
        """Yield fewer ranks."""
        for ranks in (1, 2):
            if ranks < self.ranks:
                yield AfterAnother(ranks)

    def expected(self, case: Any) -> tuple[int, ...]:
        """Return no epoch."""
        del case
        return ()

    @classmethod
    def drawn(cls, choice: Callable[[tuple[Any, ...]], Any]) -> "AfterAnother":
        """Draw the other world size."""
        return cls(choice((2, 3, 1, 4, 5)))
