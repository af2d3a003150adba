"""LOSS: differing losses.

Every rank trains on its own batch, and the wrapper does not change the forward.
"""

from hypothesis import given

from ddp_invariants import Ranks, cases_of
from ddp_invariants.cases.case import TrainingCase


@given(case=cases_of("LOSS-1"))
def test_loss1_each_ranks_loss_is_its_unwrapped_twins(case: TrainingCase, ranks: Ranks) -> None:
    """A rank's loss is bitwise that of its unwrapped twin module on the rank's own batch.

    The wrapper neither mixes ranks nor changes the forward.
    """
    ranks.check("LOSS-1", case)


@given(case=cases_of("LOSS-2"))
def test_loss2_losses_differ_as_batches_do(case: TrainingCase, ranks: Ranks) -> None:
    """Ranks report different losses if their batches differ, and the same loss otherwise."""
    ranks.check("LOSS-2", case)


@given(case=cases_of("LOSS-3"))
def test_loss3_the_mean_of_the_losses_is_the_global_batchs(
    case: TrainingCase, ranks: Ranks
) -> None:
    """With equal batch sizes, the mean of the losses is the float64 loss of the global batch."""
    ranks.check("LOSS-3", case)
