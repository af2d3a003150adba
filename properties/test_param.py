"""PARAM: identical parameters.

After every step all ranks hold the result of single-process training.
"""

from hypothesis import given

from ddp_invariants import Ranks, cases_of
from ddp_invariants.cases.case import TrainingCase


@given(case=cases_of("PARAM-1"))
def test_param1_all_parameters_are_identical_after_every_step(
    case: TrainingCase, ranks: Ranks
) -> None:
    """All parameters are bitwise identical on all ranks after every step."""
    ranks.check("PARAM-1", case)


@given(case=cases_of("PARAM-2"))
def test_param2_so_is_the_optimizers_state(case: TrainingCase, ranks: Ranks) -> None:
    """Momentum, moments and step counts are bitwise identical on all ranks."""
    ranks.check("PARAM-2", case)


@given(case=cases_of("PARAM-3"))
def test_param3_the_trajectory_is_that_of_single_process_training(
    case: TrainingCase, ranks: Ranks
) -> None:
    """Every step agrees with the float64 oracle, and bitwise if the arithmetic is exact."""
    ranks.check("PARAM-3", case)


@given(case=cases_of("PARAM-4"))
def test_param4_one_rank_is_plain_training(case: TrainingCase, ranks: Ranks) -> None:
    """At W = 1 the parameters are bitwise those of the same loop without a wrapper."""
    ranks.check("PARAM-4", case)


@given(case=cases_of("PARAM-5"))
def test_param5_frozen_parameters_do_not_move(case: TrainingCase, ranks: Ranks) -> None:
    """No optimizer moves a frozen parameter, even with weight decay."""
    ranks.check("PARAM-5", case)


@given(case=cases_of("PARAM-6"))
def test_param6_every_rank_skips_the_same_steps(case: TrainingCase, ranks: Ranks) -> None:
    """With a loss scaler, all ranks skip exactly the steps whose gradients overflow on any rank.

    A skipped step moves nothing.
    """
    ranks.check("PARAM-6", case)


@given(case=cases_of("PARAM-7"))
def test_param7_exchanged_batches_change_no_update(case: TrainingCase, ranks: Ranks) -> None:
    """An update of the implementation's own is bitwise the same if ranks exchange their batches."""
    ranks.check("PARAM-7", case)
