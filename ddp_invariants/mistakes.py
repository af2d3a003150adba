"""What ends a command with one sentence, and with which exit status."""

from ddp_invariants.declarations import DeclarationError
from ddp_invariants.deviations import DeviationError
from ddp_invariants.implementation import NamingError
from ddp_invariants.limits import CaseError
from ddp_invariants.ranks.hosts import HarnessError
from ddp_invariants.ranks.pool import LoadFailure
from ddp_invariants.status import INCONCLUSIVE, USAGE

UNUSABLE_INPUT = (
    DeviationError,
    LoadFailure,
    HarnessError,
    NamingError,
    DeclarationError,
    CaseError,
    OSError,
)
"""What ends a command with one sentence."""


def unusable(error: BaseException) -> int:
    """The exit status where one of these ended it: where the harness or the system failed, nobody asked wrongly."""
    ours = isinstance(error, HarnessError) or (
        isinstance(error, OSError) and error.filename is None
    )
    return INCONCLUSIVE if ours else USAGE
