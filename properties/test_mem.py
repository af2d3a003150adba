"""MEM: memory.

A rank holds its claimed share of parameters, gradients and optimizer state, and no more.
"""

from hypothesis import given

from ddp_invariants import Ranks, cases_of
from ddp_invariants.cases.case import TrainingCase


@given(case=cases_of("MEM-1"))
def test_mem1_a_rank_holds_its_share(case: TrainingCase, ranks: Ranks) -> None:
    """A rank holds no more than its share of the state that the claimed stage shards.

    Stage 1 shards optimizer state, stage 2 also gradients, and stage 3 also parameters.
    """
    ranks.check("MEM-1", case)
