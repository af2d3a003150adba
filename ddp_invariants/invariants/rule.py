"""A rule: its requirement in one sentence, the situations it needs, and the pure function that judges it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ddp_invariants.records.verdict import Failure, Finding

Subject = TypeVar("Subject")


class Unjudged(Exception):
    """Raised by a judge that lacks its evidence; the message says which."""


class NotAbout(Unjudged):
    """Raised by a judge whose rule is about a situation this case does not contain."""


@dataclass
class Tally:
    """What a judge counts while it judges.

    Attributes:
        compared: Things compared so far.
        met: Situations met so far.
        worst: The largest error in units of its bound so far.
        observed: Values of a rule that observes and never judges.
    """

    compared: int = 0
    met: set[str] = field(default_factory=set)
    worst: float = 0.0
    observed: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """One rule of the specification.

    Attributes:
        id: Such as `GRAD-2`; fixed for ever.
        requirement: What must hold, in one sentence.
        needs: Situations without which the rule has proved nothing in a run.
        judge: Looks at one case's evidence, counts into a tally and returns the first breach.
        costs: How many ordinary cases one of its own takes as long as; its property draws so many
            fewer.
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
            # What was compared before the evidence ended was compared.
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
        except Exception as crash:  # noqa: BLE001 - a judge that crashes has judged nothing, and must not hide other rules
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
    """The rules about one kind of evidence, in the order a cause comes before its consequences."""

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
