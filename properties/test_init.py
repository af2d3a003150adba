"""INIT: identical initialisation.

Ranks are built differently on purpose, and wrapping makes them equal.
"""

from hypothesis import given

from ddp_invariants import Ranks, cases_of
from ddp_invariants.cases.case import TrainingCase


@given(case=cases_of("INIT-1"))
def test_init1_every_rank_starts_with_rank_0s_parameters(case: TrainingCase, ranks: Ranks) -> None:
    """When the first forward starts, every parameter on every rank is bitwise what rank 0 built."""
    ranks.check("INIT-1", case)


@given(case=cases_of("INIT-2"))
def test_init2_every_rank_starts_with_rank_0s_buffers(case: TrainingCase, ranks: Ranks) -> None:
    """When the first forward starts, all float, integer and bool buffers are what rank 0 built."""
    ranks.check("INIT-2", case)


@given(case=cases_of("INIT-3"))
def test_init3_wrapping_changes_nothing_but_the_values_of_other_ranks(
    case: TrainingCase, ranks: Ranks
) -> None:
    """Wrapping changes no name, shape, dtype, requires_grad flag or tying.

    On rank 0 it changes no value.
    """
    ranks.check("INIT-3", case)


@given(case=cases_of("INIT-4"))
def test_init4_equal_seeds_start_identical(case: TrainingCase, ranks: Ranks) -> None:
    """An implementation that declares init = seed still starts identical on all ranks."""
    ranks.check("INIT-4", case)
