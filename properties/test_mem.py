"""MEM: memory.

A rank holds its claimed share of parameters, gradients and optimizer state, and no more.
"""

from ddp_invariants.search.trial import Trial


def test_mem1_a_rank_holds_its_share(trial: Trial) -> None:
    """A rank holds no more than its share of the state that the claimed stage shards.

    Stage 1 shards optimizer state, stage 2 also gradients, and stage 3 also parameters.
    """
    trial.certify("MEM-1")
