"""The confirmation of a failure: repeat it in fresh processes, find its root cause, store it."""

from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NoReturn

from ddp_invariants.cases.case import Case, TrainingCase
from ddp_invariants.cases.levels import Level
from ddp_invariants.discovery import otherwise
from ddp_invariants.discovery.lacking import without_one
from ddp_invariants.discovery.levels import uncommon, unimplied, without
from ddp_invariants.errors import CaseError, HarnessError
from ddp_invariants.invariants import ALL_RULES, root_failure
from ddp_invariants.invariants.comm import IN_FLIGHT, TIMING
from ddp_invariants.invariants.diagnosis.causes import narrowed
from ddp_invariants.invariants.live import ENDS
from ddp_invariants.processes import load
from ddp_invariants.records import violation as record
from ddp_invariants.records.evidence import ShardEvidence, TrainingEvidence
from ddp_invariants.records.verdict import Failure, Inconclusive, violation_class
from ddp_invariants.search import messages
from ddp_invariants.search.boundary import condition
from ddp_invariants.search.enlarge import telling
from ddp_invariants.search.history import after_earlier_runs
from ddp_invariants.search.runner import Runner
from ddp_invariants.search.timings import surer

_TRIED = 3
"""Capabilities that are left out in turn; a smallest case contains few."""
Evidence = TrainingEvidence | ShardEvidence
Seen = tuple[Failure, Evidence | None]
"""The failure in one run in fresh processes, and the run's evidence."""
Repeated = tuple[Case, list[Seen]]
"""A case under the timing that shows its failure most often, and the runs that show it."""


def confirm(
    runner: Runner, rule: str, failure: Failure, case: Case, again: Repeated | None = None
) -> NoReturn:
    """Repeat a minimal counterexample in fresh processes with plain groups, and report the result.

    Args:
        runner: Runs the case.
        rule: The rule that was tested.
        failure: The failure that was seen; of the same rule, or of one that leaves no evidence.
        case: The minimal counterexample.
        again: Its runs in fresh processes, if `repeated` has made them before.

    Raises:
        Violation: The failure repeats.
        Inconclusive: It does not, or it is a hang that has been reported already.
    """
    name = runner.under_test.named(case)
    if failure.rule == ENDS != rule and runner.lifeless is not None:
        raise Inconclusive(messages.without_life(rule, name, runner.lifeless.failure))
    case, seen = repeated(runner, failure.rule, case) if again is None else again
    if not seen and (after := after_earlier_runs(runner, failure.rule, case)) is not None:
        failure, case = after
        case, seen = repeated(runner, failure.rule, case)
    runs = ALL_RULES[failure.rule].confirmations
    reported, evidence = as_reported(runner, failure, case, seen), seen[0][1] if seen else None
    path = path_of(runner, case, failure.rule)
    repeat = messages.how_to_repeat(runner.options.command, failure.rule, rule, path)
    unstored = store(runner, case, reported, (len(seen), runs), evidence, repeat)
    if not seen:
        runner.hung = False
        runner.ledger[failure.rule].inconclusive = True
        raise Inconclusive(
            messages.not_repeated(
                failure,
                name,
                case,
                runs=runs,
                repeat=repeat,
                unstored=unstored,
                overload=load.measure().excess,
            )
        )
    if len(seen) == runs and (only := _condition(runner, failure, case)):
        reported = replace(reported, condition=only)
        unstored = store(runner, case, reported, (len(seen), runs), evidence, repeat)
    if isinstance(case, TrainingCase) and failure.rule != ENDS and not case.kills:
        # A certificate shows what the ranks send, which plain groups do not record.
        runner.findings(case, observed=True)
    runner.ledger.confirm(failure.rule, path, runner.evidence, needed(runner, failure.rule, case))
    text = messages.violation(
        reported,
        name,
        case,
        repeated=(len(seen), runs),
        repeat=repeat,
        tested=rule,
        unstored=unstored,
        unsupported=excluding(runner, failure.rule, case) if len(seen) == runs else "",
        otherwise=_otherwise(runner, failure.rule, evidence),
        declarable=_declarable(runner, failure, evidence),
    )
    violation = violation_class(failure.rule)(text, reported, case, rule)
    if failure.rule == ENDS:
        runner.lifeless = violation
    raise violation


