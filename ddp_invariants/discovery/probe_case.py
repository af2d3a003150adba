"""The small case that probes a capability, fitted to the implementation and to the machine."""

from dataclasses import replace

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError


def small_enough(case: TrainingCase, max_world_size: int) -> TrainingCase:
    """Reduce a case to at most so many ranks.

    Raises:
        CaseError: Its contents need more ranks.
    """
    smaller = replace(case, world_size=min(case.world_size, max_world_size))
    if smaller.ranks_needed > max_world_size:
        raise CaseError(f"it needs {smaller.ranks_needed} ranks")
    return smaller


def probe_case(capability: str, scope: Scope) -> tuple[TrainingCase, Scope]:
    """Return the case that probes a training capability, and the scope in which it is judged.

    Raises:
        CaseError: It needs more ranks than there are.
    """
    case = small_enough(TRAINING[capability].probe, scope.max_world_size)
    within = replace(scope, without=scope.without - {capability})
    return within.fit(case), within
