"""Replays: run a stored case again in fresh processes, and say whether it still fails."""

from collections.abc import Iterable

from ddp_invariants.cases.case import Case, TrainingCase
from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.scope import OnTrial, Scope
from ddp_invariants.implementation.declarations import Declarations, SamplerDeclarations, declare
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.verdict import Failure, Finding, Outcome, Replayed
from ddp_invariants.search.trial import CONFIRMATIONS, Options, Trial

_OBSERVED = "COMM-1"
"""A rule that needs observed groups.

If all rules are asked for, one run uses observed groups, and later runs use plain ones.
"""


def replay(pool: Pool, case: Case, ddp: Ddp, sampler: Sampler, rule: str = "") -> Replayed:
    """Run a case again and judge it.

    The case runs `CONFIRMATIONS` times, or once if a hang may cost a deadline.

    Args:
        pool: The ranks to run on; they are replaced.
        case: The case.
        ddp: The DDP of a training case.
        sampler: The sampler of a sampler case.
        rule: The rule to judge; empty for every rule about the case.

    Raises:
        LoadFailure: The implementation does not load.
        HarnessError: The harness failed.
    """
    on_trial = OnTrial(ddp, sampler, _scope(pool, case, ddp, sampler, rule))
    trial, name = Trial(pool, on_trial, Options()), on_trial.named(case)
    rule_ids = [rule] if rule else list(ALL_RULES)
    excluded = {rule_id: on_trial.scope.excluded(rule_id) for rule_id in rule_ids}
    if rule and excluded[rule]:
        return Replayed(
            Outcome.INCONCLUSIVE, name, case, (rule,), reason=f"it is not claimed: {excluded[rule]}"
        )
    runs: list[dict[str, Finding]] = []
    for number in range(1 if rule == "LIVE-1" else CONFIRMATIONS):
        findings = trial.findings(
            case, confirming=True, rule=rule or (_OBSERVED if number == 0 else "")
        )
        runs.append(
            {
                rule_id: findings[rule_id]
                for rule_id in rule_ids
                if rule_id in findings and not excluded[rule_id]
            }
        )
        if findings["LIVE-1"].failure is not None:  # Each further run would cost a deadline, too.
            break
    return _summed_up(name, case, runs, _lifeless(findings, rule))


def _scope(pool: Pool, case: Case, ddp: Ddp, sampler: Sampler, rule: str) -> Scope:
    """Return the scope from the declarations of the case's implementation.

    For rules about bucketing and overlap it comes from a discovery.
    """
    if rule in ("COMM-4", "COMM-5"):
        return discover(
            pool, ddp, sampler, max(4, case.ranks_needed) if isinstance(case, TrainingCase) else 4
        ).scope(4)
    described = pool.describe(ddp if isinstance(case, TrainingCase) else sampler)
    without = frozenset(described["lacks"])
    if isinstance(case, TrainingCase):
        declared = declare(Declarations, described["declares"])
        return Scope(
            without=without | frozenset(declared.unsupported) | {"bucketing", "overlap"},
            declared=declared,
            backend=pool.backend,
        )
    dealt = declare(SamplerDeclarations, described["declares"])
    return Scope(without=without | frozenset(dealt.unsupported), sampler=dealt)


def _lifeless(findings: dict[str, Finding], rule: str) -> str:
    """Return why a rule lacks its evidence if the run hangs or dies; empty otherwise.

    It is also empty if LIVE-1 itself is the rule.
    """
    failure = findings["LIVE-1"].failure
    return (
        ""
        if failure is None or rule in ("", "LIVE-1")
        else f"{failure.fact} (LIVE-1): {failure.got}"
    )


def _summed_up(name: str, case: Case, runs: list[dict[str, Finding]], lifeless: str) -> Replayed:
    """Sum up all runs: failed in any, judged without a failure in all, or inconclusive."""
    rules = tuple(
        rule for rule in runs[0] if any(run[rule].about or run[rule].failure for run in runs)
    )
    failures = tuple(
        failure
        for failure in (_first(run[rule].failure for run in runs) for rule in rules)
        if failure is not None
    )
    seen = sum(any(finding.failure is not None for finding in run.values()) for run in runs)
    if failures:
        return Replayed(Outcome.VIOLATED, name, case, rules, failures, seen, len(runs))
    if lifeless:
        return Replayed(Outcome.INCONCLUSIVE, name, case, rules, runs=len(runs), reason=lifeless)
    alone = len(runs[0]) == 1
    for rule in rules or runs[0]:
        unjudged = [run[rule].unjudged for run in runs if run[rule].unjudged]
        # Among all rules, some need observed groups: one run has them.
        if unjudged and (alone or len(unjudged) == len(runs)):
            return Replayed(
                Outcome.INCONCLUSIVE,
                name,
                case,
                rules,
                runs=len(runs),
                reason=unjudged[0] if alone else f"{rule} could not be judged: {unjudged[0]}",
            )
    if not rules:
        return Replayed(
            Outcome.INCONCLUSIVE,
            name,
            case,
            rules,
            runs=len(runs),
            reason="no rule is about the case",
        )
    return Replayed(Outcome.FIXED, name, case, rules, runs=len(runs))


def _first(failures: Iterable[Failure | None]) -> Failure | None:
    return next((failure for failure in failures if failure is not None), None)
