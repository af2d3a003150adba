"""LIVE: training ends. A rank that hangs or dies is a violation of its own, told with its stack."""

from ddp_invariants.search.trial import Trial


def test_live1_every_case_ends_on_every_rank(trial: Trial) -> None:
    """Within the harness's deadline, by itself."""
    trial.certify("LIVE-1")


def test_live2_a_caught_exception_does_no_harm(trial: Trial) -> None:
    """It reaches the user on every rank, and the step run again, and all after it, are what they would have been."""
    trial.certify("LIVE-2")


def test_live3_a_death_is_told_to_the_others(trial: Trial) -> None:
    """A rank is killed; the others get an error, soon."""
    trial.certify("LIVE-3")


def test_live4_nothing_is_left_behind(trial: Trial) -> None:
    """The whole run is repeated in the same processes: threads, descriptors and processes do not grow."""
    trial.certify("LIVE-4")


def test_live5_what_happens_between_steps_does_no_harm(trial: Trial) -> None:
    """Evaluations, forwards without a backward, new learning rates, layers frozen and unfrozen, casts."""
    trial.certify("LIVE-5")
