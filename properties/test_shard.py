"""SHARD: disjoint shards with padding.

No process group is needed: one process asks for the shards of all ranks.
"""

from hypothesis import given

from ddp_invariants import Ranks, cases_of
from ddp_invariants.cases.case import ShardCase


@given(case=cases_of("SHARD-1"))
def test_shard1_all_ranks_yield_equally_many_valid_indices(case: ShardCase, ranks: Ranks) -> None:
    """All ranks yield the same number of indices, which is len(sampler), and all are in [0, N)."""
    ranks.check("SHARD-1", case)


@given(case=cases_of("SHARD-2"))
def test_shard2_the_shards_cover_the_dataset(case: ShardCase, ranks: Ranks) -> None:
    """Without drop_last the union covers all N indices; with it, W * floor(N / W) distinct ones."""
    ranks.check("SHARD-2", case)


@given(case=cases_of("SHARD-3"))
def test_shard3_the_shards_are_disjoint_but_for_padding(case: ShardCase, ranks: Ranks) -> None:
    """Over all ranks only the padding repeats, and evenly; with drop_last nothing repeats."""
    ranks.check("SHARD-3", case)


@given(case=cases_of("SHARD-4"))
def test_shard4_the_shards_are_fixed_by_the_arguments_alone(case: ShardCase, ranks: Ranks) -> None:
    """The same arguments give the same shards in every process and in every iteration.

    The shards do not depend on the global generators, and the sampler does not change them.
    """
    ranks.check("SHARD-4", case)


@given(case=cases_of("SHARD-5"))
def test_shard5_set_epoch_changes_the_order_if_and_only_if_shuffled(
    case: ShardCase, ranks: Ranks
) -> None:
    """With shuffle two epochs differ, and without shuffle they do not.

    Epochs are compared only if a chance repeat is less probable than 1e-9.
    """
    ranks.check("SHARD-5", case)


@given(case=cases_of("SHARD-6"))
def test_shard6_a_data_loader_yields_equally_many_batches_on_every_rank(
    case: ShardCase, ranks: Ranks
) -> None:
    """A torch DataLoader over the sampler yields equally many batches on every rank."""
    ranks.check("SHARD-6", case)


@given(case=cases_of("SHARD-7"))
def test_shard7_impossible_arguments_are_refused(case: ShardCase, ranks: Ranks) -> None:
    """A rank below 0, a rank of W or more, or a world size below 1 raises on construction."""
    ranks.check("SHARD-7", case)


@given(case=cases_of("SHARD-8"))
def test_shard8_each_rank_holds_the_declared_part_of_the_order(
    case: ShardCase, ranks: Ranks
) -> None:
    """A rank holds every W-th index if `strided` is declared, and one slice if `contiguous` is."""
    ranks.check("SHARD-8", case)


@given(case=cases_of("SHARD-9"))
def test_shard9_a_saved_state_goes_on_with_exactly_the_rest_of_the_epoch(
    case: ShardCase, ranks: Ranks
) -> None:
    """A new sampler that loads a saved state yields exactly the rest of the epoch, twice over.

    The epoch after the resumed one is whole again.
    """
    ranks.check("SHARD-9", case)


@given(case=cases_of("SHARD-10"))
def test_shard10_each_sample_by_one_worker(case: ShardCase, ranks: Ranks) -> None:
    """If an iterable claims to shard over DataLoader workers, one worker yields each sample."""
    ranks.check("SHARD-10", case)
