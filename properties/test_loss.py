"""LOSS: differing losses.

Every rank trains on its own batch, and the wrapper does not change the forward.
"""

from ddp_invariants.search.trial import Trial


def test_loss1_each_ranks_loss_is_its_unwrapped_twins(trial: Trial) -> None:
    """A rank's loss is bitwise that of its unwrapped twin module on the rank's own batch.

    The wrapper neither mixes ranks nor changes the forward.
    """
    trial.certify("LOSS-1")


def test_loss2_losses_differ_as_batches_do(trial: Trial) -> None:
    """Ranks report different losses if their batches differ, and the same loss otherwise."""
    trial.certify("LOSS-2")


def test_loss3_the_mean_of_the_losses_is_the_global_batchs(trial: Trial) -> None:
    """With equal batch sizes, the mean of the losses is the float64 loss of the global batch."""
    trial.certify("LOSS-3")
