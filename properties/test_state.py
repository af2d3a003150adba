"""STATE: training continues from a saved and loaded state as if nothing had happened."""

from ddp_invariants.search.trial import Trial


def test_state1_what_is_loaded_is_what_was_saved(trial: Trial) -> None:
    """Parameters, buffers and optimizer state are loaded as they were saved, and training goes on.

    The names in the saved state are the module's.
    """
    trial.certify("STATE-1")


def test_state2_ranks_of_another_number_go_on_from_what_was_saved(trial: Trial) -> None:
    """Fewer or more ranks load the saved state bitwise, and every step after it is right."""
    trial.certify("STATE-2")
