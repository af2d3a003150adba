"""STATE: what is saved and loaded again goes on as if nothing had happened."""

from ddp_invariants.trial import Trial


def test_state1_what_is_loaded_is_what_was_saved(trial: Trial) -> None:
    """Parameters, buffers and the optimizer's state, under the module's names, and training goes on from there."""
    trial.certify("STATE-1")
