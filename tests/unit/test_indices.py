"""Long shards are packed on the wire, and are used as lists are."""

from operator import add

import numpy as np

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.invariants import judge
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.indices import LONG, Indices


def test_indices_join_lists_on_both_sides() -> None:
    """A short part of an epoch is a list, and the rest is packed."""
    long = Indices(np.arange(3, dtype=np.int64))
    assert add([7], long) == [7, 0, 1, 2]
    assert add(long, [7]) == [0, 1, 2, 7]
    assert long == [0, 1, 2]


def test_a_long_epoch_that_is_resumed_is_judged(pool: Pool) -> None:
    """The indices before the saved state are few, and those after it are packed."""
    case = ShardCase(1, Data(2 * LONG), saved_after=3)
    finding = judge(pool.shards(case, Sampler()))["SHARD-9"]
    assert finding.unjudged == ""
    assert finding.failure is None
    assert finding.compared > LONG
