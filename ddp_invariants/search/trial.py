"""A trial: draw cases, run them, judge each by every rule, confirm failures, keep account.

A trial works without pytest. `Trial(...).certify("GRAD-2")` raises a `Violation` or an
`Inconclusive`, or returns. A property asks for its own rule; the other rules judge the same
evidence, and the ledger keeps their findings.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

from hypothesis.errors import Flaky, Unsatisfiable
from hypothesis.strategies import SearchStrategy

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.discovery.levels import (
    ENOUGH,
    needed_of_ordinary,
    ordinary,
    plainly,
    uncommon,
)
from ddp_invariants.discovery.plain_case import plain_case
from ddp_invariants.discovery.scope import UnderTest
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.verdict import (
    Inconclusive,
    NotJudged,
    Surveyed,
    Unproved,
    Violation,
    violation_class,
)
from ddp_invariants.records.violation import is_stored
from ddp_invariants.search import confirm, messages
from ddp_invariants.search.aiming import TRIES, aimed
from ddp_invariants.search.drawing import drawn_from
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.search.runner import Options, Runner
from ddp_invariants.search.search import Asked, Search
from ddp_invariants.search.stored import stored_cases
from ddp_invariants.search.strategies import cases_for
from ddp_invariants.search.survey import Plan

__all__ = ["Cases", "Options", "Trial"]

ROUNDS = 5
"""Searches a property makes at most. It makes another while a situation its rule needs is unmet."""

SIGHTINGS = 3
"""Failures that a survey looks at, one after another, until one repeats."""

ORDINARY_SHARE = 4
"""One in so many cases of a core rule's property is an ordinary case, at least."""

Cases = SearchStrategy[TrainingCase] | SearchStrategy[ShardCase]


class Drawing(Protocol):
    """A test with `@given`, which has Hypothesis draw cases and checks a rule on each."""

    def draw(self, search: Search, name: str, count: int) -> None:
        """Run the test.

        Args:
            search: The search that looks at its cases.
            name: A name of this search that no other search has.
            count: The largest number of cases.
        """


def _asked(rule: str, cases: SearchStrategy[Any]) -> SearchStrategy[Asked]:
    """Return the cases with the rule that they are drawn for."""
    return cases.map(lambda case: Asked(rule, case))


