"""One search through drawn cases: what it looks for, what it found, and a bounded effort to make that simpler."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ddp_invariants.cases.case import Case, TrainingCase, to_json
from ddp_invariants.cases.program import Poison
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.discovery.scope import OnTrial, Scope
from ddp_invariants.errors import HarnessError
from ddp_invariants.invariants import ALL_RULES, root_failure
from ddp_invariants.records.verdict import (
    Failure,
    Finding,
    Inconclusive,
    NotJudged,
    Sighting,
    Violation,
    violation_class,
)
from ddp_invariants.search import messages
from ddp_invariants.search.ledger import Ledger

SHRINK_RUNS = 300
"""Cases run after the first violation in a property, to shrink it. Runs that hang count for many."""
SHRINK_SECONDS = 20.0


class Asked(NamedTuple):
    """A case, and the rule whose property drew it."""

    rule: str
    case: Case


class Bench(Protocol):
    """Where cases are judged: what a search needs of a trial.

    Attributes:
        ledger: Where findings are entered.
        hung: Whether a rank hung before.
        lifeless: A hang or death that is reported already.
    """

    ledger: Ledger
    hung: bool
    lifeless: Violation | None

    @property
    def on_trial(self) -> OnTrial:
        """What is judged."""

    @property
    def scope(self) -> Scope:
        """What cases may contain."""

    def findings(self, case: Case, *, rule: str) -> dict[str, Finding]:
        """Run a case and judge it."""

    def failures(self, findings: dict[str, Finding], case: Case) -> list[Failure]:
        """Those that count."""

    def counts(self, rule: str, case: Case) -> bool:
        """Whether what a rule says of a case counts."""

    def enter(self, case: Case, findings: list[Finding]) -> None:
        """Enter a case with what was found into the ledger."""


def independent(asked: SearchStrategy[Asked]) -> SearchStrategy[Asked]:
    """The same cases, each drawn by itself.

    Hypothesis follows each case it draws with up to five that copy parts of it over one another. Of
    equal coins and small
    numbers this makes cases that are alike: of a hundred some twenty are independent. It leaves
    alone what lies within a collection of unique elements, so that is where a case is drawn.
    """
    return st.lists(asked, min_size=1, max_size=1, unique_by=lambda _: None).map(
        lambda drawn: drawn[0]
    )


def _shared(case: Case, scope: Scope) -> Iterator[Case]:
    """A world of one rank as one of two: what is wrong in both is better told in the latter.

    What overflows in one rank is there a value that is not finite in one of two.
    """
    if isinstance(case, TrainingCase) and case.world_size == 1:
        shared = replace(
            case, world_size=2, data=replace(case.data, samples=max(2, case.data.samples))
        )
        yield shared
        if case.accumulation == 1 and scope.has("nonfinite"):
            yield replace(shared, log2_scale=0, poison=Poison(0, 0))


class Search:
    """A look at cases: one rule's findings, or with none named those of all; and a bounded effort to shrink what it found."""

    def __init__(self, bench: Bench, rule: str) -> None:
        self.bench, self.rule = bench, rule
        self.failing: dict[Asked, Failure] = {}
        self.cases, self.began = Counter[str](), time.monotonic()
        self.sighting: Sighting | None = None
        self.met: set[str] = set()
        self.judged, self.runs_since, self.found_at = 0, 0, 0.0
        self.reasons: dict[str, int] = {}
        self.by_meaning = False

    def look_at(self, asked: Asked) -> None:
        """Judge one case; raises the rule's violation when it is breached."""
        # What was seen to fail fails again without a run, so that a rare failure is no `Flaky` to
        # Hypothesis.
        failure = self.failing[asked] if asked in self.failing else self._breach(asked)
        if failure is not None:
            # One class for whatever is found where anything is looked for, so that all of it is
            # shrunk as one.
            raise (violation_class(failure.rule) if self.rule else Violation)(
                failure.fact, failure, asked.case
            )

    def _breach(self, asked: Asked) -> Failure | None:
        if self.failing:
            lifeless = next(iter(self.failing.values())).rule == "LIVE-1"
            reported = self.bench.lifeless is not None and lifeless and self.rule != "LIVE-1"
            # Every hang costs a deadline: such a case is made simpler by what it means, not choice
            # by choice.
            costly = lifeless and self.bench.hung and not self.by_meaning
            if (
                reported
                or costly
                or self.runs_since >= SHRINK_RUNS
                or time.monotonic() - self.found_at > SHRINK_SECONDS
            ):
                return None
            self.runs_since += 1
        else:
            self.cases[asked.rule] += 1
        own = self.enter(asked.case, self.bench.findings(asked.case, rule=asked.rule))
        if own is not None:
            if not self.failing:
                self.found_at = time.monotonic()
                self.sighting = Sighting(
                    own, asked.case, self.found_at - self.began, self.cases[asked.rule]
                )
            self.failing[asked] = own
        return own

    def enter(self, case: Case, findings: dict[str, Finding]) -> Failure | None:
        """Account for one case's findings; the breach that is to be reported, if any."""
        counted = [finding for name, finding in findings.items() if self.bench.counts(name, case)]
        self.bench.enter(case, counted)
        if not self.rule:
            return root_failure(self.bench.failures(findings, case))
        own = findings.get(self.rule, Finding(self.rule, unjudged="the case is of another kind"))
        if own.unjudged:
            self.reasons[own.unjudged] = self.reasons.get(own.unjudged, 0) + 1
        else:
            self.judged += 1
            self.met |= own.met
        if own.failure is not None or not own.unjudged:
            return own.failure
        # A hang or a death leaves every other rule without evidence: reported wherever it turns up.
        return findings.get("LIVE-1", own).failure

    def simplest(self) -> tuple[Failure, Case]:
        """The simplest case seen to fail, after trying what is simpler still.

        Raises:
            HarnessError: Nothing was seen to fail, though the search says so.
        """
        if not self.failing:
            raise HarnessError(f"{self.rule}: the search ended with a failure that no case showed")
        # A world of one rank is no simpler than one of two.
        (rule, case), failure = min(
            self.failing.items(),
            key=lambda seen: (len(to_json(seen[0].case)), seen[0].case.world_size == 1),
        )
        improved = self.by_meaning = True
        while improved:
            improved = False
            for candidate in (
                *(() if self.rule else _shared(case, self.bench.scope)),
                *simpler(case),
            ):
                asked = Asked(rule, candidate)
                found = self.failing[asked] if asked in self.failing else self._breach(asked)
                if found is not None and (found.rule == failure.rule or not self.rule):
                    failure, case, improved = found, candidate, True
                    break
        return failure, case

    def missing(self) -> list[str]:
        """Situations the rule needs and has not met, of those that what is on trial offers and its ranks suffice for."""
        scope = self.bench.scope
        return sorted(
            set(ALL_RULES[self.rule].needs) - self.met - scope.unclaimed - scope.beyond(self.rule)
        )

    def require_proof(self) -> None:
        """Insist that the rule met what it is about.

        Raises:
            Inconclusive: It did not.
            NotJudged: It did, as far as there are ranks.
        """
        missing = self.missing()
        unclaimed = sorted(self.bench.scope.unclaimed.intersection(ALL_RULES[self.rule].needs))
        if unclaimed:
            self.bench.ledger[
                self.rule
            ].not_claimed = f"judged without {' and '.join(unclaimed)}, which it does not take"
        # What a probe saw refused is not drawn: a refusal that turns up nevertheless leaves open
        # what it hides.
        refused = any(" raised " in reason for reason in self.reasons)
        beyond = (
            self.bench.scope.beyond(self.rule).intersection(ALL_RULES[self.rule].needs)
            - self.bench.scope.unclaimed
        )
        if beyond and not refused and (not missing or not self.judged):
            self.bench.ledger[
                self.rule
            ].not_run = f"not with {', '.join(sorted(beyond))}: {self.bench.scope.bounded}"
            raise NotJudged(f"{self.rule} is not run: {self.bench.ledger[self.rule].not_run}")
        if self.judged and not missing and not refused:
            return
        self.bench.ledger[self.rule].inconclusive = True
        reasons = [
            f"{count} times: {reason}"
            for reason, count in sorted(self.reasons.items(), key=lambda r: -r[1])[:3]
        ]
        raise Inconclusive(
            messages.unproved(
                self.rule, self.bench.on_trial.about(self.rule), self.judged, missing, reasons
            )
        )
