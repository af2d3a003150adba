"""The checks of a sampler that loads a saved state: in the same world, and in another."""

from collections import Counter
from itertools import chain
from math import ceil

from ddp_invariants.invariants.diagnosis import resumption
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.rule import Tally
from ddp_invariants.invariants.sampler_view import ShardView, brief
from ddp_invariants.records.verdict import Failure


def wrong_in_another_world(view: ShardView, tally: Tally) -> Failure | None:
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
            f"{brief(seen['rest'])}; {len(lost)} of the {len(left)} remaining indices are lost, "
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
            f"{brief(seen['following'])}, without a resumption {brief(seen['fresh'])}",
        )
    return None


def situations(view: ShardView) -> set[str]:
    """Return the situations of a resumption."""
    met = {
        "more than one rank": view.case.world_size > 1,
        "shuffle": view.case.data.shuffle,
        "a later epoch": view.case.epochs[-1] > 0,
        "resumed in the middle": True,
    }
    return {situation for situation, there in met.items() if there}


def wrong_resumption(view: ShardView, seen: resumption.Resumed) -> Failure | None:
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
            f"{brief([seen.taken, seen.rest])} before and after the save, without a save "
            f"{brief([seen.whole])}",
        )
    if seen.loaded != seen.rest:
        failure = Failure(
            "SHARD-9",
            "a loaded state does not continue with the rest of the epoch",
            where,
            f"{brief([seen.loaded])}, expected {brief([seen.rest])}{_off(seen.loaded, seen)}",
        )
        return caused(failure, resumption.of_the_rest(seen, view.answer["shards"][-1], view.case))
    left = seen.rest[len(seen.taken_again) :]
    if left and seen.twice != left:
        failure = Failure(
            "SHARD-9",
            "a state saved after a resumption does not continue with the rest of the epoch",
            f"{where}, saved again after {len(seen.taken_again)}",
            f"{brief([seen.twice])}, expected {brief([left])}",
        )
        return caused(failure, resumption.of_the_second(seen))
    if seen.following[1] != seen.following[0]:
        failure = Failure(
            "SHARD-9",
            "the epoch after a resumed one is not that of an uninterrupted run",
            where,
            f"{brief([seen.following[1]])}, uninterrupted {brief([seen.following[0]])}",
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
