"""LIVE: training ends.

A rank that hangs or dies is a violation of its own, reported with the rank's stack.
"""

from ddp_invariants.search.trial import Trial


def test_live1_every_case_ends_on_every_rank(trial: Trial) -> None:
    """Every case ends by itself on every rank, within the harness's deadline."""
    trial.certify("LIVE-1")


def test_live2_a_caught_exception_does_no_harm(trial: Trial) -> None:
    """An exception reaches the user on every rank and does no harm to later steps.

    The repeated step and all later steps are as they would have been.
    """
    trial.certify("LIVE-2")


def test_live3_others_fail_when_a_rank_dies(trial: Trial) -> None:
    """After a rank is killed, the other ranks get an error soon."""
    trial.certify("LIVE-3")


def test_live4_nothing_is_left_behind(trial: Trial) -> None:
    """Runs repeated in the same processes add no threads, descriptors or processes."""
    trial.certify("LIVE-4")


def test_live5_actions_between_steps_do_no_harm(trial: Trial) -> None:
    """Between-steps actions do not disturb training.

    The actions are evaluations, forwards without a backward, new learning rates, freezing and
    unfreezing of layers, and casts.
    """
    trial.certify("LIVE-5")


def test_live6_a_second_wrapper_does_no_harm(trial: Trial) -> None:
    """Two wrappers in one program train both their models right."""
    trial.certify("LIVE-6")


def test_live7_surroundings_do_no_harm(trial: Trial) -> None:
    """Steps are right under unusual settings and environments, and beside other groups."""
    trial.certify("LIVE-7")


def test_live8_earlier_runs_change_nothing(trial: Trial) -> None:
    """A run gives the same bits after other runs of its processes as alone."""
    trial.certify("LIVE-8")