def needed(runner: Runner, rule: str, case: Case) -> dict[str, Level]:
    """Return what makes a smallest case less ordinary and is needed to break the rule.

    The smallest case may have more: one with fewer parameters than ranks is simpler than others.

    Args:
        runner: Runs the case.
        rule: The violated rule.
        case: The smallest case of the violation.
    """
    levels = uncommon(case)
    for name in list(levels):
        try:
            plainer = without(case, name, runner.scope)
        except CaseError:
            continue
        left = uncommon(plainer)
        if left.keys() < levels.keys() and _fails(runner, rule, plainer):
            case, levels = plainer, left
    return unimplied(levels)


def _fails(runner: Runner, rule: str, case: Case) -> bool:
    return runner.findings(case, confirming=True, rule=rule)[rule].failure is not None


def _otherwise(runner: Runner, rule: str, evidence: Evidence | None) -> tuple[str, ...]:
    """Return the ways to drive the implementation, in words, in which a confirmed case holds.

    What the plain case breaks may be due to a missing declaration.
    """
    if (
        not isinstance(evidence, TrainingEvidence)
        or ALL_RULES[rule].level != "core"
        or evidence.incident is not None
        or evidence.case.injected_failure is not None
        or any(rank.raised is not None for rank in evidence.ranks)
    ):
        return ()
    ddp, scope = runner.under_test.ddp, runner.scope
    named = rule != runner.options.broken
    return otherwise.holding(runner.pool, ddp, scope, evidence, named=named)


def _declarable(runner: Runner, failure: Failure, evidence: Evidence | None) -> list[str]:
    """Return the declarations, in words, with which a confirmed case of the core holds."""
    core = ALL_RULES[failure.rule].level == "core"
    if evidence is None or evidence.incident is not None or not core:
        return []
    return otherwise.declarable(evidence, runner.scope, failure)


def excluding(runner: Runner, rule: str, case: Case) -> str:
    """Return the capability that a wrapper may declare as unsupported to exclude a violation.

    It is one that many wrappers lack. The case without it fails no rule, in two runs on real ranks:
    a simulation would not show a leak, and plain groups would not show what is sent.

    Args:
        runner: Runs the case.
        rule: The violated rule.
        case: The smallest case of the violation.

    Returns:
        Its name; empty if there is none.
    """
    if not isinstance(case, TrainingCase):
        return ""
    for name, plain in islice(without_one(case, runner.scope), _TRIED):
        if _is_right(runner, rule, plain):
            return name
    return ""


def _is_right(runner: Runner, rule: str, case: Case) -> bool:
    """Return whether a case fails no rule, neither with plain groups nor with observed ones."""
    return not (
        runner.failures(runner.findings(case, confirming=True, rule=rule), case)
        or runner.failures(runner.findings(case, observed=True), case)
    )


def as_reported(runner: Runner, failure: Failure, case: Case, seen: list[Seen]) -> Failure:
    """Return the failure as the report shows it: with its causes, its root cause and its event.

    Plain groups record nothing of what was sent; the search ran the same case on observed groups.
    """
    reported = _told_apart(runner, seen[0][0], case) if seen else failure
    same = reported.fact == failure.fact
    root, _ = underlying(runner, failure, case)
    return replace(
        reported,
        first=f"{root.rule}: {root.fact}" if root.rule != failure.rule else "",
        event=reported.event or failure.event,
        got=failure.got if same and ALL_RULES[reported.rule].invariant == "LIVE" else reported.got,
    )


def _condition(runner: Runner, failure: Failure, case: Case) -> str:
    """Return the condition of a failure; empty if none is known.

    The violation is confirmed and stored by now, so a neighbour that cannot be run costs only the
    condition.
    """
    with suppress(HarnessError, CaseError):
        return condition(runner, failure, case)
    return ""


