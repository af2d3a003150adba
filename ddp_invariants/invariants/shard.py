"""SHARD: the arguments alone determine disjoint shards that cover the dataset, but for padding.

Words: N dataset length, W world size, L indices per rank; total = W * ceil(N / W), or W * floor(N /
W) with drop_last.
"""

from collections.abc import Sequence
from itertools import combinations
from math import ceil
from typing import Any

import numpy as np

from ddp_invariants.cases.shard_case import CHANCE_FREE, may_repeat
from ddp_invariants.invariants.asked import differs_when_asked
from ddp_invariants.invariants.diagnosis import shards as shards_of
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.draws import ShardDraws
from ddp_invariants.invariants.exclusions import ENDLESS, OWN_CONTRACT, Exclusion, lacks
from ddp_invariants.invariants.orders import (
    differs_in_another_process,
    differs_in_one_process,
    of_the_same_order,
)
from ddp_invariants.invariants.rule import NotAbout, Script, Tally
from ddp_invariants.invariants.sampler_view import (
    ShardView,
    brief,
    sharding,
)
from ddp_invariants.records.indices import array_of
from ddp_invariants.records.verdict import Failure

Array = np.ndarray[Any, np.dtype[np.int64]]
SOURCE = "the documentation of torch.utils.data.DistributedSampler"


@sharding.rule(
    "SHARD-1",
    "All ranks yield the same number of indices, len(sampler) returns that number, and every "
    "index is in [0, N).",
    needs=("N not divisible by W", "N < W"),
    source=SOURCE,
    draws=ShardDraws(scaled=True),
    after="SHARD-4",
    exhausted=True,
    script=Script(checks=("lengths",)),
    level="core",
)
def equal_lengths_in_range(view: ShardView, tally: Tally) -> Failure | None:
    """Count the indices that are yielded; `len` is compared with the count of the last epoch.

    It is asked after that epoch, and an earlier one may have had another length.
    """
    data, w = view.case.data, view.case.world_size
    for number, (epoch, shards) in enumerate(view.epochs, start=1):
        tally.compared += len(shards)
        tally.meet({"N not divisible by W": data.samples % w, "N < W": data.samples < w})
        counts = [len(shard) for shard in shards]
        if len(set(counts)) > 1 and view.declared.padding not in ("none", "own"):
            failure = Failure(
                "SHARD-1",
                "ranks yield different numbers of indices",
                view.where(epoch),
                brief(counts),
            )
            return caused(failure, shards_of.of_lengths(view.yielded, shards))
        if max(counts) > ceil(data.samples / w) and view.declared.padding == "none":
            failure = Failure(
                "SHARD-1",
                "a rank yields more than its share",
                view.where(epoch),
                f"{brief(counts)}, expected at most {ceil(data.samples / w)}",
            )
            return caused(
                failure,
                shards_of.of_length(view.yielded, shards, shards[counts.index(max(counts))]),
            )
        for rank, (shard, told) in enumerate(zip(shards, view.answer["lengths"], strict=True)):
            # An iterable need not have a `len`.
            length = told if number == len(view.epochs) else None
            stopped = len(shard) >= view.yielded.endless
            if stopped and view.declared.padding == "own":
                continue  # A contract of its own may repeat each sample so often.
            if length not in (None, len(shard)) or stopped:
                fact = (
                    "len(sampler) is not the number of indices it yields"
                    if told is not None
                    else "iterating does not end"
                )
                failure = Failure(
                    "SHARD-1",
                    fact,
                    f"rank {rank}, {view.where(epoch)}",
                    f"len {told}, yields {len(shard)}",
                )
                return caused(failure, shards_of.of_length(view.yielded, shards, shard, told))
            bad = _outside(shard, data.samples)
            if bad:
                failure = Failure(
                    "SHARD-1",
                    "an index lies outside the dataset",
                    f"rank {rank}, {view.where(epoch)}",
                    f"{bad}",
                )
                return caused(failure, shards_of.of_indices(data.samples, bad))
    return None


def _outside(shard: Sequence[int], samples: int) -> list[int]:
    """Return the first indices of a shard that lie outside the dataset."""
    array = array_of(shard)
    places = np.flatnonzero((array < 0) | (array >= samples))[:5]
    return [shard[place] for place in places.tolist()]


