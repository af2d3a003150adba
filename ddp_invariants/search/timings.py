"""Timings of collectives that show a race in every run."""

from collections.abc import Iterator

from ddp_invariants.cases.case import Case, TrainingCase
from ddp_invariants.cases.program import Perturbation
from ddp_invariants.situations.perturbation import Perturbed

FAR_BEHIND = 50
"""Milliseconds a rank is late by, so that timing shows in every run."""


def surer(case: Case) -> Iterator[TrainingCase]:
    """Yield the case under the timings that leave least to chance.

    A missing wait shows every time if results are withheld until they are waited for. A rank that
    is far behind exposes code that gives up on a late result. Withholding does not: it holds
    results back for a few milliseconds only, since some right code polls. There is no such case if
    timing cannot change anything, or must not be disturbed.
    """
    if not isinstance(case, TrainingCase) or case.world_size == 1 or case.kills:
        return
    timings = (
        Perturbation("withheld"),
        *(Perturbation("late", rank=rank, milliseconds=FAR_BEHIND) for rank in (1, 0)),
    )
    yield from (
        case.with_situation(Perturbed(timing)) for timing in timings if timing != case.perturbation
    )
