"""A search: draw cases, run them, keep account of a rule, and make a failing case simpler."""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from ddp_invariants.cases.case import Case, TrainingCase, to_json
from ddp_invariants.cases.program import Poison
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError, HarnessError, LoadFailure
from ddp_invariants.invariants import ALL_RULES, root_failure
from ddp_invariants.invariants.live import ENDS
from ddp_invariants.records.verdict import (
    Failure,
    Finding,
    NotJudged,
    Sighting,
    Unproved,
    Violation,
    violation_class,
)
from ddp_invariants.search import messages
from ddp_invariants.search.drawing import independent
from ddp_invariants.search.ledger import NO_CASE
from ddp_invariants.search.runner import Runner
from ddp_invariants.search.schedules import all_schedules, is_small, late, plain
from ddp_invariants.situations.poison import Poisoned

SHRINK_RUNS = 300
"""Cases of few ranks that a property runs after its first failure, to shrink it.

The bound is no time, so that the smallest case does not depend on the machine's load. A case of
many ranks counts several times. Hypothesis takes at most half, and `simplest` the rest.
"""
SHRINK_HANGS = 6
"""Cases among them that may hang if each costs a deadline."""
RANKS_AT_ONCE = 4
"""Ranks of a case that count as one run."""
FORWARDS_AT_ONCE = 60
"""Forwards of all ranks that count as one run."""
NUMBERS_AT_ONCE = 20_000
"""Numbers of a model, or dealt indices, that count as one run."""
EXPLORED = 4
"""Small cases of which a property runs all schedules."""
CANDIDATES = 24
"""Drawn cases that are looked at to find them."""
REAL_TRIES = 5
"""Failing cases tried over the real backend, simplest first, to find one that fails there."""


