"""INIT: identical initialisation.

Ranks are built differently on purpose, and wrapping makes them equal.
"""

from ddp_invariants.search.trial import Trial


def test_init1_every_rank_starts_with_rank_0s_parameters(trial: Trial) -> None:
    """When the first forward starts, every parameter on every rank is bitwise what rank 0 built."""
    trial.certify("INIT-1")


def test_init2_every_rank_starts_with_rank_0s_buffers(trial: Trial) -> None:
    """When the first forward starts, all float, integer and bool buffers are what rank 0 built."""
    trial.certify("INIT-2")


def test_init3_wrapping_changes_nothing_but_the_values_of_other_ranks(trial: Trial) -> None:
    """Wrapping changes no name, shape, dtype, requires_grad flag or tying.

    On rank 0 it changes no value.
    """
    trial.certify("INIT-3")


def test_init4_equal_seeds_start_identical(trial: Trial) -> None:
    """An implementation that declares init = seed still starts identical on all ranks."""
    trial.certify("INIT-4")
