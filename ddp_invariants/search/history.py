"""The search for earlier runs that a failure needs: a failure that no case shows by itself.

Something is left in a process by a run and read by a later one. A failure seen on ranks that had
run other cases, and not in fresh processes, is tried again in fresh processes that run those other
cases first. The fewest that suffice are reported with it. For a sampler, a sampler of another world size
is tried, which the same process has iterated before.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.errors import CaseError
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.asking import AfterAnother
from ddp_invariants.situations.earlier import EarlierRuns

if TYPE_CHECKING:
    from ddp_invariants.search.runner import Runner

DEPENDS = "LIVE-8"
"""The rule that a run does not depend on earlier runs of its process."""
_OTHER_WORLDS = range(1, 7)
MOST_TRIES = 24
"""Runs in fresh processes in which fewer earlier runs are tried."""


def after_earlier_runs(runner: "Runner", rule: str, case: Case) -> tuple[Failure, Case] | None:
    """Return a case with earlier runs that fails, for a failure that needs such runs.

    Args:
        runner: Runs the cases; it knows which cases its ranks have run.
        rule: The rule that failed.
        case: The case, which does not fail in fresh processes.

    Returns:
        The failure of DEPENDS, or of the rule about samplers that are asked in other ways, and the
        case; None if no earlier runs make the case fail again.
    """
    if isinstance(case, ShardCase):
        return _after_another_sampler(runner, case)
    candidate, tries = failing_after_others(runner, rule, case), iter(range(MOST_TRIES))
    while candidate is not None:
        failing = candidate
        candidate = next(
            (
                tried
                for tried in _with_fewer(failing)
                if next(tries, None) is not None and _fails(runner, rule, tried)
            ),
            None,
        )
        if candidate is None:
            failure = runner.findings(failing, confirming=True, rule=DEPENDS)[DEPENDS].failure
            return None if failure is None else (failure, failing)
    return None


def _after_another_sampler(runner: "Runner", case: ShardCase) -> tuple[Failure, Case] | None:
    rule = AfterAnother.rule
    for ranks in _OTHER_WORLDS:
        tried = runner.scope.fit_shards(replace(case, situations=(AfterAnother(ranks),)))
        if not tried.situations:
            return None
        failure = runner.findings(tried, confirming=True, rule=rule)[rule].failure
        if failure is not None:
            return failure, tried
    return None


def failing_after_others(runner: "Runner", rule: str, case: Case) -> TrainingCase | None:
    """Return a case with earlier runs on which a rule fails in fresh processes, or None."""
    if not isinstance(case, TrainingCase) or case.earlier or runner.scope.excluded(DEPENDS):
        return None
    return next(
        (tried for tried in _after(case, runner.history) if _fails(runner, rule, tried)), None
    )


def _after(case: TrainingCase, earlier: tuple[TrainingCase, ...]) -> Iterator[TrainingCase]:
    """Yield the case after itself, and after all the earlier cases that fit its world."""
    yield from _tried(case, (case,))
    fitting = tuple(run for run in earlier if any(_tried(case, (run,))))
    if fitting:
        yield from _tried(case, fitting)


def _tried(case: TrainingCase, runs: tuple[TrainingCase, ...]) -> Iterator[TrainingCase]:
    """Yield the case after some runs, or nothing where it cannot be run."""
    try:
        yield case.with_situation(EarlierRuns(runs))
    except CaseError:
        return


def _with_fewer(case: TrainingCase) -> Iterator[TrainingCase]:
    """Yield the case with the second or the first half of its earlier runs, or without one."""
    earlier = case.get(EarlierRuns)
    assert earlier is not None
    runs, half = earlier.runs, len(earlier.runs) // 2
    if half:
        yield case.with_situation(replace(earlier, runs=runs[half:]))
        yield case.with_situation(replace(earlier, runs=runs[:half]))
    if half > 1:
        for number in range(len(runs)):
            yield case.with_situation(replace(earlier, runs=(*runs[:number], *runs[number + 1 :])))


def _fails(runner: "Runner", rule: str, case: TrainingCase) -> bool:
    """Return whether a rule fails on a case in fresh processes."""
    return runner.findings(case, confirming=True, rule=rule)[rule].failure is not None
