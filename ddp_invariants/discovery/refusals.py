"""The refusal of a probe: an exception that every rank raised on purpose."""

from ddp_invariants.invariants.crashes import crash_of
from ddp_invariants.records.evidence import TrainingEvidence


def raised_everywhere(evidence: TrainingEvidence) -> str:
    """Return the exception raised on every rank; empty if the run did not end that way."""
    raised = [rank.raised for rank in evidence.ranks]
    if evidence.incident is not None or any(error is None for error in raised):
        return ""
    first = raised[0]
    assert first is not None
    return (
        f"{first.type} in {first.phase}: {first.message.splitlines()[0] if first.message else ''}"
    )


def unnoted(evidence: TrainingEvidence) -> str:
    """Return why a rank could not note its evidence, which is no refusal; empty if all could."""
    raised = (rank.raised for rank in evidence.ranks)
    return next((each.message for each in raised if each and each.phase == "evidence"), "")


def refusal_of(evidence: TrainingEvidence) -> str:
    """Return the refusal of every rank; empty if the run ended otherwise, or in a crash."""
    return "" if crash_of(evidence) is not None else raised_everywhere(evidence)
