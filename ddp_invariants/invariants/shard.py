"""SHARD: the arguments alone determine disjoint shards that cover the dataset, but for padding.

Words: N dataset length, W world size, L indices per rank; total = W * ceil(N / W), or W * floor(N /
W) with drop_last.
"""

from collections import Counter
from itertools import combinations
from math import ceil

from ddp_invariants.invariants.diagnosis import resumption
from ddp_invariants.invariants.diagnosis import shards as shards_of
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.draws import ShardDraws
from ddp_invariants.invariants.exclusions import Exclusion, lacks
from ddp_invariants.invariants.orders import (
    differs_in_another_process,
    differs_in_one_process,
    not_sent_by_the_first,
    of_the_same_order,
)
from ddp_invariants.invariants.resumed import (
    raised_while_resuming,
    situations,
    wrong_in_another_world,
    wrong_resumption,
)
from ddp_invariants.invariants.rule import NotAbout, RuleSet, Script, Tally, Unjudged
from ddp_invariants.invariants.sampler_view import CHANCE_FREE, UNDECLARED, ShardView, brief
from ddp_invariants.records.verdict import Failure

_SOURCE = "the documentation of torch.utils.data.DistributedSampler"


__all__ = ["UNDECLARED", "ShardView", "sharding"]

sharding = RuleSet[ShardView]()
"""All rules about samplers."""


@sharding.rule(
    "SHARD-1",
    "All ranks yield the same number of indices, len(sampler) returns that number, and every "
    "index is in [0, N).",
    needs=("N not divisible by W", "N < W"),
    source=_SOURCE,
    draws=ShardDraws(),
    after="SHARD-4",
    script=Script(checks=("lengths",)),
)
def equal_lengths_in_range(view: ShardView, tally: Tally) -> Failure | None:
    """Count the indices that are yielded; `len` is compared with the count."""
    data, w = view.case.data, view.case.world_size
    for epoch, shards in view.epochs:
        tally.compared += len(shards)
        tally.met |= {"N not divisible by W"} if data.samples % w else set()
        tally.met |= {"N < W"} if data.samples < w else set()
        counts = [len(shard) for shard in shards]
        if len(set(counts)) > 1 and view.declared.padding != "none":
            failure = Failure(
                "SHARD-1",
                "ranks yield different numbers of indices",
                view.where(epoch),
                f"{counts}",
            )
            return caused(failure, shards_of.of_lengths(view.yielded, shards))
        if max(counts) > ceil(data.samples / w) and view.declared.padding == "none":
            failure = Failure(
                "SHARD-1",
                "a rank yields more than its share",
                view.where(epoch),
                f"{counts}, expected at most {ceil(data.samples / w)}",
            )
            return caused(
                failure,
                shards_of.of_length(view.yielded, shards, shards[counts.index(max(counts))]),
            )
        for rank, (shard, length) in enumerate(zip(shards, view.answer["lengths"], strict=True)):
            # An iterable need not have a `len`.
            if length not in (None, len(shard)) or len(shard) >= view.yielded.endless:
                fact = (
                    "len(sampler) is not the number of indices it yields"
                    if length is not None
                    else "iterating does not end"
                )
                failure = Failure(
                    "SHARD-1",
                    fact,
                    f"rank {rank}, {view.where(epoch)}",
                    f"len {length}, yields {len(shard)}",
                )
                return caused(failure, shards_of.of_length(view.yielded, shards, shard, length))
            bad = [index for index in shard if not 0 <= index < data.samples]
            if bad:
                return Failure(
                    "SHARD-1",
                    "an index lies outside the dataset",
                    f"rank {rank}, {view.where(epoch)}",
                    f"{bad[:5]}",
                )
    return None


