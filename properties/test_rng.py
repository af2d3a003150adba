"""RNG: random numbers. What a model draws on a rank is that rank's own, as its user seeded it."""

from ddp_invariants.search.trial import Trial


def test_rng1_each_ranks_random_numbers_are_its_own(trial: Trial) -> None:
    """Bit by bit, where each is seeded differently: against the other ranks', and its own of earlier forwards."""
    trial.certify("RNG-1")
