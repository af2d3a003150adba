"""BUF: equal buffers, if the implementation promises them."""

from ddp_invariants.search.trial import Trial


def test_buf1_every_forward_starts_from_equal_buffers(trial: Trial) -> None:
    """Running statistics, a count and a mask are equal on all ranks when a forward starts."""
    trial.certify("BUF-1")


def test_buf2_a_forward_moves_buffers_as_the_unwrapped_modules(trial: Trial) -> None:
    """A forward changes buffers as it does in the unwrapped module.

    The buffers are running statistics, a count and a mask, and those of a BatchNorm.
    """
    trial.certify("BUF-2")
