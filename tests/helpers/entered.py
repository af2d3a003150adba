"""The cases that a trial judges, in their order."""

from ddp_invariants.cases.case import Case
from ddp_invariants.records.verdict import Finding
from ddp_invariants.search.trial import Trial


def entered(trial: Trial) -> list[Case]:
    """Have a trial note the cases that it enters into its ledger, and return the list it fills."""
    cases: list[Case] = []
    enter = trial.enter

    def note(case: Case, findings: list[Finding]) -> None:
        cases.append(case)
        enter(case, findings)

    trial.enter = note  # type: ignore[method-assign]  # to see the cases
    return cases
