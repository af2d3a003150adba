"""PARAM: identical parameters.

After every step all ranks hold the result of single-process training.
"""

from ddp_invariants.search.trial import Trial


def test_param1_all_parameters_are_identical_after_every_step(trial: Trial) -> None:
    """All parameters are bitwise identical on all ranks after every step."""
    trial.certify("PARAM-1")


def test_param2_so_is_the_optimizers_state(trial: Trial) -> None:
    """Momentum, moments and step counts are bitwise identical on all ranks."""
    trial.certify("PARAM-2")


def test_param3_the_trajectory_is_that_of_single_process_training(trial: Trial) -> None:
    """Every step agrees with the float64 oracle, and bitwise if the arithmetic is exact."""
    trial.certify("PARAM-3")


def test_param4_one_rank_is_plain_training(trial: Trial) -> None:
    """At W = 1 the parameters are bitwise those of the same loop without a wrapper."""
    trial.certify("PARAM-4")


def test_param5_frozen_parameters_do_not_move(trial: Trial) -> None:
    """No optimizer moves a frozen parameter, even with weight decay."""
    trial.certify("PARAM-5")


def test_param6_every_rank_skips_the_same_steps(trial: Trial) -> None:
    """With a loss scaler, all ranks skip exactly the steps whose gradients overflow on any rank.

    A skipped step moves nothing.
    """
    trial.certify("PARAM-6")
