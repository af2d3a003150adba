"""The possible verdicts, and one exception class per rule.

The verdicts here are: holds, violated, inconclusive, not claimed, not run. The ledger adds observed,
not tested and not finished (`search/ledger.py`). Hypothesis tells failures apart by exception type.
With one class per rule, shrinking cannot slide from a rare rule's violation to a common one's.
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from ddp_invariants.cases.case import Case
from ddp_invariants.cases.fields import Strict


class Verdict(Enum):
    """The outcome of a rule over a run."""

    HOLDS = "holds"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"
    NOT_CLAIMED = "not claimed"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Cause:
    """A possible cause, which predicts the observed values.

    Attributes:
        kind: The name that distinguishes it from other causes, the same in every case.
        words: The cause with the numbers of this case.
        affected: The only parameters that are wrong with it; empty if that says nothing.
    """

    kind: str
    words: str
    affected: str = ""


@dataclass(frozen=True)
class Failure(Strict):
    """The failure of one rule in one place.

    Attributes:
        rule: Its id.
        fact: The wrong fact, as the end of "RULE violated by NAME: …".
        where: Rank, step, parameter, or epoch.
        got: The actual value, the expected value, and the allowed error.
        perhaps: A probable cause with the number that shows it; empty if no cause is recognised.
        notes: Longer material, such as stacks.
        event: The reduction that carried the value, or a note that none did; empty if groups were
            plain.
        causes: All causes that predict the observed values. `perhaps` names a cause only if it is
            the only one.
        first: The failure of the same case that explains this failure, as "RULE: fact"; empty if
            this failure explains most.
        condition: The condition under which the implementation fails, from the neighbours of the
            smallest case; empty if no condition is known.
        retells: The rule whose fact this is, if a rule about a situation tells the fact of another
            rule; otherwise empty.
        overload: The overload of the machine in words, if ranks may have been late because of it;
            otherwise empty.
    """

    rule: str
    fact: str
    where: str
    got: str
    perhaps: str = ""
    notes: str = ""
    event: str = ""
    causes: tuple[Cause, ...] = ()
    first: str = ""
    condition: str = ""
    retells: str = ""
    overload: str = ""

    def probable_cause(self, confirmed: tuple[int, int]) -> str:
        """Return the probable cause in words; an overload is none of what several runs all show.

        Args:
            confirmed: (k, n): k of n runs showed the failure.
        """
        k, n = confirmed
        return self.perhaps or (self.overload if k < n or n == 1 else "")

    def told_by(self, rule: str, situation: str) -> "Failure":
        """Return the failure as a rule about a situation tells it.

        Args:
            rule: The rule about the situation.
            situation: The situation, in words before the fact.
        """
        retells = self.retells or self.rule
        return replace(self, rule=rule, fact=f"{situation}, {self.fact}", retells=retells)


@dataclass(frozen=True)
class Finding:
    """The result of one rule on one case.

    Attributes:
        rule: Its id.
        compared: Elements, shards or losses it compared. A finding that compared nothing proves
            nothing.
        met: Conditions of the rule that this case met.
        failure: The first failure; None if there is none.
        unjudged: Why the rule could not be judged on this case; empty if it was.
        worst: The largest error in units of the allowed error, if a bound was used and not 0.
        about: True if the case contains the subject of the rule.
        observed: Values of a rule that observes and never judges.
        crashed: True if the rule itself failed, which makes it inconclusive for the whole session.
    """

    rule: str
    compared: int = 0
    met: frozenset[str] = field(default_factory=frozenset)
    failure: Failure | None = None
    unjudged: str = ""
    worst: float = 0.0
    about: bool = True
    observed: tuple[float, ...] = ()
    crashed: bool = False


class Outcome(Enum):
    """The outcome of a replay; the value is the command's exit status."""

    FIXED = 0
    VIOLATED = 1
    INCONCLUSIVE = 2


@dataclass(frozen=True)
class Replayed:
    """The result of a replay.

    Attributes:
        outcome: The overall outcome.
        implementation: The implementation it was run on.
        case: The case.
        rules: The requested rules that are about the case.
        failures: The first failure of each rule, in the order of the specification.
        seen: The number of runs with a failure.
        runs: The number of runs.
        reason: Why it is inconclusive; empty if it is not.
    """

    outcome: Outcome
    implementation: str
    case: Case
    rules: tuple[str, ...]
    failures: tuple[Failure, ...] = ()
    seen: int = 0
    runs: int = 0
    reason: str = ""


class Violation(AssertionError):
    """The violation of a rule: its message is the full report; the failure and case are kept.

    Args:
        report: The full report.
        failure: The failure.
        case: The case that shows it.
        tested: The rule whose property saw the failure; empty if no property did.
    """

    def __init__(self, report: str, failure: Failure, case: Case, tested: str = "") -> None:
        super().__init__(report)
        self.report, self.failure, self.case, self.tested = report, failure, case, tested

    def __str__(self) -> str:
        return self.report


class Inconclusive(AssertionError):
    """A rule without a verdict: evidence missing, a condition unmet, or an unrepeated failure."""


class Unproved(Inconclusive):
    """A rule that nothing speaks against, and that more cases may prove."""


class NotJudged(Exception):
    """A rule that does not apply to the implementation, or to the case handed in for replay."""


@dataclass(frozen=True)
class Sighting:
    """The first failure of a search, before any shrinking.

    Attributes:
        failure: Of the case's failures, the one that explains the others.
        case: As drawn.
        seconds: From the search's start.
        of_its_kind: Cases drawn until then that were drawn for the same rule.
    """

    failure: Failure
    case: Case
    seconds: float
    of_its_kind: int


@dataclass(frozen=True)
class Surveyed:
    """The result of a search for any failure.

    Attributes:
        cases: Drawn until the first failure, its own case included; all cases if there was none.
        sighting: The first failure; None if there was none.
        violation: The smallest case, confirmed; None if there is none.
        failed: All rules that the smallest case violates.
        reason: Why a failure that was seen is no violation.
    """

    cases: int
    sighting: Sighting | None = None
    violation: Violation | None = None
    failed: tuple[str, ...] = ()
    reason: str = ""


_CLASSES: dict[str, type[Violation]] = {}


def violation_class(rule: str) -> type[Violation]:
    """Return the exception class of a rule, such as `GRAD2Violation`."""
    if rule not in _CLASSES:
        _CLASSES[rule] = type(
            rule.replace("-", "") + "Violation", (Violation,), {"__doc__": f"{rule} is violated."}
        )
    return _CLASSES[rule]