def weight(case: Case) -> int:
    """Return the number of ordinary runs as which a case counts."""
    groups = max(1, case.world_size // RANKS_AT_ONCE)
    if not isinstance(case, TrainingCase):
        return max(groups, case.data.samples * len(case.epochs) // NUMBERS_AT_ONCE)
    return max(
        groups,
        case.forwards // FORWARDS_AT_ONCE,
        case.world_size * case.model.numbers // NUMBERS_AT_ONCE,
    )


class Asked(NamedTuple):
    """A case, and the rule whose property drew it."""

    rule: str
    case: Case


def _shared(case: Case, scope: Scope) -> Iterator[Case]:
    """Yield a case of one rank as cases of two ranks, which tell best what is wrong in both.

    An overflow in one rank becomes a value that is not finite in one rank of two. A case that cannot
    be so, because of a situation in it, is not yielded.
    """
    if isinstance(case, TrainingCase) and case.world_size == 1:
        with suppress(CaseError):
            shared = replace(
                case, world_size=2, data=replace(case.data, samples=max(2, case.data.samples))
            )
            yield shared
            if case.accumulation == 1 and scope.has("nonfinite"):
                yield replace(shared, log2_scale=0).with_situation(Poisoned(Poison(0, 0)))


class _Spent(KeyboardInterrupt):
    """The end of Hypothesis' attempts to shrink a case, since the search runs no more cases.

    Hypothesis has no such end: it would draw hundreds of cases more, each of which would count as
    passing. It stops at once at an exception of this class, and stores nothing.
    """


class Search:
    """A search for failures of one rule, or of any rule if none is named.

    Args:
        runner: Runs and judges the cases.
        rule: The rule; empty for all.
        drawn: A function that a search for any failure calls with each new case.
        limit: The largest number of cases of such a search, which runs no case twice.
        known: Cases that such a search must not run; it adds its own.

    Attributes:
        failing: The cases seen to fail, and their failures.
        cases: How many cases were drawn before the first failure, by the rule they were drawn for.
        sighting: The first failure, before it was shrunk.
        judged: How many cases the rule judged.
        reasons: Why it did not judge a case, counted.
    """

    def __init__(
        self,
        runner: Runner,
        rule: str,
        drawn: Callable[[Asked], None] = lambda _: None,
        limit: int = 0,
        known: set[Case] | None = None,
    ) -> None:
        self.runner, self.rule = runner, rule
        self._drawn, self._limit = drawn, limit
        self._known = set[Case]() if known is None else known
        self.failing: dict[Asked, Failure] = {}
        self.cases = Counter[str]()
        self.sighting: Sighting | None = None
        self.judged = 0
        self.reasons: dict[str, int] = {}
        self._began, self._runs_since, self._hangs_since = time.monotonic(), 0, 0
        self._by_meaning = False
        self._small: set[TrainingCase] = set()

    def drive(self, name: str, asked: SearchStrategy[Asked], count: int) -> None:
        """Have Hypothesis draw cases, and shrink the failing one.

        Args:
            name: A name of this search that no other search has.
            asked: The cases.
            count: The largest number of cases.

        Raises:
            Violation: A case fails.
            Flaky: A case failed once, and not again.
        """

        def property_(asked: Asked) -> None:
            self.look_at(asked)

        split = self.runner.options.split
        own = asked.map(lambda drawn: drawn._replace(case=split.own(drawn.case)))
        test = given(independent(own))(property_)
        with self.until_spent():
            seed(self.seed_of(name))(self.bounded(name, count)(test))()

    @contextmanager
    def until_spent(self) -> Iterator[None]:
        """End Hypothesis' run of a test as soon as this search shrinks no further.

        Raises:
            Violation: It has ended so; a case has failed.
        """
        try:
            yield
        except _Spent:
            asked, failure = next(iter(self.failing.items()))
            raise self._violation(asked, failure) from None

    def bounded(self, name: str, count: int) -> settings:
        """Return Hypothesis' settings of a search.

        Args:
            name: As above.
            count: As above.
        """
        return settings(
            max_examples=count,
            database=self._database(name),
            deadline=None,
            report_multiple_bugs=False,
            # No explain phase: it runs hundreds of cases more and says less than a diagnosis. The
            # deadline is the pool's: Hypothesis' cannot end a hang.
            phases=(
                Phase.explicit,
                Phase.reuse,
                Phase.generate,
                *((Phase.shrink,) if self.runner.options.shrinks else ()),
            ),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )

    def seed_of(self, name: str) -> int:
        """Return the seed of a search, from the session's seed and the search's name."""
        options = self.runner.options
        about = name if options.split.is_whole else f"{options.split}/{name}"
        digest = hashlib.blake2b(f"{options.seed}/{about}".encode(), digest_size=8)
        return int.from_bytes(digest.digest(), "big")

    def _database(self, name: str) -> ExampleDatabase | None:
        """Return a database of this search and this implementation.

        All properties are one function to Hypothesis, so each has a folder of its own.
        """
        folder = self.runner.options.database
        if folder is None:
            return None
        under_test = self.runner.under_test.about(self.rule)
        about = hashlib.blake2b(under_test.encode(), digest_size=4).hexdigest()
        return DirectoryBasedExampleDatabase(folder / about / name)

    def look_at(self, asked: Asked, *, fresh: bool = False) -> None:
        """Judge one case; the explicit examples of a test belong to one part of a session alone.

        Args:
            asked: The case.
            fresh: True to run it in fresh processes, as a replay does.

        Raises:
            Violation: The rule fails.
        """
        if not self.runner.options.split.owns(asked.case):
            return
        # A case that failed fails again without a run: a rare failure is not `Flaky` to Hypothesis.
        failure = (
            self.failing[asked] if asked in self.failing else self._failure(asked, fresh=fresh)
        )
        if failure is not None:
            raise self._violation(asked, failure)

    def _violation(self, asked: Asked, failure: Failure) -> Violation:
        # A search for any failure raises one class, so that Hypothesis shrinks all as one.
        kind = violation_class(failure.rule) if self.rule else Violation
        return kind(failure.fact, failure, asked.case)

    def _failure(self, asked: Asked, *, fresh: bool = False) -> Failure | None:
        """Run a case and return its failure; after the first failure, only within a budget.

        Raises:
            _Spent: It is spent, and Hypothesis has drawn the case.
        """
        if self.failing:
            if self._is_spent():
                if not self._by_meaning:
                    raise _Spent
                return None
            self._runs_since += weight(asked.case)
        elif self._limit and not (
            self.left() and self._is_new(asked) and not self.runner.leaves_out(asked.case)
        ):
            return None  # The plan counts a case that is left out, and goes on to others.
        else:
            self.cases[asked.rule] += 1
        findings = self.runner.findings(asked.case, confirming=fresh, rule=asked.rule)
        if self.rule and self._is_new_to_reality(findings.get(self.rule)):
            findings = self.runner.really(asked.case, rule=asked.rule)
        own = self.enter(asked.case, findings)
        if self.runner.simulated and own is None and is_small(asked.case):
            assert isinstance(asked.case, TrainingCase)
            self._small.add(plain(asked.case))
        if own is not None:
            if not self.failing:
                seconds = time.monotonic() - self._began
                self.sighting = Sighting(own, asked.case, seconds, self.cases[asked.rule])
            elif own.rule == ENDS and self._cost_a_deadline():
                self._hangs_since += 1
            self.failing[asked] = own
        return own

    def exhaust(self) -> None:
        """Judge all small cases of a sampler at once, and the wrong ones as any other case.

        No limit holds for them.

        Raises:
            Violation: A case fails.
        """
        exhaustion = self.runner.exhaustion
        self.runner.ledger.dealt = [exhaustion.right, exhaustion.cases]
        self._limit = 0
        for rule in [self.rule] if self.rule else sorted(exhaustion.wrong):
            for case in exhaustion.wrong.get(rule, [])[:CANDIDATES]:
                self.look_at(Asked(rule, case))

    def explore(self) -> None:
        """Run all schedules of the smallest cases that were drawn and simulated.

        Raises:
            Violation: A case fails in one of its schedules.
        """
        explored: list[int] = []
        for case in sorted(self._small, key=lambda case: len(to_json(case)))[:CANDIDATES]:
            if len(explored) == EXPLORED:
                break
            evidence = self.runner.pool.simulate(late(case), self.runner.under_test.ddp)
            schedules = [] if evidence is None else all_schedules(evidence)
            for schedule in schedules:
                self.look_at(Asked(self.rule, schedule))
            if len(schedules) > 1:
                explored.append(len(schedules))
        self.runner.ledger.schedules += explored

    def left(self) -> int:
        """Return how many cases a search for any failure may still draw."""
        return self._limit - self.cases.total()

    def _is_new(self, asked: Asked) -> bool:
        """Return whether a case was not drawn before, and enter it."""
        if asked.case in self._known:
            return False
        self._known.add(asked.case)
        self._drawn(asked)
        return True

    def _is_new_to_reality(self, own: Finding | None) -> bool:
        """Return whether a simulated case met a needed condition that no real case has met.

        A case is new, too, if the rule has judged no real case. Real cases that other properties
        of the trial drew count.
        """
        if own is None or own.unjudged or own.failure is not None or not self.runner.simulated:
            return False
        needed = own.met.intersection(ALL_RULES[self.rule].needs)
        met = self.runner.places.met.get(self.rule)
        return met is None or not needed <= met

    def _cost_a_deadline(self) -> bool:
        """Return whether the last run, which did not end, took seconds.

        A simulation knows at once that no rank can run.
        """
        evidence = self.runner.evidence
        incident = None if evidence is None else evidence.incident
        return not self.runner.simulated or (incident is not None and incident.costly)

    def _is_spent(self) -> bool:
        """Return whether the first failure is to be made no simpler."""
        lifeless = next(iter(self.failing.values())).rule == ENDS
        reported = self.runner.lifeless is not None and lifeless and self.rule != ENDS
        # Every hang costs a deadline: `simplest` makes such a case simpler, not Hypothesis.
        costly = lifeless and self.runner.hung and not self._by_meaning
        return (
            reported
            or costly
            or self._runs_since >= SHRINK_RUNS // (1 if self._by_meaning else 2)
            or self._hangs_since >= SHRINK_HANGS
        )

    def enter(self, case: Case, findings: dict[str, Finding]) -> Failure | None:
        """Account for one case's findings, and return the failure to report, if any."""
        counted = [finding for name, finding in findings.items() if self.runner.counts(name, case)]
        self.runner.enter(case, counted)
        if not self.rule:
            return root_failure(self.runner.failures(findings, case))
        own = findings.get(self.rule, Finding(self.rule, unjudged="the case is of another kind"))
        if own.unjudged:
            self.reasons[own.unjudged] = self.reasons.get(own.unjudged, 0) + 1
        else:
            self.judged += 1
        if own.failure is not None or not own.unjudged:
            return own.failure
        # A hang or a death leaves every other rule without evidence: every search reports it.
        return findings.get(ENDS, own).failure

    def require_failing(self, ended: Violation | Flaky) -> None:
        """Raise the harness's own failure if it ended the search, and no case has failed.

        Hypothesis tries a failing case again. A harness that fails at two places in turn is flaky
        to Hypothesis.

        Args:
            ended: The exception that ended the search.

        Raises:
            HarnessError: The harness failed.
            LoadFailure: The implementation cannot be tested.
        """
        for error in getattr(ended, "exceptions", ()):
            if isinstance(error, HarnessError | LoadFailure) and not self.failing:
                raise error from None

    def simplest(self) -> tuple[Failure, Case]:
        """Return the simplest case seen to fail, after trying simpler ones.

        Cases outside the scope are not tried: the implementation may be wrong there.

        Raises:
            HarnessError: No case was seen to fail, though the search says so.
        """
        if not self.failing:
            raise HarnessError(f"{self.rule}: the search ended with a failure that no case showed")
        # A world of one rank is no simpler than a world of two.
        (rule, case), failure = min(
            self.failing.items(),
            key=lambda seen: (len(to_json(seen[0].case)), seen[0].case.world_size == 1),
        )
        scope, improved, self._by_meaning = self.runner.scope, self.runner.options.shrinks, True
        allowed = scope.allows if scope.allows(case) else lambda _: True
        while improved:
            improved = False
            for candidate in filter(allowed, self._plainer(case)):
                asked = Asked(rule, candidate)
                seen = self.failing[asked] if asked in self.failing else self._failure(asked)
                if seen is not None and (seen.rule == failure.rule or not self.rule):
                    failure, case, improved = seen, candidate, True
                    break
        return self._real(rule, failure, case)

    def _plainer(self, case: Case) -> Iterator[Case]:
        """Yield simpler cases, of a session that is split only those of this part."""
        if not self.rule:
            yield from _shared(case, self.runner.scope)
        yield from filter(self.runner.options.split.owns, simpler(case))

    def _real(self, rule: str, failure: Failure, case: Case) -> tuple[Failure, Case]:
        """Return the simplest case that fails over the real backend, too.

        A failure that depends on the order in which ranks run may show in the simulation alone.
        """
        if not self.runner.places.simulates(case):
            return failure, case
        failing = sorted(self.failing.items(), key=lambda seen: len(to_json(seen[0].case)))
        tried = [(Asked(rule, case), failure), *failing[:REAL_TRIES], *failing[-1:]]
        for asked, simulated in tried:
            findings = self.runner.really(asked.case, rule=asked.rule)
            if any(
                found.rule == simulated.rule for found in self.runner.failures(findings, asked.case)
            ):
                return simulated, asked.case
        return failure, case

    def missing(self) -> list[str]:
        """Return the conditions that the rule needs and has not met over the real backend.

        A condition that the implementation does not offer, or that takes more ranks than there are,
        is not missing.
        """
        scope = self.runner.scope
        return sorted(
            set(ALL_RULES[self.rule].needs)
            - self.runner.places.met.get(self.rule, set())
            - scope.unclaimed
            - scope.beyond(self.rule)
        )

    def require_proof(self) -> None:
        """Check that the rule met the situations it needs.

        Raises:
            Unproved: It did not.
            NotJudged: It needs situations that take more ranks than there are. More cases would
                not prove it.
        """
        rule, scope, entry = ALL_RULES[self.rule], self.runner.scope, self.runner.ledger[self.rule]
        missing = self.missing()
        # A condition that a case met is offered after all, such as a state of an unknown update.
        unclaimed = sorted(
            need for need in scope.unclaimed.intersection(rule.needs) if not entry.met[need]
        )
        if unclaimed:
            entry.not_claimed = f"not judged with {' and '.join(unclaimed)}: not offered"
        # A probe saw which situations are refused, and these are not drawn. Another refusal hides
        # whether the rule holds.
        refused = any(" raised " in reason for reason in self.reasons)
        beyond = scope.beyond(self.rule).intersection(rule.needs) - scope.unclaimed
        if beyond and not refused:
            entry.not_run = f"not with {', '.join(sorted(beyond))}: {scope.bounded}"
            raise NotJudged(f"{self.rule} is not run: {entry.not_run}")
        proved = self.rule in self.runner.places.met
        if proved and not missing and not refused:
            return
        entry.lacking = missing or ([] if proved else [NO_CASE])
        entry.inconclusive |= refused
        reasons = [
            f"{count} times: {reason}"
            for reason, count in sorted(self.reasons.items(), key=lambda r: -r[1])[:3]
        ]
        name = self.runner.under_test.about(self.rule)
        raise Unproved(messages.unproved(self.rule, name, self.judged, missing, reasons))
