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
    answer, data, w = view.answer["elsewhere"], view.case.data, view.case.resumed_by
    if data.drop_last or view.declared.padding != "wrap":
        return None  # Samplers may choose which of the remaining indices are dropped or repeated.
    where = (
        f"{view.where(view.case.epochs[-1])}, saved after {len(answer['taken'][0])} indices of "
        f"each, loaded by {w} rank{'s' if w != 1 else ''}"
    )
    taken = set(chain.from_iterable(answer["taken"]))
    left = set(range(data.samples)) - taken
    tally.compared += len(left)
    tally.meet({"another world size": w != view.case.world_size and left})
    wrong = _not_the_rest(answer["rest"], left, taken)
    if wrong:
        failure = Failure(
            "SHARD-9",
            "another number of ranks does not continue with the rest of the epoch",
            where,
            wrong,
        )
        return caused(
            failure, resumption.of_another_world(answer, view.case, view.answer["shards"][-1])
        )
    wrong = _not_the_rest(answer["once_more"], left, taken)
    if wrong:
        return Failure(
            "SHARD-9",
            "a state that another number of ranks saves after a resumption does not continue with "
            "the rest of the epoch",
            f"{where}, saved again after one batch",
            f"before and after {wrong}",
        )
    if answer["following"] != answer["fresh"]:
        return Failure(
            "SHARD-9",
            "the epoch after one that another number of ranks resumed is wrong",
            where,
            f"{brief(answer['following'])}, without a resumption {brief(answer['fresh'])}",
        )
    return None


def _not_the_rest(shards: list[list[int]], left: set[int], taken: set[int]) -> str:
    """Return what is wrong with the rest of an epoch, in words; empty if it is right.

    Args:
        shards: The indices that each rank yields.
        left: The indices that the ranks must yield.
        taken: Those that were yielded before.
    """
    rest = list(chain.from_iterable(shards))
    lost, most = left - set(rest), len(shards) * ceil(len(left) / len(shards))
    if not lost and len(rest) <= most and len({*map(len, shards)}) == 1:
        return ""
    again = len([index for index in rest if index in taken])
    return (
        f"{brief(shards)}; {len(lost)} of the {len(left)} remaining indices are lost, {again} "
        f"consumed ones come again, {len(rest)} indices in all, expected at most {most}"
    )


def conditions(view: ShardView, resumed: resumption.Resumed) -> dict[str, bool]:
    """Return the conditions of a resumption, each with whether the case meets it."""
    return {
        "more than one rank": view.case.world_size > 1,
        "shuffle": view.case.data.shuffle,
        "a later epoch": view.case.epochs[-1] > 0,
        "resumed in the middle": bool(resumed.taken),
    }


