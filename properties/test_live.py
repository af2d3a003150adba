"""LIVE: training ends.

A rank that hangs or dies is a violation of its own, reported with the rank's stack.
"""

from hypothesis import given

from ddp_invariants import Ranks, cases_of
from ddp_invariants.cases.case import TrainingCase


@given(case=cases_of("LIVE-1"))
def test_live1_every_case_ends_on_every_rank(case: TrainingCase, ranks: Ranks) -> None:
    """Every case ends by itself on every rank, within the harness's deadline."""
    ranks.check("LIVE-1", case)


@given(case=cases_of("LIVE-2"))
def test_live2_a_caught_exception_does_no_harm(case: TrainingCase, ranks: Ranks) -> None:
    """An exception reaches the user on every rank and does no harm to later steps.

    The repeated step and all later steps are as they would have been.
    """
    ranks.check("LIVE-2", case)


@given(case=cases_of("LIVE-3"))
def test_live3_others_fail_when_a_rank_dies(case: TrainingCase, ranks: Ranks) -> None:
    """After a rank is killed, the other ranks get an error soon."""
    ranks.check("LIVE-3", case)


@given(case=cases_of("LIVE-4"))
def test_live4_nothing_is_left_behind(case: TrainingCase, ranks: Ranks) -> None:
    """Runs repeated in the same processes add no threads, descriptors or processes."""
    ranks.check("LIVE-4", case)


@given(case=cases_of("LIVE-5"))
def test_live5_actions_between_steps_do_no_harm(case: TrainingCase, ranks: Ranks) -> None:
    """Between-steps actions do not disturb training.

    The actions are evaluations, forwards without a backward, new learning rates, freezing and
    unfreezing of layers, and casts.
    """
    ranks.check("LIVE-5", case)


@given(case=cases_of("LIVE-6"))
def test_live6_a_second_wrapper_does_no_harm(case: TrainingCase, ranks: Ranks) -> None:
    """Two wrappers in one program train both their models right."""
    ranks.check("LIVE-6", case)


@given(case=cases_of("LIVE-7"))
def test_live7_surroundings_do_no_harm(case: TrainingCase, ranks: Ranks) -> None:
    """Steps are right under unusual settings and environments, and beside other groups."""
    ranks.check("LIVE-7", case)


@given(case=cases_of("LIVE-8"))
def test_live8_earlier_runs_change_nothing(case: TrainingCase, ranks: Ranks) -> None:
    """A run gives the same bits after other runs of its processes as alone."""
    ranks.check("LIVE-8", case)