@sharding.rule(
    "SHARD-2",
    "Without drop_last the shards together contain all N indices; with drop_last they contain "
    "exactly total distinct indices.",
    needs=("drop_last", "padding"),
    source=_SOURCE,
    draws=ShardDraws(),
    after="SHARD-1",
    script=Script(checks=("coverage",)),
)
def shards_cover_the_dataset(view: ShardView, tally: Tally) -> Failure | None:
    """Compare sets of indices."""
    data = view.case.data
    for epoch, shards in view.epochs:
        union = {index for shard in shards for index in shard}
        tally.compared += len(union)
        tally.met.add(
            "drop_last"
            if data.drop_last
            else "padding"
            if data.samples % view.case.world_size
            else "even"
        )
        if data.drop_last and len(union) != view.total:
            failure = Failure(
                "SHARD-2",
                "with drop_last the shards do not hold W * floor(N / W) distinct indices",
                view.where(epoch),
                f"{len(union)} distinct, expected {view.total}; shards {brief(shards)}",
            )
            return caused(failure, shards_of.of_overlap_or_loss(view.yielded, epoch, shards))
        missing = sorted(set(range(data.samples)) - union)
        if not data.drop_last and missing:
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
    "Shards are disjoint except for padding, which repeats total - N indices, and no index occurs "
    "more often than ceil(total / N) times; with drop_last no index repeats.",
    needs=("padding", "N divisible by W", "drop_last", "shuffle"),
    source=_SOURCE,
    draws=ShardDraws(),
    after="SHARD-2",
    script=Script(checks=("disjoint",)),
)
def shards_are_disjoint(view: ShardView, tally: Tally) -> Failure | None:
    """Count repetitions over all ranks."""
    data, w = view.case.data, view.case.world_size
    for epoch, shards in view.epochs:
        counts = Counter(index for shard in shards for index in shard)
        tally.compared += sum(counts.values())
        tally.met |= {"shuffle"} if data.shuffle else set()
        tally.met.add(
            "drop_last" if data.drop_last else "padding" if data.samples % w else "N divisible by W"
        )
        if not counts:
            continue
        repeated = sum(counts.values()) - len(counts)
        allowed = 0 if data.drop_last else view.total - data.samples
        index, most = counts.most_common(1)[0]
        most_allowed = 1 if data.drop_last or data.samples == 0 else ceil(view.total / data.samples)
        owners = [rank for rank, shard in enumerate(shards) if index in shard]
        if repeated > allowed or most > most_allowed:
            failure = Failure(
                "SHARD-3",
                "shards overlap beyond padding",
                view.where(epoch),
                f"{repeated} repetitions, {allowed} allowed; index {index} occurs {most} times "
                f"on ranks {owners}; shards {brief(shards)}",
            )
            return caused(failure, shards_of.of_overlap_or_loss(view.yielded, epoch, shards))
    return None


