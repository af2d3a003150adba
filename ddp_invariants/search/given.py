"""Tests with `@given`: the ranks that they are given, and the search that draws for them.

    @given(case=cases_of("GRAD-2"))
    def test_grad2_gradients_are_means(case: TrainingCase, ranks: Ranks) -> None:
        ranks.check("GRAD-2", case)

A test named after a rule is a property of that rule. The session draws its cases until the rule has
met what it needs, makes a failing case smaller, confirms it in new processes and stores it. Any
other test with `@given` runs as Hypothesis runs it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import seed, settings

from ddp_invariants.cases.case import Case
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.records.evidence import ShardEvidence, TrainingEvidence
from ddp_invariants.records.verdict import Inconclusive, violation_class
from ddp_invariants.search.search import Asked, Search
from ddp_invariants.search.trial import Trial


@dataclass(frozen=True)
class Property:
    """A test with `@given`, and the fixtures that pytest found for it.

    Attributes:
        test: The test.
        fixtures: Its fixtures, by name.
        drawn: A function that is called with the name of each search that has ended.
    """

    test: Callable[..., Any]
    fixtures: Mapping[str, Any]
    drawn: Callable[[str], None] = lambda _: None

    def draw(self, search: Search, name: str, count: int) -> None:
        """Have Hypothesis run the test.

        `@settings` of the test decide the number of cases if they name one.

        Args:
            search: The search that looks at its cases.
            name: A name of this search that no other search has.
            count: The largest number of cases.

        Raises:
            Violation: A case fails.
            Flaky: A case failed once, and not again.
        """
        function: Any = getattr(self.test, "__func__", self.test)
        own = function._hypothesis_internal_use_settings
        if own is not None and own.max_examples != settings().max_examples:
            count = own.max_examples
        function._hypothesis_internal_use_settings = search.bounded(name, count)
        try:
            seed(search.seed_of(name))(function)
            with search.until_spent():
                self.test(**self.fixtures)
        finally:
            function._hypothesis_internal_use_settings = own
            self.drawn(name)


class Ranks:
    """The ranks of a session, which run and judge the cases of a test.

    Args:
        trial: The session's trial in this process.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    def run(self, case: Case) -> TrainingEvidence | ShardEvidence:
        """Run a case on the implementation under test, and return its evidence.

        Raises:
            HarnessError: The harness failed.
        """
        self.trial.findings(case)
        assert self.trial.evidence is not None
        return self.trial.evidence

    def check(self, rule: str, case: Case) -> None:
        """Check that a rule holds in a case.

        Raises:
            Violation: The rule fails.
            Inconclusive: The rule lacks its evidence, in a test that is no property of this rule.
            KeyError: There is no such rule.
            HarnessError: The harness failed.
        """
        __tracebackhide__ = True
        search = self.trial.searching
        if search is not None and search.rule == rule:
            search.look_at(Asked(rule, case))
            return
        if rule not in ALL_RULES:
            raise KeyError(f"there is no rule {rule!r}")
        finding = self.trial.findings(case, rule=rule).get(rule)
        if finding is not None and finding.failure is not None and self.trial.counts(rule, case):
            raise violation_class(rule)(str(finding.failure), finding.failure, case)
        if finding is not None and finding.unjudged:
            raise Inconclusive(f"{rule}: {finding.unjudged}")
