"""One search through drawn cases: its rule, its failures, and a bounded effort to shrink them."""

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
"""Cases run to shrink a property's first violation. Runs that hang count for many."""
SHRINK_SECONDS = 20.0


class Asked(NamedTuple):
    """A case, and the rule whose property drew it."""

    rule: str
    case: Case


class Bench(Protocol):
    """The part of a trial that a search needs.

    Attributes:
        ledger: The ledger in which findings are entered.
        hung: True if a rank hung before.
        lifeless: A hang or death that is reported already.
    """

    ledger: Ledger
    hung: bool
    lifeless: Violation | None

    @property
    def on_trial(self) -> OnTrial:
        """The implementation under test."""

    @property
    def scope(self) -> Scope:
        """The limits on what cases may contain."""

    def findings(self, case: Case, *, rule: str) -> dict[str, Finding]:
        """Run a case and judge it."""

    def failures(self, findings: dict[str, Finding], case: Case) -> list[Failure]:
        """Return the failures that count."""

    def counts(self, rule: str, case: Case) -> bool:
        """Return whether a rule's finding on a case counts."""

    def enter(self, case: Case, findings: list[Finding]) -> None:
        """Enter a case and its findings into the ledger."""


def independent(asked: SearchStrategy[Asked]) -> SearchStrategy[Asked]:
    """Draw each case independently of the other cases.

    Hypothesis follows each drawn case with up to five that copy parts of it over one another. With
    equal coins and small numbers such cases are alike: of a hundred some twenty are independent.
    Hypothesis does not change the inside of a collection of unique elements, so each case is drawn
    there.
    """
    return st.lists(asked, min_size=1, max_size=1, unique_by=lambda _: None).map(
        lambda drawn: drawn[0]
    )


def _shared(case: Case, scope: Scope) -> Iterator[Case]:
    """Yield a case with one rank as cases with two ranks.

    If both fail, the latter explains the error better. An overflow in one rank becomes a non-finite
    value in one of two.
    """
    if isinstance(case, TrainingCase) and case.world_size == 1:
        shared = replace(
            case, world_size=2, data=replace(case.data, samples=max(2, case.data.samples))
        )
        yield shared
        if case.accumulation == 1 and scope.has("nonfinite"):
            yield replace(shared, log2_scale=0, poison=Poison(0, 0))


class Search:
    """A search through cases for one rule's failures, or for any rule's if none is named.

    It makes a bounded effort to shrink the failures it found.
    """

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
        """Judge one case, and raise the rule's violation if the rule fails."""
        # A case that failed fails again without a run, so that a rare failure is not `Flaky` to
        # Hypothesis.
        failure = self.failing[asked] if asked in self.failing else self._breach(asked)
        if failure is not None:
            # One class for all failures if any rule may fail, so that they are shrunk as one.
            raise (violation_class(failure.rule) if self.rule else Violation)(
                failure.fact, failure, asked.case
            )

    def _breach(self, asked: Asked) -> Failure | None:
        if self.failing:
            lifeless = next(iter(self.failing.values())).rule == "LIVE-1"
            reported = self.bench.lifeless is not None and lifeless and self.rule != "LIVE-1"
            # Every hang costs a deadline: such a case is simplified by its meaning, not choice by
            # choice.
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
        """Enter one case's findings, and return the failure to report, if any."""
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
        # A hang or a death leaves every other rule without evidence, so it is always reported.
        return findings.get("LIVE-1", own).failure

    def simplest(self) -> tuple[Failure, Case]:
        """Return the simplest failing case, after trying simpler ones.

        Raises:
            HarnessError: No case failed, though the search says so.
        """
        if not self.failing:
            raise HarnessError(f"{self.rule}: the search ended with a failure that no case showed")
        # A world of one rank is no simpler than one of two.
        (rule, case), smallest = min(
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
                attempt = Asked(rule, candidate)
                failure = (
                    self.failing[attempt] if attempt in self.failing else self._breach(attempt)
                )
                if failure is not None and (failure.rule == smallest.rule or not self.rule):
                    smallest, case, improved = failure, candidate, True
                    break
        return smallest, case

    def missing(self) -> list[str]:
        """Return the situations that the rule needs and has not met.

        Only situations that the implementation offers, and for which there are enough ranks, are
        counted.
        """
        scope = self.bench.scope
        return sorted(
            set(ALL_RULES[self.rule].needs) - self.met - scope.unclaimed - scope.beyond(self.rule)
        )

    def require_proof(self) -> None:
        """Raise unless the rule met the situations it is about.

        Raises:
            Inconclusive: It did not.
            NotJudged: It did, as far as there are enough ranks.
        """
        missing = self.missing()
        unclaimed = sorted(self.bench.scope.unclaimed.intersection(ALL_RULES[self.rule].needs))
        if unclaimed:
            self.bench.ledger[
                self.rule
            ].not_claimed = f"judged without {' and '.join(unclaimed)}, which it does not take"
        # A capability that a probe saw refused is not drawn. An unexpected refusal may hide a
        # failure.
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