@sharding.rule(
    "SHARD-4",
    "The arguments alone determine the shards: they are the same in every process, on "
    "re-iteration and under any state of the global generators. Iteration leaves these generators "
    "unchanged.",
    needs=("shuffle", "two processes"),
    source=_SOURCE,
    draws=ShardDraws(),
    after="SHARD-5",
    script=Script(checks=("determined",)),
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
    tally.met |= {"shuffle"} if view.case.data.shuffle else set()
    failure = differs_in_one_process(view, tally)
    if failure is not None:
        return failure
    tally.met.add("two processes")
    return differs_in_another_process(view)


@sharding.rule(
    "SHARD-5",
    "With shuffle, set_epoch changes the order; without shuffle, it does not.",
    needs=("shuffle", "no shuffle"),
    source=_SOURCE,
    level="capability",
    draws=ShardDraws(least_samples=CHANCE_FREE),
    excluded=(lacks("cannot shuffle", "shuffle"),),
    after="SHARD-7",
    script=Script(checks=("epochs",)),
)
def epochs_change_the_order(view: ShardView, tally: Tally) -> Failure | None:
    """Judge only datasets so long that a chance repeat is below 1e-9.

    SHARD-2 and SHARD-3 show that the ranks agree on the permutation.
    """
    data = view.case.data
    if data.shuffle and data.samples < CHANCE_FREE:
        raise NotAbout("the dataset is so short that two epochs may have the same order by chance")
    for (epoch, shards), (other_epoch, other_shards) in combinations(view.epochs, 2):
        if epoch == other_epoch:
            continue
        tally.compared += 1
        tally.met.add("shuffle" if data.shuffle else "no shuffle")
        if data.shuffle and shards == other_shards:
            failure = Failure(
                "SHARD-5",
                "set_epoch does not change the order",
                f"epochs {epoch} and {other_epoch}, {view.where(other_epoch)}",
                f"both {brief(shards)}",
            )
            return caused(failure, of_the_same_order(view, shards))
        if not data.shuffle and shards != other_shards:
            return Failure(
                "SHARD-5",
                "set_epoch changes the order though shuffle is off",
                f"epochs {epoch} and {other_epoch}, {view.where(other_epoch)}",
                f"{brief(other_shards)}, before {brief(shards)}",
            )
    return None


@sharding.rule(
    "SHARD-6",
    "A DataLoader over the sampler yields the same number of batches on every rank.",
    needs=("a short last batch",),
    source=_SOURCE,
    draws=ShardDraws(loader=True),
    excluded=(
        Exclusion(
            "declares padding = none, so lengths differ",
            lambda claims: claims.sampler.padding == "none",
        ),
    ),
    after="SHARD-3",
    script=Script(checks=("batches",)),
)
def equal_numbers_of_batches(view: ShardView, tally: Tally) -> Failure | None:
    """Run torch's own DataLoader and count its batches."""
    batches = view.answer["batches"]
    if batches is None:
        raise NotAbout("no DataLoader was run")
    tally.compared += len(batches)
    per_rank, size = view.total // view.case.world_size, view.case.data.batch_size
    tally.met |= {"a short last batch"} if per_rank % size else set()
    expected = ceil(per_rank / size)
    if set(batches) != {expected}:
        where = f"batch size {size}, {view.where(view.case.epochs[-1])}"
        failure = Failure(
            "SHARD-6",
            "ranks get different numbers of batches, or a wrong number",
            where,
            f"{batches}, expected {expected} on every rank",
        )
        return caused(failure, shards_of.of_batches(view.yielded, batches))
    promised = view.answer["promised"]
    if promised != batches and None not in promised:
        failure = Failure(
            "SHARD-6",
            "a DataLoader's len is not the number of its batches",
            f"batch size {size}, {view.where(view.case.epochs[-1])}",
            f"{promised}, it yields {batches}",
        )
        return caused(failure, shards_of.of_promised_batches(view.yielded, promised))
    return None


@sharding.rule(
    "SHARD-7",
    "Impossible arguments raise an error on construction; the sampler accepts none silently.",
    source=_SOURCE,
    level="capability",
    draws=ShardDraws(),
    excluded=(lacks("takes no rank", "given_rank"),),
    after="MEM-1",
    script=Script(checks=("refusals",)),
)
def impossible_arguments_are_refused(view: ShardView, tally: Tally) -> Failure | None:
    """Try three impossible arguments: rank below 0, rank W or above, world size below 1."""
    if view.evidence.incident is not None:
        raise Unjudged(f"the process {view.evidence.incident.kind}")
    if not view.evidence.answers[0]["refused"]:
        raise NotAbout("the sampler takes no rank")
    for situation, error in view.evidence.answers[0]["refused"].items():
        tally.compared += 1
        if error is None:
            failure = Failure(
                "SHARD-7",
                "impossible arguments are silently accepted",
                situation,
                "no exception was raised",
            )
            return caused(failure, shards_of.of_acceptance(view.evidence.answers[0]["refused"]))
    return None


@sharding.rule(
    "SHARD-8",
    "Each rank holds the declared part of the order: order[r::W] if strided, order[r * L : (r + "
    "1) * L] if contiguous; if scattered, the data that the first rank sent, and no index.",
    needs=("more than one rank", "shuffle"),
    source=_SOURCE,
    level="declared",
    draws=ShardDraws(),
    excluded=(Exclusion("declares no layout", lambda claims: not claims.sampler.layout),),
    after="SHARD-6",
    script=Script(checks=("layout",)),
)
def declared_layout(view: ShardView, tally: Tally) -> Failure | None:
    """Compare each shard with its part of the order.

    The order is the one that a world of one rank gets for the same epoch. Indices beyond the end of
    that order are padding, which other rules judge.
    """
    layout, w = view.declared.layout, view.case.world_size
    if layout == "scatter":
        return not_sent_by_the_first(view, tally)
    if not layout or w == 1:
        raise NotAbout("no layout is declared" if not layout else "one rank")
    if view.answer["orders"] is None:
        raise Unjudged("the order of one rank was not recorded")
    for (epoch, shards), order in zip(view.epochs, view.answer["orders"], strict=True):
        tally.met |= {"more than one rank"} | ({"shuffle"} if view.case.data.shuffle else set())
        for rank, shard in enumerate(shards):
            start = sum(map(len, shards[:rank]))
            places = [rank + i * w if layout == "strided" else start + i for i in range(len(shard))]
            for index, place in zip(shard, places, strict=True):
                tally.compared += 1
                if place < len(order) and index != order[place]:
                    return Failure(
                        "SHARD-8",
                        f"a shard is not the {layout} part of the order",
                        f"rank {rank}, {view.where(epoch)}",
                        f"{shard[:8]}, expected {[order[p] for p in places[:8] if p < len(order)]}",
                    )
    return None


@sharding.rule(
    "SHARD-9",
    "A new sampler that loads a state saved after k batches yields exactly the rest of the epoch, "
    "on every rank; the next epoch is complete again. If claimed, the same holds for another "
    "number of ranks.",
    needs=(
        "resumed in the middle",
        "more than one rank",
        "shuffle",
        "a later epoch",
        "another world size",
    ),
    source="no document: resumed training needs this; torch's own sampler saves no state",
    level="capability",
    draws=ShardDraws(saved=True),
    excluded=(lacks("cannot continue from a saved state", "resume"),),
    after="SHARD-8",
    script=Script(checks=("resumption",)),
)
def resumed_with_the_rest(view: ShardView, tally: Tally) -> Failure | None:
    """Judge a state saved in the middle of an epoch, and a state saved after a resumption."""
    failure = raised_while_resuming(view)
    if failure is not None:
        return failure
    if view.case.saved_after is None or view.answer["resumed"] is None:
        raise NotAbout(
            "no state is saved" if view.case.saved_after is None else "the sampler offers no state"
        )
    for rank, (plain, whole) in enumerate(
        zip(view.answer["resumed"], view.answer["shards"][-1], strict=True)
    ):
        resumed = resumption.Resumed(**plain, whole=whole, rank=rank)
        if view.answer["again"][rank] != whole:
            raise Unjudged(
                "the sampler yields other indices on every iteration (SHARD-4), so the epoch has "
                "no fixed rest"
            )
        if len(resumed.taken) >= len(whole):
            continue  # A state saved at the end may belong to this epoch or to the next.
        tally.compared += len(whole) - len(resumed.taken)
        tally.met |= situations(view)
        failure = wrong_resumption(view, resumed)
        if failure is not None:
            return failure
    if not tally.compared:
        raise NotAbout("the epoch was over when the state was saved")
    return None if view.answer.get("elsewhere") is None else wrong_in_another_world(view, tally)


@sharding.rule(
    "SHARD-10",
    "The workers of a DataLoader, each with a copy of the iterable, together yield each sample of "
    "a rank once.",
    needs=("several workers", "more than one rank", "fewer samples than workers"),
    source="the documentation of torch.utils.data.IterableDataset: each worker gets a copy of the dataset",
    level="capability",
    draws=ShardDraws(worked=True),
    excluded=(lacks("does not claim to divide samples among DataLoader workers", "workers"),),
    after="SHARD-9",
    script=Script(checks=("workers",)),
)
def each_sample_by_one_worker(view: ShardView, tally: Tally) -> Failure | None:
    """Judge iterables that claim to support workers: each sample must come from one worker."""
    worked = view.answer["worked"]
    if worked is None:
        raise NotAbout("no DataLoader worker iterated the sampler")
    for rank, (parts, whole) in enumerate(zip(worked, view.answer["shards"][-1], strict=True)):
        tally.compared += len(whole)
        tally.met |= {"several workers"} if len(parts) > 1 else set()
        tally.met |= {"more than one rank"} if len(worked) > 1 else set()
        tally.met |= {"fewer samples than workers"} if len(whole) < len(parts) else set()
        got, expected = Counter(index for part in parts for index in part), Counter(whole)
        if got != expected:
            more, less = got - expected, expected - got
            failure = Failure(
                "SHARD-10",
                "the workers of a rank do not yield each of its samples exactly once",
                f"rank {rank}, {len(parts)} workers, {view.where(view.case.epochs[-1])}",
                f"{more.total()} too many, {less.total()} lost of {len(whole)}; by worker "
                f"{brief(parts)}",
            )
            return caused(
                failure, shards_of.of_workers(parts, whole, rank, view.answer["shards"][-1])
            )
    return None
