"""Turns: the order in which simulated ranks run, and the moment at which results arrive.

Ranks of their own processes run as the system lets them, so a case over a real backend is the same
with and without the situation.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between, one_of
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.draft import Draft

TurnOrder = Literal["ranks", "reversed", "random", "preempted"]
Arrival = Literal["early", "late"]


@dataclass(frozen=True)
class Turns(Situation):
    """An order of the simulated ranks. A correct program gives the same bits in every order.

    Attributes:
        order: `ranks`: always the lowest rank that can run, until it must wait. `reversed`: the
            highest. `random`: any, and a rank may be interrupted at each collective. `preempted`:
            ranks have priorities, and at a few places the running rank falls behind all others.
        seed: Fixes the choices of `random` and `preempted`.
        results: `early`: written as soon as all ranks have called. `late`: when waited for.
    """

    moment: ClassVar[str] = "forwards"
    in_whole_steps: ClassVar[bool] = True

    order: TurnOrder = "ranks"
    seed: int = 0
    results: Arrival = "early"
    kind: Literal["turns"] = "turns"

    def check(self, case: TrainingCase) -> None:
        """Require known names and a seed in range."""
        del case
        one_of("order", self.order, TurnOrder)
        one_of("results", self.results, Arrival)
        between("turns.seed", self.seed, 0, 2**31 - 1)

    @property
    def words(self) -> str:
        """The order, and when results arrive if that is late."""
        seed = f" {self.seed}" if self.order in ("random", "preempted") else ""
        return f"turns={self.order}{seed}" + (" late" if self.results == "late" else "")

    def simpler(self) -> Iterator["Turns"]:
        """Yield plainer orders, the plainest first."""
        for order in ("ranks", "reversed"):
            if self.order not in ("ranks", order):
                yield replace(self, order=order, seed=0)
        if self.seed:
            yield replace(self, seed=0)
        if self.results == "late" and self.order != "ranks":
            yield replace(self, results="early")

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw another order than the plain one in half of the cases."""
        turns = cls(
            draft.choice(("ranks", "ranks", "reversed", "random", "preempted")),
            draft.small(),
            draft.choice(("early", "early", "late")),
        )
        if turns.order in ("ranks", "reversed"):
            turns = replace(turns, seed=0)
        if turns != cls() and draft.offer.simulated:
            draft.add(turns)

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the order of the ranks, as a coverage table counts it."""
        turns = case.get(cls) or cls()
        return {"turns": turns.order, "results": turns.results}
