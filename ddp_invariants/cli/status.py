"""How a command ends: its exit status, and what ends it with one sentence."""

from ddp_invariants.case import CaseError
from ddp_invariants.declarations import DeclarationError
from ddp_invariants.deviations import DeviationError
from ddp_invariants.implementation import NamingError
from ddp_invariants.ranks.hosts import HarnessError
from ddp_invariants.ranks.pool import LoadFailure

UNUSABLE = 2
"""Exit status where nothing could be judged, as pytest's for an interrupted session."""

INTERRUPTED = 130
"""Exit status after an interrupt, as a shell gives it."""

UNUSABLE_INPUT = (DeviationError, LoadFailure, HarnessError, NamingError, DeclarationError, CaseError, OSError)
"""What ends a command with one sentence."""
