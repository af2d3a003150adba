"""STATE: what is saved and loaded again goes on as if nothing had happened."""

from ddp_invariants.search.trial import Trial


def test_state1_what_is_loaded_is_what_was_saved(trial: Trial) -> None:
    """Parameters, buffers and the optimizer's state, under the module's names, and training goes on from there."""
    trial.certify("STATE-1")


def test_state2_ranks_of_another_number_go_on_from_what_was_saved(trial: Trial) -> None:
    """Fewer or more: they load it bitwise, the optimizer's state too, and every step after it is right."""
    trial.certify("STATE-2")