def wrong_resumption(view: ShardView, resumed: resumption.Resumed) -> Failure | None:
    """Return the first failure of one rank's resumption; later checks depend on earlier ones."""
    where = (
        f"rank {resumed.rank}, {view.where(view.case.epochs[-1])}, saved after "
        f"{len(resumed.taken)} of {len(resumed.whole)} indices"
    )
    if resumed.taken + resumed.rest != resumed.whole:
        return Failure(
            "SHARD-9",
            "saving the state changes the indices of the same epoch",
            where,
            f"{brief([resumed.taken, resumed.rest])} before and after the save, without a save "
            f"{brief([resumed.whole])}",
        )
    if resumed.loaded != resumed.rest:
        failure = Failure(
            "SHARD-9",
            "a loaded state does not continue with the rest of the epoch",
            where,
            f"{brief([resumed.loaded])}, expected {brief([resumed.rest])}{_off(resumed.loaded, resumed)}",
        )
        return caused(
            failure, resumption.of_the_rest(resumed, view.answer["shards"][-1], view.case)
        )
    left = resumed.rest[len(resumed.taken_again) :]
    if left and resumed.twice != left:
        failure = Failure(
            "SHARD-9",
            "a state saved after a resumption does not continue with the rest of the epoch",
            f"{where}, saved again after {len(resumed.taken_again)}",
            f"{brief([resumed.twice])}, expected {brief([left])}",
        )
        return caused(failure, resumption.of_the_second(resumed))
    if resumed.following[1] != resumed.following[0]:
        failure = Failure(
            "SHARD-9",
            "the epoch after a resumed one is not that of an uninterrupted run",
            where,
            f"{brief([resumed.following[1]])}, uninterrupted {brief([resumed.following[0]])}",
        )
        return caused(failure, resumption.of_the_next_epoch(resumed, view.case))
    if resumed.lengths[1] != resumed.lengths[0]:
        return Failure(
            "SHARD-9",
            "len(sampler) in the epoch after a resumed one is not that of an uninterrupted run",
            where,
            f"{resumed.lengths[1]}, uninterrupted {resumed.lengths[0]}",
            "the indices that were consumed before are missing from every later length"
            if resumed.lengths[1] == (resumed.lengths[0] or 0) - len(resumed.taken)
            else "",
        )
    uninterrupted, left_early = resumed.after_leaving or ([], [])
    # Some samplers keep their place in an epoch that was left, also without a resumption.
    if uninterrupted == resumed.following[0] and left_early != uninterrupted:
        return Failure(
            "SHARD-9",
            "after a resumed epoch that was left early, the next one is not complete",
            f"{where}, one item taken",
            f"{brief([left_early])}, without a resumption {brief([uninterrupted])}",
            "set_epoch changes nothing until the resumed iteration ends"
            if left_early in (resumed.whole, resumed.rest)
            else "",
        )
    if resumed.repeated is not None and resumed.repeated != resumed.whole:
        consumed = len(resumed.taken) + len(resumed.taken_again)
        return Failure(
            "SHARD-9",
            "a resumed sampler that is iterated again does not yield the whole epoch",
            f"{where}, saved again after {len(resumed.taken_again)}, iterated again without set_epoch",
            f"{brief([resumed.repeated])}, expected {brief([resumed.whole])}",
            f"the {consumed} indices consumed before the last save are skipped in every later iteration"
            if resumed.repeated == resumed.whole[consumed:]
            else "",
        )
    return None


def wrong_at_the_end(view: ShardView, resumed: resumption.Resumed) -> Failure | None:
    """Return a failure if a state saved after the last index continues within an epoch.

    Such a state may belong to the next epoch. So an epoch that starts over is known only by its
    order, and only if the state holds the epoch: otherwise the program has set it. Nor is it wrong
    once the iteration has returned, as after an incomplete last batch. But a part of an epoch is
    always wrong.
    """
    where = (
        f"rank {resumed.rank}, {view.where(view.case.epochs[-1])}, saved after all "
        f"{len(resumed.whole)} indices"
    )
    if len(resumed.loaded) not in (0, len(resumed.whole), len(resumed.following[0])):
        return Failure(
            "SHARD-9",
            "a state saved at the end of an epoch continues in the middle of one",
            where,
            f"{brief([resumed.loaded])}, expected no index or a whole epoch; the epoch was "
            f"{brief([resumed.whole])}, the next one is {brief([resumed.following[0]])}",
        )
    asked = (view.case.saved_after or 0) * view.case.data.batch_size
    if (
        view.declared.saves == "place"
        or len(resumed.taken) < asked
        or resumed.loaded != resumed.whole
        or resumed.following[0] == resumed.whole
    ):
        return None
    return Failure(
        "SHARD-9",
        "a state saved at the end of an epoch starts the same epoch over",
        where,
        f"{brief([resumed.loaded])}, expected no index, or the next epoch's "
        f"{brief([resumed.following[0]])}",
    )


def _off(loaded: list[int], resumed: resumption.Resumed) -> str:
    """Return how many yielded indices came before the save, and how many are lost, in words."""
    before, after = (
        (Counter(loaded) & Counter(resumed.taken)).total(),
        (Counter(resumed.rest) - Counter(loaded)).total(),
    )
    return (
        f"; {before} of the {len(resumed.taken)} consumed indices come again, {after} of the "
        f"{len(resumed.rest)} remaining ones are lost"
    )


def raised_while_resuming(view: ShardView) -> Failure | None:
    """Return a failure if the sampler raised while a state was saved or loaded."""
    raised = view.evidence.answers[0].get("raised") if view.evidence.answers else None
    if view.case.saved_after is None or raised is None:
        return None
    return (
        Failure(
            "SHARD-9",
            "saving or loading a state raises",
            view.where(view.case.epochs[-1]),
            f"{raised['type']}: {raised['message']}",
        )
        if raised["phase"].startswith("resuming")
        else None
    )
