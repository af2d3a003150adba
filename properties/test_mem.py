"""MEM: sharding saves what it claims. Parameters, gradients and optimizer state of a rank are its share and no more."""

from ddp_invariants.search.trial import Trial


def test_mem1_a_rank_holds_its_share(trial: Trial) -> None:
    """Of optimizer state from stage 1 on, of gradients from stage 2 on, of parameters at stage 3."""
    trial.certify("MEM-1")
