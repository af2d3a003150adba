"""Rank and world size from a launcher's environment, in a process without a group.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.fields import between
from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class FromTheEnvironment(ShardSituation):
    """A sampler that gets no rank and no world size, before the process has a group.

    The launcher's variables are those of a job on several nodes. Without a group, a sampler may
    also serve the process as a world of one rank.

    Attributes:
        node: The ranks of a node, which are numbered anew on each node by `LOCAL_RANK`.
    """

    fact: ClassVar[str] = (
        "rank and world size from the environment give other indices than the same arguments"
    )
    capability: ClassVar[str] = "from_the_environment"
    means: ClassVar[str] = "rank and world size from a launcher's environment"

    node: int = 2
    kind: Literal["from the environment"] = "from the environment"

    def check(self, case: Any) -> None:
        """Insist on a number in range."""
        del case
        between("node", self.node, 1, 4096)

    def simpler(self) -> Iterator["FromTheEnvironment"]:
        """Yield nodes of two ranks."""
        if self.node != 2:
            yield FromTheEnvironment(2)

    @classmethod
    def drawn(cls, choice: Callable[[tuple[Any, ...]], Any]) -> "FromTheEnvironment":
        """Draw the ranks of a node."""
        return cls(choice((2, 1, 3, 8)))
