"""Turns: the order in which simulated ranks run, and the moment at which results arrive.

Ranks of their own processes run as the system lets them, so a case over a real backend is the same
with and without the situation.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between, one_of, require
from ddp_invariants.cases.levels import Level
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.draft import Draft

TurnOrder = Literal["ranks", "reversed", "random", "preempted", "behind"]
Arrival = Literal["early", "late"]
MOST_LAG = 1000
"""The largest lag of a result, in calls."""


def behind(case: TrainingCase) -> "Turns | None":
    """Return a case's turns if only a simulation can give them: a rank is behind."""
    turns = case.get(Turns)
    return turns if turns is not None and turns.order == "behind" else None


@dataclass(frozen=True)
class Turns(Situation):
    """An order of the simulated ranks. A correct program gives the same bits in every order.

    Attributes:
        order: `ranks`: always the lowest rank that can run, until it must wait. `reversed`: the
            highest. `random`: any, and a rank may be interrupted at each collective. `preempted`:
            ranks have priorities, and at a few places the running rank falls behind all others.
            `behind`: one rank runs only while no other rank can, and its results lag.
        seed: Fixes the choices of `random` and `preempted`.
        results: `early`: written as soon as all ranks have called. `late`: when waited for.
        behind: The rank of the order `behind`, among all ranks that the case needs. It counts
            modulo their number, so that the situation also holds in a smaller world.
        lags: For that rank's collectives, except for those for which it waits at once: how many
            of its own calls later each result is written, but no later than it is waited for.
            Calls are starts of collectives and waits. A result without an entry lags by none.
    """

    level: ClassVar[Level] = "core"  # Any program may meet any timing.
    moment: ClassVar[str] = "forwards"
    in_whole_steps: ClassVar[bool] = True

    order: TurnOrder = "ranks"
    seed: int = 0
    results: Arrival = "early"
    behind: int = 0
    lags: tuple[int, ...] = ()
    kind: Literal["turns"] = "turns"

    def check(self, case: TrainingCase) -> None:
        """Require known names and numbers in range."""
        del case
        one_of("order", self.order, TurnOrder)
        one_of("results", self.results, Arrival)
        between("turns.seed", self.seed, 0, 2**31 - 1)
        between("turns.behind", self.behind, 0, 2**31 - 1)
        for index, lag in enumerate(self.lags):
            between(f"turns.lags[{index}]", lag, 0, MOST_LAG)
        require(
            self.order == "behind" or not (self.behind or self.lags),
            "turns.order",
            self.order,
            "'behind' if a rank is behind, or results lag",
        )

    @property
    def words(self) -> str:
        """The order, and when results arrive if that is late."""
        seed = f" {self.seed}" if self.order in ("random", "preempted") else ""
        if self.order == "behind":
            seed = f" {self.behind}" + "".join(f" +{lag}" for lag in self.lags)
        return f"turns={self.order}{seed}" + (" late" if self.results == "late" else "")

    @property
    def sentence(self) -> str:
        """The order `behind` in a sentence without a subject, for a report."""
        lags = (
            f", and its results lag by {', '.join(map(str, self.lags))} calls" if self.lags else ""
        )
        return f"rank {self.behind} runs only while no other rank can{lags}"

    def simpler(self) -> Iterator["Turns"]:
        """Yield plainer orders, the plainest first."""
        for order in ("ranks", "reversed"):
            if self.order not in ("ranks", order):
                yield replace(self, order=order, seed=0, behind=0, lags=())
        if any(self.lags):
            yield replace(self, order="ranks", behind=0, lags=(), results="late")
        for index, lag in enumerate(self.lags):
            if lag:
                yield replace(self, lags=(*self.lags[:index], 0, *self.lags[index + 1 :]))
        if self.seed:
            yield replace(self, seed=0)
        if self.results == "late" and self.order != "ranks":
            yield replace(self, results="early")

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw another order than the plain one in two thirds of the cases."""
        turns = cls(
            draft.choice(("ranks", "ranks", "reversed", "random", "preempted", "behind")),
            draft.small(),
            draft.choice(("early", "early", "late")),
        )
        if turns.order == "behind":
            lags = tuple(draft.choice((0, 1, 2, 3)) for _ in range(draft.choice((0, 1, 3))))
            turns = cls("behind", behind=turns.seed % draft.world_size, lags=lags)
        elif turns.order in ("ranks", "reversed"):
            turns = replace(turns, seed=0)
        if turns != cls() and draft.offer.simulated:
            draft.add(turns)

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the order of the ranks, as a coverage table counts it."""
        turns = case.get(cls) or cls()
        return {"turns": turns.order, "results": turns.results}
