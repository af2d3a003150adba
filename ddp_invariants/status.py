"""How a command ends: its exit status, and what ends it with one sentence."""

from ddp_invariants.case import CaseError
from ddp_invariants.declarations import DeclarationError
from ddp_invariants.deviations import DeviationError
from ddp_invariants.implementation import NamingError
from ddp_invariants.ranks.hosts import HarnessError
from ddp_invariants.ranks.pool import LoadFailure

CERTIFIED, VIOLATED, INCONCLUSIVE = 0, 1, 2
"""Exit statuses of a judgement."""

USAGE = 64
"""Exit status where nothing was judged because of what was asked: an option, a name or a file (`EX_USAGE` of sysexits)."""

INTERRUPTED = 130
"""Exit status after an interrupt, as a shell gives it."""

UNUSABLE_INPUT = (DeviationError, LoadFailure, HarnessError, NamingError, DeclarationError, CaseError, OSError)
"""What ends a command with one sentence."""


def unusable(error: BaseException) -> int:
    """The exit status where one of these ended it: where the harness or the system failed, nobody asked wrongly."""
    ours = isinstance(error, HarnessError) or (isinstance(error, OSError) and error.filename is None)
    return INCONCLUSIVE if ours else USAGE
