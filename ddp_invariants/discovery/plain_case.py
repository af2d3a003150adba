"""The plain case that comes before all probes, and what failed if it fails."""

from ddp_invariants.cases.case import TrainingCase, describe
from ddp_invariants.discovery.probe_case import small_enough
from ddp_invariants.discovery.refusals import refusal_of
from ddp_invariants.discovery.result import PlainFailure, failures
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.invariants import ALL_RULES, root_failure
from ddp_invariants.invariants.crashes import crash_of
from ddp_invariants.records.evidence import TrainingEvidence
from ddp_invariants.situations.capability import BASE


def plain_case(scope: Scope) -> TrainingCase:
    """Return the case that comes before all probes, fitted to the implementation."""
    return scope.fit(small_enough(BASE, scope.max_world_size))


def failure_of(base: TrainingEvidence, scope: Scope) -> PlainFailure | None:
    """Return why a plain case failed; None if it did not."""
    case = describe(base.case)
    refusal = refusal_of(base)
    if refusal:
        raised = base.ranks[0].raised
        assert raised is not None
        return PlainFailure(case, refusal, _innermost(raised.traceback), refused=True)
    crash, failed = crash_of(base), [*failures(base, scope)]
    failure = crash or root_failure(failed)
    if failure is None and base.incident is None:
        return None
    if failure is None:
        assert base.incident is not None
        return PlainFailure(
            case, f"a rank {base.incident.kind}", str(base.incident.ranks), refused=False
        )
    where = ": ".join(text for text in (failure.where, failure.got) if text)
    rules = tuple(each.rule for each in failed)
    whole = crash is None and base.incident is None
    beyond = whole and all(ALL_RULES[rule].level != "core" for rule in rules)
    fact, left_out = f"{failure.rule}: {failure.fact}", rules if beyond else ()
    return PlainFailure(case, fact, where, refused=False, left_out=left_out)


def _innermost(traceback: str) -> str:
    """Return the innermost frame of a traceback's text."""
    frames = [line.strip() for line in traceback.splitlines() if line.strip().startswith("File ")]
    return frames[-1] if frames else ""
