"""RNG: random numbers.

A model on a rank draws that rank's own random numbers, as the user seeded them.
"""

from hypothesis import given

from ddp_invariants import Ranks, cases_of
from ddp_invariants.cases.case import TrainingCase


@given(case=cases_of("RNG-1"))
def test_rng1_each_ranks_random_numbers_are_its_own(case: TrainingCase, ranks: Ranks) -> None:
    """No forward repeats the random numbers of another rank or of an earlier forward.

    The ranks are seeded differently.
    """
    ranks.check("RNG-1", case)
