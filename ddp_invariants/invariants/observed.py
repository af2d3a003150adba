"""The check that a case's collectives were observed."""

from collections.abc import Iterable

from ddp_invariants.invariants.rule import (
    NotAbout,
    Unjudged,
)
from ddp_invariants.records.evidence import RankEvidence

NOT_OBSERVED = (
    "not observed: the recording process group received no collective from torch.distributed"
)


def require_observed(ranks: Iterable[RankEvidence]) -> None:
    """Raise unless the ranks' process groups observed a collective.

    Raises:
        NotAbout: The process groups are plain, and plain process groups record nothing.
        Unjudged: No collective went through them.
    """
    sent = [rank.sent for rank in ranks]
    if not any(sent):
        raise NotAbout("the process groups are plain ones, which record nothing")
    if not any(calls for groups in sent for calls in groups):
        raise Unjudged(NOT_OBSERVED)