def underlying(runner: Runner, failure: Failure, case: Case) -> tuple[Failure, Case]:
    """Return the root failure of a case, and the case that shows it best.

    A race can produce any symptom. The case is run under two timings to expose it: where results
    are withheld, a missing wait shows every time.
    """
    if failure.rule == ENDS or ALL_RULES[failure.rule].apart:
        return failure, case
    findings = runner.findings(case, rule=failure.rule)
    root = root_failure([failure, *runner.failures(findings, case)]) or failure
    withheld = next(surer(case), None)
    if withheld is None or not ALL_RULES[root.rule].is_about_values:
        return root, case
    perturbed = isinstance(case, TrainingCase) and case.perturbation.kind != "none"
    for timed in (withheld, case) if perturbed else (withheld,):
        findings = runner.findings(timed, rule=TIMING)
        race = findings[IN_FLIGHT].failure
        # A wrong start may leave random values in memory, which differ in a second run anyway.
        if race is None and ALL_RULES[root.rule].invariant != "INIT":
            race = findings[TIMING].failure
        if race is not None:
            return race, timed
    return root, case


def without_a_situation(runner: Runner, failure: Failure, case: Case) -> tuple[Failure, Case]:
    """Return a smallest case, or the case without a situation if the case fails without it, too.

    Some rules tell the facts of others in a situation. Their properties cannot leave the situation
    out when they make a case simpler, so they would tell with it what has another cause.
    """
    if not failure.retells or not isinstance(case, TrainingCase):
        return failure, case
    for situation in case.situations:
        try:
            plain = case.without(type(situation))
        except CaseError:
            continue
        findings = runner.findings(plain, confirming=True, rule=failure.retells)
        seen = root_failure(runner.failures(findings, plain))
        if seen is not None and seen.rule != failure.rule:
            return without_a_situation(runner, seen, plain)
    return failure, case


def with_fractions(runner: Runner, failure: Failure, case: Case) -> tuple[Failure, Case]:
    """Return a smallest case, or the same case with fractions for values if these show more.

    Two ranks' small integers may be equal by chance; then an earlier cause does not show.
    """
    if (
        not isinstance(case, TrainingCase)
        or case.values == "real"
        or not ALL_RULES[failure.rule].is_about_values
    ):
        return failure, case
    fractions = replace(case, values="real")
    findings = runner.findings(fractions, rule=failure.rule)
    seen = root_failure([failure, *runner.failures(findings, fractions)]) or failure
    return (failure, case) if seen.rule == failure.rule else (seen, fractions)


def repeated(runner: Runner, rule: str, case: Case) -> Repeated:
    """Run a case in fresh processes; if the failure comes and goes, run it under other timings too."""
    runs = ALL_RULES[rule].confirmations
    seen = _again(runner, rule, case, runs)
    for timed in surer(case) if len(seen) < runs else ():
        surely = _again(runner, rule, timed, runs)
        case, seen = (timed, surely) if len(surely) > len(seen) else (case, seen)
        if len(seen) == runs:
            break
    return case, seen


def _again(runner: Runner, rule: str, case: Case, runs: int) -> list[Seen]:
    """Run a case so many times in fresh processes, and return a rule's failures."""
    seen: list[Seen] = []
    for _ in range(runs):
        failure = runner.findings(case, confirming=True, rule=rule)[rule].failure
        seen += [(failure, runner.evidence)] if failure is not None else []
    return seen


def _told_apart(runner: Runner, failure: Failure, case: Case) -> Failure:
    """Return a failure without the causes that larger cases rule out ([Note: causes])."""
    larger = (
        runner.findings(candidate)[failure.rule].failure
        for candidate in (telling(case, runner.scope) if failure.causes else ())
    )
    return narrowed(failure, [again for again in larger if again is not None])


def path_of(runner: Runner, case: Case, rule: str) -> Path:
    """Return the file that a violation is stored in."""
    name = runner.under_test.named(case)
    return runner.options.store / f"{record.identifier(case, rule, name)}.json"


def store(
    runner: Runner,
    case: Case,
    failure: Failure,
    confirmed: tuple[int, int],
    evidence: Evidence | None,
    repeat: str,
) -> str:
    """Write a violation to its file, and return why it could not be written; empty if it was."""
    under_test = runner.under_test
    stored = record.of(
        case,
        failure,
        under_test.ddp,
        under_test.sampler,
        confirmed=confirmed,
        repeat=repeat,
        evidence=evidence,
    )
    return record.try_to_write(stored, path_of(runner, case, failure.rule))
