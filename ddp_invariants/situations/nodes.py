"""Nodes: the variables of a launcher say that the ranks stand on several nodes.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between, require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.draft import Draft


@dataclass(frozen=True)
class Nodes(Situation):
    """Environment variables as torchrun sets them on several nodes.

    The ranks themselves stay on one machine. A program may read `LOCAL_RANK`, `LOCAL_WORLD_SIZE`,
    `GROUP_RANK` and `GROUP_WORLD_SIZE`; results must not depend on them.

    Attributes:
        ranks: The ranks of each node. The last node has the remainder, which may be less.
    """

    beyond_scripts: ClassVar[str] = "its ranks stand on several nodes"
    moment: ClassVar[str] = "timing"
    in_whole_steps: ClassVar[bool] = True

    ranks: int = 2
    kind: Literal["nodes"] = "nodes"

    def check(self, case: TrainingCase) -> None:
        """Require a number of ranks on a node, and variables that nothing else changes."""
        between("nodes.ranks", self.ranks, 1, 64)
        require(
            all(each.kind != "surroundings" for each in case.situations),
            "nodes",
            self.ranks,
            "none in surroundings that set other environment variables",
        )

    @property
    def words(self) -> str:
        """The number of ranks on a node."""
        return f"nodes_of={self.ranks}"

    def simpler(self) -> Iterator["Nodes"]:
        """Yield nodes of two ranks."""
        if self.ranks != Nodes.ranks:
            yield Nodes()

    def variables(self, rank: int, ranks: int) -> dict[str, str]:
        """Return the variables of a rank, given its number and the number of all ranks."""
        node, local_rank = divmod(rank, self.ranks)
        return {
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(min(self.ranks, ranks - node * self.ranks)),
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": str(-(-ranks // self.ranks)),
            # A program may refuse several nodes without a place to meet.
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw nodes in one of 16 cases, where no rank chooses a device by its variables."""
        ranks = draft.choice((0,) * 30 + (2, 4))
        ranks = draft.choice((ranks, ranks, ranks, 3, 8)) if ranks else 0
        surrounded = any(each.kind == "surroundings" for each in draft.situations)
        if ranks and draft.offer.simulated and not surrounded:
            draft.add(cls(ranks))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the sizes of the nodes, as a coverage table counts them."""
        nodes = case.get(cls)
        if nodes is None:
            return {"nodes": "one"}
        uneven = case.ranks_needed > nodes.ranks and case.ranks_needed % nodes.ranks
        return {"nodes": f"of {nodes.ranks}" + (" and a remainder" if uneven else "")}
