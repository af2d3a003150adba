"""STATE: training continues from a saved and loaded state as if nothing had happened."""

from hypothesis import given

from ddp_invariants import Ranks, cases_of
from ddp_invariants.cases.case import TrainingCase


@given(case=cases_of("STATE-1"))
def test_state1_loaded_state_is_the_saved_state(case: TrainingCase, ranks: Ranks) -> None:
    """Parameters, buffers and optimizer state are loaded as they were saved, and training goes on.

    The names in the saved state are the module's.
    """
    ranks.check("STATE-1", case)


@given(case=cases_of("STATE-2"))
def test_state2_another_number_of_ranks_continues_from_the_saved_state(
    case: TrainingCase, ranks: Ranks
) -> None:
    """Fewer or more ranks load the saved state bitwise, and every step after it is right."""
    ranks.check("STATE-2", case)