def _counted(shards: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Return the distinct indices of all shards, and how often each occurs."""
    flat = np.concatenate([array_of(shard) for shard in shards])
    return np.unique(flat, return_counts=True)


@sharding.rule(
    "SHARD-2",
    "Without drop_last the shards together contain all N indices. With drop_last they contain as "
    "many different indices as the declared padding leaves, usually W * floor(N / W).",
    needs=("drop_last", "padding"),
    source=SOURCE,
    draws=ShardDraws(scaled=True, asked=True),
    excluded=(OWN_CONTRACT,),
    after="SHARD-1",
    exhausted=True,
    script=Script(checks=("coverage",)),
    level="core",
)
def shards_cover_the_dataset(view: ShardView, tally: Tally) -> Failure | None:
    """Compare sets of indices."""
    data = view.case.data
    for epoch, shards in view.epochs:
        union, _ = _counted(shards)
        tally.compared += len(union)
        tally.met.add(
            "drop_last"
            if data.drop_last
            else "padding"
            if data.samples % view.case.world_size
            else "even"
        )
        if data.drop_last and not view.total - view.repeats <= len(union) <= view.total:
            failure = Failure(
                "SHARD-2",
                "with drop_last the shards do not hold W * floor(N / W) distinct indices",
                view.where(epoch),
                f"{len(union)} distinct, expected {view.total}; shards {brief(shards)}",
            )
            return caused(failure, shards_of.of_overlap_or_loss(view.yielded, epoch, shards))
        missing = [] if data.drop_last else np.setdiff1d(np.arange(data.samples), union).tolist()
        if missing:
            failure = Failure(
                "SHARD-2",
                "samples are lost",
                view.where(epoch),
                f"indices {missing[:8]} are in no shard "
                f"({len(missing)} of {data.samples}); shards {brief(shards)}",
            )
            return caused(failure, shards_of.of_overlap_or_loss(view.yielded, epoch, shards))
    return None


@sharding.rule(
    "SHARD-3",
    "Shards are disjoint except for padding, which repeats T - N indices (T: the declared number of "
    "indices of all shards together, usually W * ceil(N / W)). No index occurs more often than "
    "ceil(T / N) times. With drop_last no index repeats, except where batches are padded before "
    "short ones are dropped.",
    needs=("padding", "N divisible by W", "drop_last", "shuffle"),
    source=SOURCE,
    draws=ShardDraws(scaled=True),
    excluded=(OWN_CONTRACT,),
    after="SHARD-2",
    exhausted=True,
    script=Script(checks=("disjoint",)),
    level="core",
)
def shards_are_disjoint(view: ShardView, tally: Tally) -> Failure | None:
    """Count repetitions over all ranks."""
    data, w = view.case.data, view.case.world_size
    for epoch, shards in view.epochs:
        indices, counts = _counted(shards)
        tally.compared += int(counts.sum())
        tally.meet(
            {
                "shuffle": data.shuffle,
                "drop_last": data.drop_last,
                "padding": not data.drop_last and data.samples % w,
                "N divisible by W": not data.drop_last and data.samples % w == 0,
            }
        )
        if not len(counts):
            continue
        repeated = int(counts.sum()) - len(counts)
        allowed = view.repeats
        index, most = int(indices[counts.argmax()]), int(counts.max())
        most_allowed = ceil((data.samples + allowed) / data.samples) if data.samples else 1
        owners = [rank for rank, shard in enumerate(shards) if index in shard]
        if repeated > allowed or most > most_allowed:
            failure = Failure(
                "SHARD-3",
                "shards overlap beyond padding",
                view.where(epoch),
                f"{repeated} repetitions, {allowed} allowed; index {index} occurs {most} times, "
                f"{most_allowed} allowed, on ranks {brief(owners)}; shards {brief(shards)}",
            )
            return caused(failure, shards_of.of_overlap_or_loss(view.yielded, epoch, shards))
    return None


@sharding.rule(
    "SHARD-4",
    "The arguments alone determine the shards: they are the same in every process, on "
    "re-iteration and under any state of the global generators, however a program asks. Iteration "
    "leaves these generators unchanged. If the dataset's length changes, the shards fit the old or "
    "the new length.",
    needs=("shuffle", "two processes"),
    source=SOURCE,
    draws=ShardDraws(scaled=True, asked=True),
    after="SHARD-5",
    exhausted=True,
    needs_all=True,
    script=Script(checks=("determined",)),
    level="core",
)
def shards_are_determined(view: ShardView, tally: Tally) -> Failure | None:
    """Compare two processes with different hash seeds and global random states."""
    answers = view.evidence.answers
    last = view.case.epochs[-1]
    raised = [answer["raised"] for answer in answers if "raised" in answer]
    if len(raised) == 1 and len(answers) == 2:
        return Failure(
            "SHARD-4",
            "one process answers and another raises on the same arguments",
            view.where(last),
            f"{raised[0]['type']} in {raised[0]['phase']}: {raised[0]['message']}",
            "it depends on the hash seed or on a global random generator",
        )
    tally.meet({"shuffle": view.case.data.shuffle})
    failure = differs_in_one_process(view, tally)
    if failure is not None:
        return failure
    tally.met.add("two processes")
    return differs_in_another_process(view) or differs_when_asked(view, tally, "SHARD-4")


@sharding.rule(
    "SHARD-5",
    "With shuffle, set_epoch changes the order; without shuffle, it does not.",
    needs=("shuffle", "no shuffle"),
    source=SOURCE,
    applies="capability",
    draws=ShardDraws(least_samples=CHANCE_FREE, few=True),
    exhausted=True,
    excluded=(lacks("cannot shuffle", "shuffle"), ENDLESS),
    after="MEM-1",
    script=Script(checks=("epochs",)),
    level="core",
)
def epochs_change_the_order(view: ShardView, tally: Tally) -> Failure | None:
    """Judge only datasets so long that a chance repeat is below 1e-9.

    A sampler may choose from few orders. So two epochs with one order are wrong only if the pairs of
    epochs after them are equal, too, or pairs at a regular interval; or if the two are equal under many
    seeds while no other two of the first thousand epochs are. SHARD-2 and SHARD-3 show that the ranks agree on the permutation.
    """
    data = view.case.data
    if data.shuffle and data.samples < CHANCE_FREE:
        raise NotAbout("the dataset is so short that two epochs may have the same order by chance")
    for (epoch, shards), (other_epoch, other_shards) in combinations(view.epochs, 2):
        if epoch == other_epoch or (data.shuffle and may_repeat(data.samples, shards)):
            continue
        if (
            data.shuffle
            and shards == other_shards
            and not view.is_equal_order(view.equal_epochs(epoch, other_epoch), shards)
            and view.interval_of(epoch, other_epoch) is None
            and not view.are_lone(epoch, other_epoch)
        ):
            continue
        tally.compared += 1
        tally.met.add("shuffle" if data.shuffle else "no shuffle")
        if data.shuffle and shards == other_shards:
            failure = Failure(
                "SHARD-5",
                "no epoch can be set, and each iteration has the same order"
                if view.answer.get("counted")
                else "set_epoch does not change the order",
                f"epochs {epoch} and {other_epoch}, {view.where(other_epoch)}",
                f"both {brief(shards)}{_recurrence(view, epoch, other_epoch)}",
            )
            return caused(failure, of_the_same_order(view, shards, epoch, other_epoch))
        # A contract of its own may choose other samples in each epoch.
        if not data.shuffle and shards != other_shards and view.declared.padding != "own":
            return Failure(
                "SHARD-5",
                "set_epoch changes the order though shuffle is off",
                f"epochs {epoch} and {other_epoch}, {view.where(other_epoch)}",
                f"{brief(other_shards)}, before {brief(shards)}",
            )
    return None


def _recurrence(view: ShardView, epoch: int, other: int) -> str:
    """Return in words what else shows that two equal orders are no chance."""
    interval = view.interval_of(epoch, other)
    if interval is not None:
        return f", and so on every {interval} epochs"
    return ", also under other seeds; no other two of many epochs are equal" * view.are_lone(
        epoch, other
    )


@sharding.rule(
    "SHARD-6",
    "A DataLoader over the sampler yields the same number of batches on every rank.",
    needs=("a short last batch",),
    source=SOURCE,
    draws=ShardDraws(loader=True),
    excluded=(
        Exclusion(
            "declares padding = none, so lengths differ",
            lambda claims: claims.sampler.padding == "none",
        ),
        ENDLESS,
        OWN_CONTRACT,
    ),
    after="SHARD-3",
    script=Script(checks=("batches",)),
    level="core",
)
def equal_numbers_of_batches(view: ShardView, tally: Tally) -> Failure | None:
    """Run torch's own DataLoader and count its batches."""
    batches = view.answer["batches"]
    if batches is None:
        raise NotAbout("no DataLoader was run")
    tally.compared += len(batches)
    per_rank, size = view.total // view.case.world_size, view.case.data.batch_size
    # A sampler that is not told the batch size makes batches of a size of its own.
    sized = view.answer.get("sized", True)
    tally.meet({"a short last batch": sized and per_rank % size})
    expected = ceil(per_rank / size) if sized else batches[0]
    if set(batches) != {expected}:
        where = f"batch size {size}, {view.where(view.case.epochs[-1])}"
        failure = Failure(
            "SHARD-6",
            "ranks get different numbers of batches, or a wrong number",
            where,
            f"{brief(batches)}, expected {expected if sized else 'the same number'} on every rank",
        )
        return caused(failure, shards_of.of_batches(view.yielded, batches))
    promised = view.answer["promised"]
    if promised != batches and None not in promised:
        failure = Failure(
            "SHARD-6",
            "a DataLoader's len is not the number of its batches",
            f"batch size {size}, {view.where(view.case.epochs[-1])}",
            f"{brief(promised)}, it yields {brief(batches)}",
        )
        return caused(failure, shards_of.of_promised_batches(view.yielded, promised))
    return None