class Trial(Runner):
    """One worker's part of a session.

    Args:
        pool: The ranks.
        under_test: The implementation to judge.
        options: The options of the trial.
        listen: A function that the trial calls with the ledger after each entered case.

    Attributes:
        asked: Rules that were to be certified; whoever reports them empties the list.
        searching: The search for a failure of a rule, while one runs.
        stages: The seconds that each stage of the latest rule took.
    """

    def __init__(
        self,
        pool: Pool,
        under_test: UnderTest,
        options: Options,
        listen: Callable[[Ledger], None] = lambda _: None,
    ) -> None:
        super().__init__(pool, under_test, options, listen)
        self.asked: list[str] = []
        self.searching: Search | None = None
        self.stages: dict[str, float] = {}

    def certify(self, rule: str, cases: Cases | None = None, test: Drawing | None = None) -> None:
        """Judge a rule on drawn cases, or on the case to replay.

        Args:
            rule: The id of the rule.
            cases: The cases to draw from; None for those of the rule's own property.
            test: A test that draws the cases itself and checks the rule on each; None for the
                check alone.

        Raises:
            Violation: Of the rule's own class (or LIVE-1's), with the smallest case found,
                confirmed in fresh processes.
            Inconclusive: A situation the rule needs was never met, no case could be judged, or a
                failure did not repeat.
            NotJudged: The rule is not about the implementation, or not about the case to replay.
            HarnessError: The harness failed.
        """
        self.asked.append(rule)
        self.stages = {}
        began = time.monotonic()
        try:
            self._try(rule, cases, test)
        except Exception:
            self.ledger.ended.add(rule)
            raise
        finally:
            self.ledger[rule].milliseconds += round(1000 * (time.monotonic() - began))
        self.ledger.ended.add(rule)  # An interrupted rule has not ended.

    def _try(self, rule: str, cases: Cases | None, test: Drawing | None) -> None:
        """Certify a rule, and enter into the ledger why it was not judged."""
        why = dict(self.scope.deviating).get(rule, "")
        if why:
            self._require_deviation(rule, why)
        reason = self.scope.excluded(rule)
        if reason:
            self.ledger[rule].not_claimed = reason
            raise NotJudged(f"{rule} is not claimed: {reason}")
        self.ledger.tested.add(rule)
        try:
            self._certify(rule, cases, test)
        except (Violation, NotJudged, Unproved):
            raise
        except BaseException:
            self.ledger[rule].inconclusive = True
            raise

    def _require_deviation(self, rule: str, why: str) -> None:
        """Check that an expected failure, which is excused, is still there.

        Raises:
            Inconclusive: The failure is gone, or the search could not tell.
            NotJudged: The rule is not about the implementation, or not about the case to replay.
        """
        unexcused = Trial(
            self.pool,
            replace(self.under_test, scope=replace(self.scope, deviating=())),
            replace(self.options, shrinks=False),
        )
        unexcused.places = self.places
        try:
            unexcused.certify(rule)
        except Violation as violation:
            # The report may name another rule, whose failure explains this one.
            if violation.failure.rule == rule:
                return
            case = violation.case
            findings = unexcused.findings(case, rule=rule)
            if rule in {failure.rule for failure in unexcused.failures(findings, case)}:
                return
        self.ledger.tested.add(rule)
        self.ledger[rule].inconclusive = True
        raise Inconclusive(
            f"{rule} does not deviate, although a deviation was {why}; remove the deviation from its file"
        )

    def _certify(self, rule: str, cases: Cases | None, test: Drawing | None) -> None:
        """Search for a failure of a rule, and confirm it."""
        if self.options.replay is not None:
            self._judge_alone(rule, self.options.replay)
            return
        search = self.searching = Search(self, rule)
        drawn = cases_for(rule, self.scope) if cases is None else cases
        count = -(-self.options.cases // ALL_RULES[rule].costs)
        try:
            if cases is None:
                self._look_at_known(search)
            if cases is None and ALL_RULES[rule].level == "core":
                ordinarily = -(-count // ORDINARY_SHARE)
                with self._stage("ordinary cases"):
                    self._search_ordinary(search, test, ordinarily)
                count = max(1, count - ordinarily)
            if cases is None:
                self._look_at_suspects(search)
            with self._stage("drawn cases"):
                self._search_drawn(search, drawn, count, test)
            if ALL_RULES[rule].exhausted:
                with self._stage("all small cases"):
                    search.exhaust()
            if ALL_RULES[rule].explored:
                with self._stage("all schedules"):
                    search.explore()
        except (Violation, Flaky) as ended:
            search.require_failing(ended)
            # A flaky failure is repeated now too; the report says how often it shows.
            with self._stage("making smaller"):
                simplest = confirm.without_a_situation(self, *search.simplest())
            with self._stage("confirming"):
                confirm.confirm(self, rule, *simplest)
        finally:
            self.searching = None
        search.require_proof()

    def _look_at_known(self, search: Search) -> None:
        """Judge the cases that are known to have failed: stored ones, and perhaps the plain case.

        Raises:
            Violation: A case fails.
        """
        rule = search.rule
        if self.options.database is not None:
            with self._stage("stored cases"):
                for case in stored_cases(self, rule):
                    search.look_at(Asked(rule, case), fresh=True)
        if rule == self.options.broken:
            with self._stage("the plain case"):
                search.look_at(Asked(rule, plain_case(self.scope)))

    def _search_drawn(self, search: Search, drawn: Cases, count: int, test: Drawing | None) -> None:
        """Draw cases until the rule has met the conditions that it needs, in some rounds at most.

        Between the first round and the last one, cases aim at the conditions that are missing.

        Raises:
            Violation: A case fails.
            Flaky: A case failed once, and not again.
        """
        for number in range(ROUNDS):
            missing = search.missing()
            aiming = aimed(drawn, missing) if 0 < number < ROUNDS - 1 else None
            if number and not (missing and (search.judged or aiming is not None)):
                break
            name = f"{search.rule}/{number}"
            if aiming is None:
                self._drive(search, name, drawn, count, test)
            else:
                with suppress(Unsatisfiable):  # No case of this rule contains what is missing.
                    self._drive(search, name, aiming, min(count, TRIES * len(missing)), test)

    def _look_at_suspects(self, search: Search) -> None:
        """Judge the cases of probes in which the rule has failed.

        Raises:
            Violation: A case fails.
        """
        suspects = [case for rule, case in self.options.suspects if rule == search.rule]
        if suspects:
            with self._stage("cases of probes"):
                for case in suspects:
                    search.look_at(Asked(search.rule, case))

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Add the time of a stage to the statistics."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.stages[name] = self.stages.get(name, 0.0) + time.monotonic() - began

    def _drive(
        self, search: Search, name: str, drawn: Cases, count: int, test: Drawing | None
    ) -> None:
        """Draw cases for a search; a test's `cases_of` its rule draws them.

        Raises:
            Violation: A case fails.
            Flaky: A case failed once, and not again.
        """
        if test is None:
            search.drive(name, _asked(search.rule, drawn), count)
            return
        with drawn_from(
            lambda rule: self._own(drawn) if rule == search.rule else self.source(rule)
        ):
            test.draw(search, name, count)

    def source(self, rule: str) -> SearchStrategy[Any]:
        """Return the cases of a rule's property that this part of a session may draw."""
        return self._own(cases_for(rule, self.scope))

    def _own(self, cases: Cases) -> SearchStrategy[Any]:
        own: Callable[[Case], Case] = self.options.split.own
        return cases.map(own)

    def _search_ordinary(self, search: Search, test: Drawing | None, count: int) -> None:
        """Search ordinary cases, before all others: the level `core` is judged by these alone.

        Raises:
            Violation: A case fails.
            Flaky: A case failed once, and not again.
        """
        rule = search.rule
        needed = (
            {*needed_of_ordinary(ALL_RULES[rule])} - self.scope.unclaimed - self.scope.beyond(rule)
        )
        cases: SearchStrategy[Any] = cases_for(rule, ordinary(self.scope)).map(plainly)
        for number in range(ROUNDS):
            # A few cases may all miss a condition by chance, so each round draws twice as many.
            self._drive(search, f"{rule}/ordinary/{number}", cases, count << number, test)
            entry = self.ledger[rule]
            proved = entry.ordinary >= ENOUGH and needed <= entry.ordinary_met.keys()
            if proved or not search.judged:
                break

    def _judge_alone(self, rule: str, case: Case) -> None:
        """Judge the case to replay, in fresh processes.

        Raises:
            Violation: The rule fails.
            Inconclusive: The rule lacks its evidence.
            NotJudged: The case contains nothing that the rule is about.
        """
        findings = self.findings(case, confirming=True, rule=rule)
        failure = Search(self, rule).enter(case, findings)
        name = self.under_test.named(case)
        if failure is not None:
            path = confirm.path_of(self, case, failure.rule)
            self.ledger.confirm(failure.rule, path, self.evidence, uncommon(case))
            repeat = messages.how_to_repeat(self.options.command, failure.rule, rule, path)
            unstored = ""
            if not is_stored(path):  # An existing file was confirmed in more runs.
                unstored = confirm.store(self, case, failure, (1, 1), self.evidence, repeat)
            text = messages.violation(
                failure, name, case, repeated=(1, 1), repeat=repeat, tested=rule, unstored=unstored
            )
            raise violation_class(failure.rule)(text, failure, case, rule)
        own = findings.get(rule)
        if own is None or not own.about:
            raise NotJudged(f"{rule} is not about this case" + (f": {own.unjudged}" if own else ""))
        if own.unjudged:
            raise Inconclusive(messages.unproved(rule, name, 0, (), [own.unjudged]))

    def survey(self, rules: Sequence[str], cases: int) -> Surveyed:
        """Search for any failure: draw cases by a plan (`search.survey`), judged by all rules.

        The cases of probes that failed come first.

        The search shrinks to the smallest case with any failure, and confirms the root failure of
        that case. If the failure does not repeat, the search goes on with the rest of the cases, each
        in new processes: a busy machine can look like a hang, and what an earlier case left behind
        like a failure. Neither must hide what other cases show.

        Args:
            rules: The rules to draw cases for; all about DDPs or all about samplers.
            cases: The number of cases to draw at most. No case is drawn twice.

        Raises:
            HarnessError: The harness failed.
        """
        plan, drawn, unrepeated = Plan(rules, self.scope), 0, Surveyed(0)
        known: set[Case] = set()
        for _ in range(SIGHTINGS):
            surveyed = self._surveyed_by(plan, cases - drawn, known)
            drawn += surveyed.cases
            if surveyed.sighting is None:
                return replace(unrepeated, cases=drawn)
            if surveyed.violation is not None:
                return replace(surveyed, cases=drawn)
            unrepeated = surveyed
            # What an earlier case left in the process would show again, and hide what is wrong.
            self.options = replace(self.options, isolation="fresh")
        return replace(unrepeated, cases=drawn)

    def _surveyed_by(self, plan: Plan, cases: int, known: set[Case]) -> Surveyed:
        """Search for a failure in the next cases of a plan, and confirm the first one.

        Args:
            plan: The plan.
            cases: The number of cases to draw at most.
            known: The cases drawn before; the new ones are added.
        """
        search = Search(self, "", plan.add, cases, known)
        try:
            for suspect in self.options.suspects:
                search.look_at(Asked(*suspect))
            for block in plan.blocks(lambda: 0 if self.is_spent else search.left()):
                # The plan goes on without a feature that no draw has.
                with suppress(Unsatisfiable):
                    search.drive(block.name, block.asked, block.cases + 1)
            if any(ALL_RULES[rule].exhausted for rule in plan.rules):
                search.exhaust()
        except (Violation, Flaky) as ended:
            search.require_failing(ended)
            return self._surveyed(search)
        return Surveyed(search.cases.total())

    def _surveyed(self, search: Search) -> Surveyed:
        """Confirm the failure that a survey has found."""
        first = search.sighting
        simplest = confirm.without_a_situation(self, *search.simplest())
        seen, case = confirm.with_fractions(self, *simplest)
        again = confirm.repeated(self, seen.rule, case)
        failure, case = confirm.underlying(self, seen, again[0])
        findings = self.findings(case, rule=failure.rule)
        failed = tuple(failing.rule for failing in self.failures(findings, case))
        try:
            # The root failure, and its case, are often those that have been repeated.
            same = (failure.rule, case) == (seen.rule, again[0])
            known = again if again[1] and same else None
            confirm.confirm(self, failure.rule, failure, case, known)
        except Violation as violation:
            return Surveyed(search.cases.total(), first, violation, failed)
        except Inconclusive as reason:
            return Surveyed(search.cases.total(), first, reason=str(reason))
