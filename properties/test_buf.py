"""BUF: buffers stay those of one model, where the implementation promises it."""

from ddp_invariants.search.trial import Trial


def test_buf1_every_forward_starts_from_equal_buffers(trial: Trial) -> None:
    """Running statistics, a count and a mask, which each rank's batch moves elsewhere."""
    trial.certify("BUF-1")


def test_buf2_a_forward_moves_buffers_as_the_unwrapped_modules(trial: Trial) -> None:
    """The same, and a BatchNorm's running mean, running variance and count of batches."""
    trial.certify("BUF-2")
