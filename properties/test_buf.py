"""BUF: equal buffers, if the implementation promises them."""

from hypothesis import given

from ddp_invariants import Ranks, cases_of
from ddp_invariants.cases.case import TrainingCase


@given(case=cases_of("BUF-1"))
def test_buf1_every_forward_starts_from_equal_buffers(case: TrainingCase, ranks: Ranks) -> None:
    """Running statistics, a count and a mask are equal on all ranks when a forward starts."""
    ranks.check("BUF-1", case)


@given(case=cases_of("BUF-2"))
def test_buf2_a_forward_moves_buffers_as_the_unwrapped_modules(
    case: TrainingCase, ranks: Ranks
) -> None:
    """A forward changes buffers as it does in the unwrapped module.

    The buffers are running statistics, a count and a mask, and those of a BatchNorm.
    """
    ranks.check("BUF-2", case)
