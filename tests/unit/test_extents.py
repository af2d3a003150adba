"""Long shards on the wire, orders that are equal by chance, and smaller numbers."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.cases.shard_case import ENOUGH
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.errors import EvidenceError
from ddp_invariants.invariants import judge
from ddp_invariants.ranks.equal_orders import equal_seeds
from ddp_invariants.records.evidence import ShardEvidence
from ddp_invariants.records.indices import LONG, Indices, array_of, packed, unpacked
from ddp_invariants.records.verdict import Finding

LONG_SHARD = [*range(LONG + 1)]


def test_a_long_shard_travels_as_text_and_is_equal_to_the_list() -> None:
    """Rules read a long shard as they read a short one."""
    answer = {"shards": [[LONG_SHARD, [1, 2]]], "again": None, "touched": ["random"]}
    sent = json.dumps(packed(answer))
    read = unpacked(json.loads(sent))
    assert len(sent) < 12 * LONG
    assert read == answer
    assert isinstance(read["shards"][0][0], Indices)
    assert read["shards"][0][0][:2] == [0, 1]
    assert read["shards"][0][0] != LONG_SHARD[:-1]
    assert packed(read) == packed(answer)
    assert str(read["shards"][0][0]).endswith("…]")


def test_text_that_is_no_shard_is_refused() -> None:
    """Nothing of a malformed answer reaches a rule."""
    with pytest.raises(EvidenceError, match="indices that cannot be read"):
        unpacked({"again": [{"indices": "abc"}]})


def test_an_index_beyond_64_bits_stays_outside_every_dataset() -> None:
    """The largest integer stands for it; the wire keeps it as it is."""
    huge = [*LONG_SHARD, 2**80]
    assert array_of(huge)[-1] == np.iinfo(np.int64).max
    assert packed(huge) == huge


def seeds_alike(
    count: int | None, *, batch_size: int = 1, samples: int = 13, direction: int = -1
) -> Finding:
    """Return the finding about two seeds with one order, and equal pairs of seeds after them."""
    data = Data(samples=samples, shuffle=True, batch_size=batch_size)
    case = ShardCase(world_size=4, data=data)
    order = [direction * place % samples for place in range(4 * -(-samples // 4))]
    shards = [order[rank::4] for rank in range(4)]
    answer = {
        "lengths": [len(shard) for shard in shards],
        "shards": [shards],
        "again": shards,
        "afresh": shards,
        "reseeded": shards,
        "equal_seeds": count,
        "equal_epochs": [],
        "touched": [],
        "batches": None,
        "promised": None,
        "worked": None,
        "orders": None,
        "refused": {},
    }
    return judge(ShardEvidence(case, (answer, answer)))["SHARD-4"]


def test_seeds_that_share_an_order_by_chance_are_no_violation() -> None:
    """Ranks that shuffle four samples of their own have 24 orders, however long the dataset is."""
    assert seeds_alike(1).failure is None
    assert seeds_alike(ENOUGH - 1).failure is None


def test_an_ignored_seed_gives_one_order_for_every_pair_of_seeds() -> None:
    """Thirty equal pairs leave no chance."""
    failure = seeds_alike(ENOUGH).failure
    assert failure is not None
    assert failure.perhaps == "the seed is ignored"
    assert "alike for the next 29 pairs" in failure.got
    unshuffled = seeds_alike(ENOUGH, direction=1).failure
    assert unshuffled is not None
    assert unshuffled.perhaps == "the order is that of the dataset: shuffle is ignored"


def test_further_seeds_are_asked_for_only_where_they_can_tell_a_fault() -> None:
    """Where no rank gets an index, or a share is one batch, all seeds have one order.

    Asking 1,027 ranks for 30 pairs of such shares took a process 6 s.
    """

    def asked(samples: int, batch_size: int, dealt: list[list[int]]) -> int:
        data = Data(samples=samples, batch_size=batch_size, shuffle=True, drop_last=True)
        case, seeds = ShardCase(world_size=2, data=data), list[int]()

        def ask(other: ShardCase, _: Sequence[int]) -> list[list[int]]:
            seeds.append(other.data.seed)
            return dealt

        pairs = equal_seeds(case, ask, range(2), dealt, alike=True)
        assert pairs == (ENOUGH if seeds else 1)
        return len(seeds)

    shards = [[*range(0, 40, 2)], [*range(1, 40, 2)]]
    assert asked(40, 1, shards) == 2 * ENOUGH
    assert asked(40, 1, [[], []]) == 0
    assert asked(40, 1, [[1], [2]]) == 0
    assert asked(40, 20, shards) == 0


def test_one_equal_pair_of_scattered_orders_counts_if_a_rank_has_many_samples() -> None:
    """Nobody asks for more pairs of scattered data, so the one pair must leave no chance.

    Each rank may shuffle three samples of its own in six orders, or 13 samples in 6e9 orders.
    """
    assert seeds_alike(None).failure is None
    assert seeds_alike(None, samples=4 * 12).failure is None
    assert seeds_alike(None, samples=4 * 13).failure is not None


def test_batches_as_long_as_a_share_have_one_order() -> None:
    """A sampler that shuffles whole batches has nothing to shuffle then."""
    assert seeds_alike(ENOUGH, batch_size=2).failure is None


def test_a_long_dataset_shrinks_in_few_steps() -> None:
    """A simpler dataset of a million samples is half as long, or ever closer to it."""
    lengths = [
        case.data.samples
        for case in simpler(ShardCase(world_size=1, data=Data(samples=1_000_000)))
        if isinstance(case, ShardCase)
    ]
    assert lengths[:40] == [*range(40)]
    assert lengths[40] == 500_000
    assert lengths[-1] == 999_999
    assert len(lengths) < 70
