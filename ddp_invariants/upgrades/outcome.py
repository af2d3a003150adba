"""The result of a comparison: every sort of difference, with the smallest case that shows it."""

from collections.abc import Sequence
from dataclasses import dataclass

from ddp_invariants.cases.case import Case
from ddp_invariants.errors import INTERRUPTED
from ddp_invariants.upgrades.accepted import Accepted
from ddp_invariants.upgrades.difference import Difference
from ddp_invariants.upgrades.pace import Ratio

REPEATS = 3
"""Number of repeated runs of a smallest case on both sides."""


@dataclass(frozen=True)
class ShrunkDifference:
    """A sort of difference, and the smallest case that shows it.

    Attributes:
        difference: The difference in that case.
        case: The case; None if the difference shows before any case is run.
        seen: Number of the `REPEATS` repeated runs that showed the difference again.
        accepted: The reason for accepting it; empty if it is not accepted.
        varies: True if the old side differed from itself in the repeated runs by a difference of
            this sort; the new side, if the old one is a file.
        script: The script that shows it, or the reason why there is none; empty if none was
            requested.
    """

    difference: Difference
    case: Case | None
    seen: int = REPEATS
    accepted: str = ""
    varies: bool = False
    script: str = ""

    @property
    def counts(self) -> bool:
        """True if the difference closes the gate.

        Rounding is reported and never judged. Nothing is known of a number without a bound, of a
        difference that does not repeat, nor of an answer that varies from run to run.
        """
        return (
            self.difference.kind not in ("rounding", "unbounded")
            and not self.accepted
            and self.seen == REPEATS
            and not self.varies
        )

    @property
    def undecided(self) -> bool:
        """True if the difference leaves the comparison without an answer."""
        unknown = self.difference.kind == "unbounded" or (
            self.varies and self.difference.kind != "rounding"
        )
        return self.seen < REPEATS or (unknown and not self.accepted)

    @property
    def state(self) -> str:
        """The note beside the difference; empty if it is a plain change."""
        if self.accepted:
            return f"accepted: {self.accepted}"
        if self.varies:
            return "a side differs from itself like this, from run to run"
        return "" if self.seen == REPEATS else f"seen again in {self.seen} of {REPEATS} runs"


@dataclass(frozen=True)
class Gated:
    """The result of a comparison.

    Attributes:
        differences: Every sort of difference.
        cases: Number of cases run on both sides.
        stale: Accepted changes that do not show.
        pace: Speed and memory ratios of both sides; empty if one side is a baseline file.
        simulated: Number of cases among them that ran in the simulation.
        unreal: The sorts of differences, each with a case, that the simulation alone showed. They
            are reported and never judged.
        interrupted: True if an interrupt ended the search.
    """

    differences: tuple[ShrunkDifference, ...]
    cases: int
    stale: tuple[Accepted, ...] = ()
    pace: tuple[Ratio, ...] = ()
    simulated: int = 0
    unreal: tuple[tuple[str, Case], ...] = ()
    interrupted: bool = False

    @property
    def status(self) -> int:
        """The exit status: 0 same, 1 changed beyond the accepted changes, 2 inconclusive, 130 interrupted.

        Inconclusive means that a difference was seen once and not in every repeated run, that a side
        also differs from itself like this, or that no bound is known for it.
        """
        if self.interrupted:
            return INTERRUPTED
        if any(entry.counts for entry in self.differences):
            return 1
        return 2 if any(entry.undecided for entry in self.differences) else 0


def gated(entries: Sequence[ShrunkDifference], cases: int, allowed: Sequence[Accepted]) -> Gated:
    """Return the result of a comparison, with the accepted changes that did not show."""
    names = {entry.difference.name for entry in entries}
    return Gated(
        tuple(entries), cases, tuple(change for change in allowed if change.change not in names)
    )
