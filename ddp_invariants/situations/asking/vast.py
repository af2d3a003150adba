"""A dataset too long for any list of its indices.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.fields import between
from ddp_invariants.cases.shard_situation import ShardSituation

SHORTEST, LONGEST = 2**38, 2**40


@dataclass(frozen=True)
class Vast(ShardSituation):
    """A dataset of up to 2^40 samples, of which each rank asks for its length and first indices.

    A sampler that makes a list of all indices can answer for its length alone.

    Attributes:
        length: The number of samples.
    """

    fact: ClassVar[str] = (
        "of a vast dataset, the ranks' lengths and first indices do not fit together"
    )
    capability: ClassVar[str] = "vast"
    may_crash: ClassVar[bool] = True
    means: ClassVar[str] = "a dataset of 2^40 samples, of which no list of all indices can be made"

    length: int = LONGEST
    kind: Literal["vast"] = "vast"

    def check(self, case: Any) -> None:
        """Insist on a length that no list can have."""
        del case
        between("length", self.length, SHORTEST, LONGEST)

    def simpler(self) -> Iterator["Vast"]:
        """Yield the longest dataset, whose length is a power of two."""
        if self.length != LONGEST:
            yield Vast()

    def samples(self, case: Any) -> int:
        """Return the length."""
        del case
        return self.length

    def expected(self, case: Any) -> tuple[int, ...]:
        """Return no epoch: those of the case are of another dataset."""
        del case
        return ()

    @classmethod
    def drawn(cls, choice: Callable[[tuple[Any, ...]], Any]) -> "Vast":
        """Draw the length."""
        return cls(choice((LONGEST, LONGEST - 1, SHORTEST + 1, 3 * SHORTEST, LONGEST - 87)))
