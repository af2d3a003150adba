"""STATE: training continues from a saved and loaded state as if nothing had happened."""

from ddp_invariants.search.trial import Trial


def test_state1_loaded_state_is_the_saved_state(trial: Trial) -> None:
    """Parameters, buffers and optimizer state are loaded as they were saved, and training goes on.

    The names in the saved state are the module's.
    """
    trial.certify("STATE-1")


def test_state2_another_number_of_ranks_continues_from_the_saved_state(trial: Trial) -> None:
    """Fewer or more ranks load the saved state bitwise, and every step after it is right."""
    trial.certify("STATE-2")
