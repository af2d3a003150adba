"""SHARD: the arguments alone determine disjoint shards that cover the dataset, but for padding.

Words: N dataset length, W world size, L indices per rank; total = W * ceil(N / W), or W * floor(N /
W) with drop_last.
"""

from collections import Counter
from functools import cached_property
from itertools import chain, combinations
from math import ceil
from typing import Any

from ddp_invariants.implementation.declarations import SamplerDeclarations
from ddp_invariants.invariants.diagnosis import resumption
from ddp_invariants.invariants.diagnosis import shards as shards_of
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.draws import ShardDraws
from ddp_invariants.invariants.exclusions import Exclusion, lacks
from ddp_invariants.invariants.rule import NotAbout, RuleSet, Script, Tally, Unjudged
from ddp_invariants.records.evidence import FOREIGN, OWN, ShardEvidence
from ddp_invariants.records.verdict import Cause, Failure

_SOURCE = "the documentation of torch.utils.data.DistributedSampler"

CHANCE_FREE = 13
"""Smallest dataset length at which two random permutations are equal with a chance below 1e-9.

The chance is 1 / 13! = 1.6e-10.
"""


UNDECLARED = SamplerDeclarations()


class ShardView:
    """The recorded answers of a sampler, as the rules read them."""

    def __init__(self, evidence: ShardEvidence, declared: SamplerDeclarations = UNDECLARED) -> None:
        self.evidence, self.case, self.declared = evidence, evidence.case, declared

    @cached_property
    def answer(self) -> dict[str, Any]:
        """The first process's answer.

        Raises:
            Unjudged: The sampler raised or the process ended.
        """
        if self.evidence.incident is not None:
            raise Unjudged(f"the process {self.evidence.incident.kind}")
        raised = self.evidence.answers[0].get("raised")
        if raised is not None and self.case.data.samples == 0 and raised["phase"] == "construction":
            raise NotAbout("the sampler refuses an empty dataset, which is allowed")
        if raised is not None:
            raise Unjudged(
                f"the sampler raised {raised['type']} in {raised['phase']}: {raised['message']}"
            )
        return self.evidence.answers[0]

    @property
    def epochs(self) -> list[tuple[int, list[list[int]]]]:
        """Each epoch with every rank's indices.

        Raises:
            Unjudged: A rank holds data that are no sample of the first rank's data.
        """
        held = self.held
        if self.declared.layout == "scatter" and any(
            index in (OWN, FOREIGN) for _, ranks in held for shard in ranks for index in shard
        ):
            raise Unjudged("a rank holds data that the first rank did not send (SHARD-8)")
        return held

    @property
    def held(self) -> list[tuple[int, list[list[int]]]]:
        """Each epoch with everything that every rank holds.

        These are indices, and `OWN` and `FOREIGN` if data are scattered.
        """
        return list(zip(self.case.epochs, self.answer["shards"], strict=True))

    @property
    def total(self) -> int:
        """The number of indices of all ranks together, under the declared padding."""
        n, unit = self.case.data.samples, self.case.world_size
        if self.declared.padding == "none" and not self.case.data.drop_last:
            return n
        if self.declared.padding == "batch":
            unit *= self.case.data.batch_size
        return unit * (n // unit) if self.case.data.drop_last else unit * ceil(n / unit)

    @property
    def yielded(self) -> shards_of.YieldedShards:
        """The shards, as the diagnosis of causes needs them."""
        return shards_of.YieldedShards(self.case, self.epochs, self.total)

    def where(self, epoch: int) -> str:
        """Return an epoch and the sizes of the case in words."""
        data = self.case.data
        return f"{data.samples} samples over {self.case.world_size} ranks, epoch {epoch}"


sharding = RuleSet[ShardView]()
"""All rules about samplers."""


@sharding.rule(
    "SHARD-1",
    "All ranks yield the same number of indices, len(sampler) says that number, and every index is "
    "in [0, N).",
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
    "Without drop_last the union of the shards covers all N indices; with it, exactly total distinct "
    "ones.",
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
                f"{len(union)} distinct, expected {view.total}; shards {_brief(shards)}",
            )
            return caused(failure, shards_of.of_overlap_or_loss(view.yielded, epoch, shards))
        missing = sorted(set(range(data.samples)) - union)
        if not data.drop_last and missing:
            failure = Failure(
                "SHARD-2",
                "samples are lost",
                view.where(epoch),
                f"indices {missing[:8]} are in no shard "
                f"({len(missing)} of {data.samples}); shards {_brief(shards)}",
            )
            return caused(failure, shards_of.of_overlap_or_loss(view.yielded, epoch, shards))
    return None


def _brief(shards: list[list[int]]) -> str:
    text = str(shards)
    return text if len(text) < 200 else text[:200] + "…"


@sharding.rule(
    "SHARD-3",
    "Shards are disjoint but for padding: total - N repetitions, none of an index more often than "
    "ceil(total / N); with drop_last nothing repeats.",
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
                f"on ranks {owners}; shards {_brief(shards)}",
            )
            return caused(failure, shards_of.of_overlap_or_loss(view.yielded, epoch, shards))
    return None


@sharding.rule(
    "SHARD-4",
    "Shards are fixed by the arguments alone: the same in every process, on re-iteration and whatever "
    "the global generators hold, which iterating leaves untouched.",
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
    for rank, (again, before) in enumerate(
        zip(view.answer["again"], view.answer["shards"][-1], strict=True)
    ):
        tally.compared += len(before)
        if again != before:
            failure = Failure(
                "SHARD-4",
                "iterating again in the same epoch gives other indices",
                f"rank {rank}, {view.where(last)}",
                f"{again[:8]}, before {before[:8]}",
            )
            return caused(failure, _of_generators(view))
    if view.answer["touched"]:
        failure = Failure(
            "SHARD-4",
            "iterating advances a global random generator",
            view.where(last),
            ", ".join(view.answer["touched"]),
        )
        return caused(failure, _of_generators(view))
    for rank, (afresh, before) in enumerate(
        zip(view.answer["afresh"], view.answer["shards"][-1], strict=True)
    ):
        if afresh != before:
            return Failure(
                "SHARD-4",
                "a new sampler gives other indices in the same epoch",
                f"rank {rank}, {view.where(last)}",
                f"{afresh[:8]}, the sampler that yielded epochs {list(view.case.epochs)} gave "
                f"{before[:8]}",
                ""
                if len(view.case.epochs) == 1
                else "an epoch's order depends on the epochs before it",
            )
    reseeded = view.answer["reseeded"]
    if (
        view.case.data.shuffle
        and view.case.data.samples >= CHANCE_FREE
        and reseeded == view.answer["shards"][-1]
    ):
        return Failure(
            "SHARD-4",
            "another seed gives the same order",
            view.where(last),
            f"{_brief(reseeded)} with seeds {view.case.data.seed} and {view.case.data.seed + 1}",
            "the seed is ignored",
        )
    tally.met.add("two processes")
    for (epoch, first), second in zip(view.epochs, answers[1]["shards"], strict=True):
        for rank, (shard, second_shard) in enumerate(zip(first, second, strict=True)):
            if shard != second_shard:
                return Failure(
                    "SHARD-4",
                    "another process gets other indices from the same arguments",
                    f"rank {rank}, {view.where(epoch)}",
                    f"{second_shard[:8]}, the first process {shard[:8]}",
                    "the order depends on the hash seed or on a global random generator",
                )
    return None


def _of_generators(view: ShardView) -> list[Cause]:
    """Return the possible uses of the global generators that moved: drawn from, or seeded.

    A sampler that draws from a global generator gives another order each time.
    """
    touched, answer = " and ".join(view.answer["touched"]), view.answer
    if not touched:
        return []
    fixed = (
        answer["again"]
        == answer["afresh"]
        == answer["shards"][-1]
        == view.evidence.answers[1]["shards"][-1]
    )
    drawn = Cause(
        "draws", f"it draws from the global generator of {touched} instead of its own generator"
    )
    seeded = Cause(
        "seeds",
        f"it seeds the global generator of {touched}, which other code shares, instead of its own "
        "generator",
    )
    if not fixed:
        return [drawn]
    return [seeded] if view.case.data.samples >= CHANCE_FREE else [drawn, seeded]


@sharding.rule(
    "SHARD-5",
    "With shuffle, set_epoch changes the order; without, it does not.",
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
                f"both {_brief(shards)}",
            )
            return caused(failure, _of_the_same_order(view, shards))
        if not data.shuffle and shards != other_shards:
            return Failure(
                "SHARD-5",
                "set_epoch changes the order though shuffle is off",
                f"epochs {epoch} and {other_epoch}, {view.where(other_epoch)}",
                f"{_brief(other_shards)}, before {_brief(shards)}",
            )
    return None


def _of_the_same_order(view: ShardView, shards: list[list[int]]) -> list[Cause]:
    """Return the possible reasons why two epochs have one order."""
    if view.answer["again"] != view.answer["shards"][-1]:
        return []
    if view.answer["afresh"] != view.answer["shards"][-1]:
        kept = all(epoch_shards == shards for _, epoch_shards in view.epochs)
        return [Cause("first order kept", "the first epoch's order is kept")] * kept
    if all(shard[:-1] == sorted(shard[:-1]) for shard in shards) and len(shards[0]) > 3:
        return [Cause("shuffle ignored", "the order is that of the dataset: shuffle is ignored")]
    return [Cause("epoch ignored", "the epoch is ignored")]


@sharding.rule(
    "SHARD-6",
    "A DataLoader over the sampler yields the same number of batches on every rank.",
    needs=("last batch short",),
    source=_SOURCE,
    draws=ShardDraws(loader=True),
    excluded=(
        Exclusion(
            "declares padding = none: lengths differ",
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
    tally.met |= {"last batch short"} if per_rank % size else set()
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
    "Impossible arguments raise an error on construction; none is silently accepted.",
    source=_SOURCE,
    level="capability",
    draws=ShardDraws(),
    excluded=(lacks("is not told its rank", "given_rank"),),
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
    "Each rank holds the declared part of the order: order[r::W] where strided, "
    "order[r * L : (r + 1) * L] where contiguous; where scattered, the data that the first rank has sent, and no "
    "index.",
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
        return _sent_by_the_first(view, tally)
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


def _sent_by_the_first(view: ShardView, tally: Tally) -> Failure | None:
    """Return a failure if a rank holds samples that are not the first rank's data.

    All ranks have data of their own, of the same length.
    """
    for epoch, shards in view.held:
        tally.met |= {"more than one rank"} if len(shards) > 1 else set()
        tally.met |= {"shuffle"} if view.case.data.shuffle else set()
        for rank, shard in enumerate(shards):
            tally.compared += len(shard)
            wrong = {
                OWN: "a rank holds its own data, not the data that the first rank sent",
                FOREIGN: (
                    "a rank holds data of no rank: an index, or data that were changed on the way"
                ),
            }
            for index, fact in wrong.items():
                if index in shard:
                    return Failure(
                        "SHARD-8",
                        fact,
                        f"rank {rank}, {view.where(epoch)}",
                        f"{shard.count(index)} of its {len(shard)} samples",
                    )
    return None


@sharding.rule(
    "SHARD-9",
    "State saved after k batches and loaded into a new sampler goes on with exactly the rest of "
    "the epoch, on every rank; the epoch after it is whole again. So do ranks of another number, "
    "where claimed.",
    needs=(
        "resumed in the middle",
        "more than one rank",
        "shuffle",
        "a later epoch",
        "another world size",
    ),
    source="what a resumed training needs; torch's own sampler saves no state",
    level="capability",
    draws=ShardDraws(saved=True),
    excluded=(lacks("goes on from no saved state", "resume"),),
    after="SHARD-8",
    script=Script(checks=("resumption",)),
)
def resumed_with_the_rest(view: ShardView, tally: Tally) -> Failure | None:
    """Judge a state saved in the middle of an epoch, and a state saved after a resumption."""
    raised = view.evidence.answers[0].get("raised") if view.evidence.answers else None
    if (
        view.case.saved_after is not None
        and raised is not None
        and raised["phase"].startswith("resuming")
    ):
        return Failure(
            "SHARD-9",
            "saving or loading a state raises",
            view.where(view.case.epochs[-1]),
            f"{raised['type']}: {raised['message']}",
        )
    if view.case.saved_after is None or view.answer["resumed"] is None:
        raise NotAbout(
            "no state is saved" if view.case.saved_after is None else "the sampler offers no state"
        )
    for rank, (plain, whole) in enumerate(
        zip(view.answer["resumed"], view.answer["shards"][-1], strict=True)
    ):
        seen = resumption.Resumed(**plain, whole=whole, rank=rank)
        if view.answer["again"][rank] != whole:
            raise Unjudged(
                "the sampler yields other indices on every iteration (SHARD-4), so the epoch has "
                "no fixed rest"
            )
        if len(seen.taken) >= len(whole):
            continue  # A state saved at the end may belong to this epoch or to the next.
        tally.compared += len(whole) - len(seen.taken)
        tally.met |= _met(view)
        failure = _resumption(view, seen)
        if failure is not None:
            return failure
    if not tally.compared:
        raise NotAbout("the epoch was over when the state was saved")
    return None if view.answer.get("elsewhere") is None else _resumed_elsewhere(view, tally)


def _resumed_elsewhere(view: ShardView, tally: Tally) -> Failure | None:
    """Return a failure if ranks of another number do not yield exactly the remaining indices.

    Each remaining index comes once, but for padding, and no other index comes.
    """
    seen, data, w = view.answer["elsewhere"], view.case.data, view.case.resumed_by
    if data.drop_last or view.declared.padding != "wrap":
        return None  # Samplers may choose which of the remaining indices are dropped or repeated.
    where = (
        f"{view.where(view.case.epochs[-1])}, saved after {len(seen['taken'][0])} indices of "
        f"each, loaded by {w} rank{'s' if w != 1 else ''}"
    )
    taken, rest = set(chain.from_iterable(seen["taken"])), list(chain.from_iterable(seen["rest"]))
    left = set(range(data.samples)) - taken
    tally.compared += len(left)
    tally.met |= {"another world size"} if w != view.case.world_size and left else set()
    lost, most = left - set(rest), len(seen["rest"]) * ceil(len(left) / len(seen["rest"]))
    if lost or len(rest) > most or len({len(part) for part in seen["rest"]}) > 1:
        again = len([index for index in rest if index in taken])
        failure = Failure(
            "SHARD-9",
            "another number of ranks does not continue with the rest of the epoch",
            where,
            f"{_brief(seen['rest'])}; {len(lost)} of the {len(left)} remaining indices are lost, "
            f"{again} consumed ones come again, {len(rest)} indices in all, expected at most "
            f"{most}",
        )
        return caused(
            failure, resumption.of_another_world(seen, view.case, view.answer["shards"][-1])
        )
    if seen["following"] != seen["fresh"]:
        return Failure(
            "SHARD-9",
            "the epoch after one that another number of ranks resumed is wrong",
            where,
            f"{_brief(seen['following'])}, without a resumption {_brief(seen['fresh'])}",
        )
    return None


def _met(view: ShardView) -> set[str]:
    """Return the situations of a resumption."""
    met = {
        "more than one rank": view.case.world_size > 1,
        "shuffle": view.case.data.shuffle,
        "a later epoch": view.case.epochs[-1] > 0,
        "resumed in the middle": True,
    }
    return {situation for situation, there in met.items() if there}


def _resumption(view: ShardView, seen: resumption.Resumed) -> Failure | None:
    """Return the first failure of one rank's resumption; later checks depend on earlier ones."""
    where = (
        f"rank {seen.rank}, {view.where(view.case.epochs[-1])}, saved after "
        f"{len(seen.taken)} of {len(seen.whole)} indices"
    )
    if seen.taken + seen.rest != seen.whole:
        return Failure(
            "SHARD-9",
            "saving the state changes the indices of the same epoch",
            where,
            f"{_brief([seen.taken, seen.rest])} before and after the save, without a save "
            f"{_brief([seen.whole])}",
        )
    if seen.loaded != seen.rest:
        failure = Failure(
            "SHARD-9",
            "a loaded state does not continue with the rest of the epoch",
            where,
            f"{_brief([seen.loaded])}, expected {_brief([seen.rest])}{_off(seen.loaded, seen)}",
        )
        return caused(failure, resumption.of_the_rest(seen, view.answer["shards"][-1], view.case))
    left = seen.rest[len(seen.taken_again) :]
    if left and seen.twice != left:
        failure = Failure(
            "SHARD-9",
            "a state saved after a resumption does not continue with the rest of the epoch",
            f"{where}, saved again after {len(seen.taken_again)}",
            f"{_brief([seen.twice])}, expected {_brief([left])}",
        )
        return caused(failure, resumption.of_the_second(seen))
    if seen.following[1] != seen.following[0]:
        failure = Failure(
            "SHARD-9",
            "the epoch after a resumed one is not that of an uninterrupted run",
            where,
            f"{_brief([seen.following[1]])}, uninterrupted {_brief([seen.following[0]])}",
        )
        return caused(failure, resumption.of_the_next_epoch(seen, view.case))
    return None


def _off(loaded: list[int], seen: resumption.Resumed) -> str:
    """Return how many yielded indices came before the save, and how many are lost, in words."""
    before, after = (
        (Counter(loaded) & Counter(seen.taken)).total(),
        (Counter(seen.rest) - Counter(loaded)).total(),
    )
    return (
        f"; {before} of the {len(seen.taken)} consumed indices come again, {after} of the "
        f"{len(seen.rest)} remaining ones are lost"
    )


@sharding.rule(
    "SHARD-10",
    "Iterated by the workers of a DataLoader, each a copy, it yields a rank's samples once in all.",
    needs=("several workers", "more than one rank", "fewer samples than workers"),
    source="the documentation of torch.utils.data.IterableDataset: each worker gets a copy of the dataset",
    level="capability",
    draws=ShardDraws(worked=True),
    excluded=(lacks("does not claim to deal to the workers of a DataLoader", "workers"),),
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
                f"{_brief(parts)}",
            )
            return caused(
                failure, shards_of.of_workers(parts, whole, rank, view.answer["shards"][-1])
            )
    return None
