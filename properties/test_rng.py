"""RNG: random numbers.

A model on a rank draws that rank's own random numbers, as the user seeded them.
"""

from ddp_invariants.search.trial import Trial


def test_rng1_each_ranks_random_numbers_are_its_own(trial: Trial) -> None:
    """No forward repeats the random numbers of another rank or of an earlier forward.

    The ranks are seeded differently.
    """
    trial.certify("RNG-1")
