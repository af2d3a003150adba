"""LOSS: differing losses. Every rank trains on its own batch, and the wrapper leaves the forward alone."""

from ddp_invariants.search.trial import Trial


def test_loss1_each_ranks_loss_is_its_unwrapped_twins(trial: Trial) -> None:
    """Bitwise, on the rank's own batch: the wrapper neither mixes ranks nor changes the forward."""
    trial.certify("LOSS-1")


def test_loss2_losses_differ_as_batches_do(trial: Trial) -> None:
    """Ranks whose batches differ report different losses; ranks with the same batch report the same."""
    trial.certify("LOSS-2")


def test_loss3_the_mean_of_the_losses_is_the_global_batchs(trial: Trial) -> None:
    """With equal batch sizes, against float64 on the global batch."""
    trial.certify("LOSS-3")
