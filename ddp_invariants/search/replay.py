"""The replay of a stored case: run it again in fresh processes, and see if it still fails."""

from collections.abc import Iterable
from dataclasses import replace

from ddp_invariants.cases.case import Case, TrainingCase
from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.scope import Scope, UnderTest
from ddp_invariants.implementation.declarations import Declarations, SamplerDeclarations, declare
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.live import ENDS
from ddp_invariants.invariants.rule import CONFIRMATIONS
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.verdict import Failure, Finding, Outcome, Replayed
from ddp_invariants.search.confirm import as_reported
from ddp_invariants.search.runner import Options, Runner


def replay(pool: Pool, case: Case, ddp: Ddp, sampler: Sampler, rule: str = "") -> Replayed:
    """Run a case again, as often as its rule's row says, and judge it.

    Args:
        pool: The ranks; the replay replaces them.
        case: The case.
        ddp: The DDP to run a training case on.
        sampler: The sampler to ask, if the case is a question to one.
        rule: The rule that asks; empty for every rule about the case.

    Raises:
        LoadFailure: The implementation does not load.
        HarnessError: The harness failed.
    """
    under_test = UnderTest(ddp, sampler, _scope(pool, case, ddp, sampler, rule))
    runner, implementation = Runner(pool, under_test, Options()), under_test.named(case)
    asked = [rule] if rule else list(ALL_RULES)
    excluded = {name: under_test.scope.excluded(name) for name in asked}
    if rule and excluded[rule]:
        return Replayed(
            Outcome.INCONCLUSIVE,
            implementation,
            case,
            (rule,),
            reason=f"it is not claimed: {excluded[rule]}",
        )
    runs: list[dict[str, Finding]] = []
    for number in range(ALL_RULES[rule].confirmations if rule else CONFIRMATIONS):
        # If all rules are asked, the first run has the observed groups that some of them need.
        observed = not rule and number == 0
        findings = runner.findings(case, confirming=True, rule=rule, observed=observed)
        runs.append(
            {name: findings[name] for name in asked if name in findings and not excluded[name]}
        )
        if rule != ENDS and findings[ENDS].failure is not None:
            break  # Each further run would cost a deadline, and shows no more of this rule.
    result = _summed_up(implementation, case, runs, _lifeless(findings, rule))
    if not rule or not result.failures or rule == ENDS:
        return result
    (failure,) = result.failures
    # Plain groups record nothing of what was sent.
    sent = runner.findings(case, rule=rule, observed=True)[rule].failure
    if sent is not None and sent.fact == failure.fact:
        failure = replace(failure, event=sent.event)
    return replace(result, failures=(as_reported(runner, failure, case, []),))


def _scope(pool: Pool, case: Case, ddp: Ddp, sampler: Sampler, rule: str) -> Scope:
    """Return the declared scope, or the probed scope if the rule needs it."""
    if rule and ALL_RULES[rule].rests_on_probes:
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
    """Return why a rule lacks its evidence: the run hung or died; empty for a rule about that."""
    failure = findings[ENDS].failure
    return (
        "" if failure is None or rule in ("", ENDS) else f"{failure.fact} ({ENDS}): {failure.got}"
    )


def _summed_up(name: str, case: Case, runs: list[dict[str, Finding]], lifeless: str) -> Replayed:
    """Return the outcome of all runs: failed in any, passed in all, or neither."""
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
        # If all rules are asked, only the first run has the observed groups that some need.
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
