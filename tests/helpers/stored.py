"""The violation that a trial stores."""

from ddp_invariants.cases.case import Case
from ddp_invariants.discovery.scope import UnderTest
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records import violation
from ddp_invariants.search.trial import Options, Trial


def stored_violation(
    pool: Pool, case: Case, rule: str, *, ddp: str | Ddp = "reference", sampler: str = "reference"
) -> violation.StoredViolation:
    """Return the violation that a trial stores of a case that violates a rule."""
    named = (Ddp(ddp) if isinstance(ddp, str) else ddp), Sampler(sampler)
    trial = Trial(pool, UnderTest(*named), Options())
    failure = trial.findings(case, confirming=True, rule=rule)[rule].failure
    assert failure is not None
    return violation.of(case, failure, *named, confirmed=(1, 1), repeat="", evidence=trial.evidence)
