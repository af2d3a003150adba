"""SHARD, the capabilities: refused arguments, a declared layout, a saved state, several workers.

Words: N dataset length, W world size, L indices per rank.
"""

from collections import Counter
from dataclasses import replace

from ddp_invariants.invariants.asked import differs_when_asked
from ddp_invariants.invariants.dealing import first_wrong
from ddp_invariants.invariants.diagnosis import resumption
from ddp_invariants.invariants.diagnosis import shards as shards_of
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.draws import ShardDraws
from ddp_invariants.invariants.exclusions import ENDLESS, Exclusion, lacks
from ddp_invariants.invariants.orders import not_sent_by_the_first
from ddp_invariants.invariants.resumed import (
    conditions,
    raised_while_resuming,
    wrong_at_the_end,
    wrong_in_another_world,
    wrong_resumption,
)
from ddp_invariants.invariants.rule import NotAbout, Script, Tally, Unjudged
from ddp_invariants.invariants.sampler_view import ShardView, brief, sharding
from ddp_invariants.invariants.shard import SOURCE
from ddp_invariants.records.verdict import Failure


@sharding.rule(
    "SHARD-7",
    "Impossible arguments raise an error on construction; the sampler accepts none silently.",
    source=SOURCE,
    applies="capability",
    draws=ShardDraws(),
    excluded=(lacks("takes no rank", "given_rank"),),
    after="SHARD-10",
    apart=True,
    script=Script(checks=("refusals",)),
    level="robust",
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
    "Rank r holds the declared part of the order: order[r::W] if the layout is strided, order[r * L : "
    "(r + 1) * L] if it is contiguous (L: the number of indices of a rank). If the layout is scatter, "
    "the rank yields the data that the first rank sent, in place of indices.",
    needs=("more than one rank", "shuffle"),
    source=SOURCE,
    applies="declared",
    draws=ShardDraws(),
    excluded=(
        Exclusion(
            "declares no layout (strided or contiguous shards)",
            lambda claims: not claims.sampler.layout,
        ),
    ),
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
        tally.meet({"more than one rank": True, "shuffle": view.case.data.shuffle})
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
    "on every rank. The next epoch is complete again. If claimed, the same holds for another number "
    "of ranks.",
    needs=(
        "resumed in the middle",
        "more than one rank",
        "shuffle",
        "a later epoch",
        "another world size",
    ),
    source="no document: resumed training needs this; torch's own sampler saves no state",
    applies="capability",
    draws=ShardDraws(saved=True),
    exhausted=True,
    excluded=(lacks("cannot continue from a saved state", "resume"), ENDLESS),
    after="SHARD-8",
    script=Script(checks=("resumption",)),
)
def resumed_with_the_rest(view: ShardView, tally: Tally) -> Failure | None:
    """Judge a state saved within an epoch or at its ends, and one saved after a resumption."""
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
            failure = wrong_at_the_end(view, resumed)
            if failure is not None:
                return failure
            continue
        tally.compared += len(whole) - len(resumed.taken)
        tally.meet(conditions(view, resumed))
        failure = wrong_resumption(view, resumed)
        if failure is not None:
            return failure
    if not tally.compared:
        raise NotAbout("the epoch was over when the state was saved")
    failure = None if view.answer.get("elsewhere") is None else wrong_in_another_world(view, tally)
    return failure or differs_when_asked(view, tally, "SHARD-9")


@sharding.rule(
    "SHARD-10",
    "The workers of a DataLoader, each with a copy of the iterable, together yield each sample of "
    "a rank once.",
    needs=("several workers", "more than one rank", "fewer samples than workers"),
    source="the documentation of torch.utils.data.IterableDataset: each worker gets a copy of the dataset",
    applies="capability",
    draws=ShardDraws(worked=True),
    excluded=(lacks("divides no samples among DataLoader workers", "workers"), ENDLESS),
    after="SHARD-9",
    script=Script(checks=("workers",)),
)
def each_sample_by_one_worker(view: ShardView, tally: Tally) -> Failure | None:
    """Judge iterables that claim to support workers, or that yield other samples in each worker.

    If nothing is claimed, a rank may get other samples with workers than without, as long as the
    shards of all ranks, or those of all workers, are right.
    """
    worked = view.answer["worked"]
    if worked is None:
        raise NotAbout("no DataLoader worker iterated the sampler")
    dealt_anew = "workers" not in view.declared.supports and _right_with_workers(view, worked)
    for rank, (parts, whole) in enumerate(zip(worked, view.answer["shards"][-1], strict=True)):
        tally.compared += len(whole)
        tally.meet(
            {
                "several workers": len(parts) > 1,
                "more than one rank": len(worked) > 1,
                "fewer samples than workers": len(whole) < len(parts),
            }
        )
        got, expected = Counter(index for part in parts for index in part), Counter(whole)
        if got != expected and not dealt_anew:
            more, less = got - expected, expected - got
            failure = Failure(
                "SHARD-10",
                "the workers of a rank do not yield each of its samples exactly once",
                f"rank {rank}, {len(parts)} workers, {view.where(view.case.epochs[-1])}",
                f"{more.total()} too many, {less.total()} lost of {len(whole)}; by worker "
                f"{brief(parts)}",
            )
            return caused(failure, shards_of.of_workers(worked, rank, view.answer["shards"][-1]))
    return None


def _right_with_workers(view: ShardView, worked: list[list[list[int]]]) -> bool:
    """Return whether the shards of all ranks are right, or those of all workers as if of ranks."""
    of_ranks = [[index for part in parts for index in part] for parts in worked]
    of_workers = [part for parts in worked for part in parts]
    padding, case = view.padding, view.case
    as_ranks = replace(case, world_size=len(of_workers), workers=0, situations=())
    return not (first_wrong(case, padding, of_ranks) and first_wrong(as_ranks, padding, of_workers))
