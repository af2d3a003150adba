"""What a judgement can say: holds, violated, inconclusive, not claimed, not run; and one exception class per rule.

Hypothesis tells failures apart by exception type: with one class per rule, shrinking cannot slide
from a rare rule's violation to a common one's.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from ddp_invariants.cases.case import Case
from ddp_invariants.cases.fields import STRICT


class Verdict(Enum):
    """The outcome of a rule over a run."""

    HOLDS = "holds"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"
    NOT_CLAIMED = "not claimed"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Cause:
    """What may be wrong, because it predicts what was found.

    Attributes:
        kind: What tells it from other causes, the same in every case it shows in.
        words: The cause with the numbers of this case.
        affected: Which parameters alone are wrong with it; empty where that says nothing.
    """

    kind: str
    words: str
    affected: str = ""


@dataclass(frozen=True)
class Failure:
    """One rule broken in one place.

    Attributes:
        rule: Its id.
        fact: What is the case instead, as the end of "RULE violated by NAME: …".
        where: Rank, step, parameter, or epoch.
        got: What was found, what was expected, and how much is allowed.
        perhaps: A probable cause with the number that shows it; empty when none is recognised.
        notes: Longer material, such as stacks.
        event: What the trace shows of it: which reduction carried it, or that none did; empty where
            groups were plain.
        causes: Everything that predicts what was found. `perhaps` names one only where it is the
            only one.
        first: Of the same case, the breach that explains this one, as "RULE: fact"; empty where
            this one tells most.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    rule: str
    fact: str
    where: str
    got: str
    perhaps: str = ""
    notes: str = ""
    event: str = ""
    causes: tuple[Cause, ...] = ()
    first: str = ""


@dataclass(frozen=True)
class Finding:
    """What one rule says about one case.

    Attributes:
        rule: Its id.
        compared: Elements, shards or losses it compared. A finding that compared nothing proves
            nothing.
        met: Situations the rule is about which this case reached.
        failure: The first breach; None when there is none.
        unjudged: Why the rule could not be judged on this case; empty when it was.
        worst: The largest error in units of what is allowed, where a bound was used and not 0.
        about: Whether the case contains the situation the rule is about.
        observed: Values of a rule that observes and never judges.
        crashed: Whether the rule itself failed, which makes it inconclusive for the whole session.
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
    """What became of a violation; the value is the command's exit status."""

    FIXED = 0
    VIOLATED = 1
    INCONCLUSIVE = 2


@dataclass(frozen=True)
class Replayed:
    """What came of running a case again.

    Attributes:
        outcome: All in all.
        implementation: What it was run on.
        case: The case.
        rules: Those that were asked for and are about it.
        failures: The first breach of each rule, in the order of the specification.
        seen: In how many runs one was seen.
        runs: How many there were.
        reason: Why it is inconclusive; empty where it is not.
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
    """A rule is violated. The message is the full report; the breach and its case are kept."""

    def __init__(self, report: str, failure: Failure, case: Case) -> None:
        super().__init__(report)
        self.report, self.failure, self.case = report, failure, case

    def __str__(self) -> str:
        return self.report


class Inconclusive(AssertionError):
    """A rule could not be certified: evidence missing, a situation never met, or a finding that does not repeat."""


class NotJudged(Exception):
    """A rule is not about what is on trial, or not about the case handed in for replay."""


@dataclass(frozen=True)
class Sighting:
    """The first breach a search came upon, as it was before anything was shrunk.

    Attributes:
        failure: Of those of the case, the one that explains the others.
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
    """What a search for anything wrong came to.

    Attributes:
        cases: Drawn until the first breach, its own included; all of them where there was none.
        sighting: The first breach; None where there was none.
        violation: What became of it: the smallest case, confirmed; None where there is none.
        failed: All rules that the smallest case breaches.
        reason: Why a breach that was seen is no violation.
    """

    cases: int
    sighting: Sighting | None = None
    violation: Violation | None = None
    failed: tuple[str, ...] = ()
    reason: str = ""


_CLASSES: dict[str, type[Violation]] = {}


def violation_class(rule: str) -> type[Violation]:
    """The exception class of a rule, such as `GRAD2Violation`."""
    if rule not in _CLASSES:
        _CLASSES[rule] = type(
            rule.replace("-", "") + "Violation", (Violation,), {"__doc__": f"{rule} is violated."}
        )
    return _CLASSES[rule]
