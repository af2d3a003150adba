"""A rule: a requirement, the situations it needs, and the pure function that judges."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ddp_invariants.records.verdict import Failure, Finding

Subject = TypeVar("Subject")


class Unjudged(Exception):
    """Raised by a judge that lacks its evidence; the message names the missing evidence."""


class NotAbout(Unjudged):
    """Raised by a judge whose rule is about a situation that this case does not contain."""


@dataclass
class Tally:
    """The counts that a judge keeps while it judges.

    Attributes:
        compared: Number of things compared so far.
        met: Situations met so far.
        worst: The largest error so far, in units of its bound.
        observed: Values of a rule that only observes and never judges.
    """

    compared: int = 0
    met: set[str] = field(default_factory=set)
    worst: float = 0.0
    observed: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """One rule of the specification.

    Attributes:
        id: Such as `GRAD-2`; it never changes.
        requirement: The requirement, in one sentence.
        needs: Situations that a run must contain; without them the rule has proved nothing.
        judge: Reads one case's evidence, counts into a tally and returns the first failure.
        costs: The cost of one case of this rule, in ordinary cases. The rule's property draws so
            many times fewer cases.
    """

    id: str
    requirement: str
    needs: tuple[str, ...]
    judge: Callable[[Subject, Tally], Failure | None]
    costs: int = 1

    def find(self, subject: Subject) -> Finding:
        """Judge one case."""
        tally = Tally()
        try:
            failure = self.judge(subject, tally)
        except Unjudged as reason:
            # Comparisons made before the evidence ended still count.
            why = "" if tally.compared else str(reason)
            return Finding(
                self.id,
                tally.compared,
                frozenset(tally.met),
                None,
                why,
                tally.worst,
                about=not isinstance(reason, NotAbout),
            )
        # A judge that crashes has judged nothing, and its crash must not hide other rules.
        except Exception as crash:  # noqa: BLE001 - the crash is recorded in the finding
            why = f"the rule itself crashed: {type(crash).__name__}: {crash}"
            return Finding(
                self.id, tally.compared, frozenset(tally.met), None, why, tally.worst, crashed=True
            )
        unjudged = "" if failure or tally.compared else "nothing to compare"
        return Finding(
            self.id,
            tally.compared,
            frozenset(tally.met),
            failure,
            unjudged,
            tally.worst,
            about=not unjudged,
            observed=tuple(tally.observed),
        )


class RuleSet(Generic[Subject]):
    """The rules about one kind of evidence; a cause comes before its consequences."""

    def __init__(self) -> None:
        self.rules: dict[str, Rule[Subject]] = {}

    def rule(
        self, identifier: str, requirement: str, needs: tuple[str, ...] = (), *, costs: int = 1
    ) -> Callable[
        [Callable[[Subject, Tally], Failure | None]], Callable[[Subject, Tally], Failure | None]
    ]:
        """Register a judge as a rule."""

        def register(
            judge: Callable[[Subject, Tally], Failure | None],
        ) -> Callable[[Subject, Tally], Failure | None]:
            self.rules[identifier] = Rule(identifier, requirement, needs, judge, costs)
            return judge

        return register
