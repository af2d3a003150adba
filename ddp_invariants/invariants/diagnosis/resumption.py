"""Why a sampler that loads a saved state does not go on where the saved one was.

Words: W world size, L indices per rank, k batches of B indices taken before the state was saved, c
= k * B.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.records.verdict import Cause

_LONG = 13
"""Indices from which two orders are equal by chance less often than 1e-9 (1 / 13! = 1.6e-10)."""


@dataclass(frozen=True)
class Resumed:
    """One rank's resumption: what its samplers yielded (`ranks.sharding.resumed`), and what an epoch left alone yields.

    Attributes:
        taken: Indices before the state was saved.
        rest: What the saved sampler yields after it.
        loaded: What a new one yields with the state.
        taken_again: Its first batch, after which its state is saved once more.
        twice: What a new one yields with that.
        fresh: What a new one yields without a state.
        following: The next epoch's indices of the saved and of the loaded sampler.
        whole: The epoch, unsaved.
        rank: Whose it is.
    """

    taken: list[int]
    rest: list[int]
    loaded: list[int]
    taken_again: list[int]
    twice: list[int]
    fresh: list[int]
    following: list[list[int]]
    whole: list[int]
    rank: int


def of_the_rest(seen: Resumed, shards: list[list[int]], case: ShardCase) -> list[Cause]:
    """Why a saved state does not go on with the rest of its epoch.

    Args:
        seen: The rank that does not.
        shards: What every rank yields of that epoch.
        case: The case.
    """
    found = [
        Cause(kind, words)
        for kind, words, predicted in _predictions(seen, shards, case)
        if seen.loaded == predicted
    ]
    if len(seen.loaded) != len(seen.rest) or (found and len(seen.loaded) >= _LONG):
        return found
    same = sorted(seen.loaded) == sorted(seen.rest)
    found += [Cause("rest reordered", "it yields the rest in another order")] * same
    lost = case.data.shuffle and not (same and len(seen.loaded) >= _LONG)
    return [*found, _order_lost(len(seen.taken))] if lost else found


def _order_lost(consumed: int) -> Cause:
    return Cause(
        "order lost", f"it goes on after {consumed} indices of another order: what fixes it is lost"
    )


def _predictions(
    seen: Resumed, shards: list[list[int]], case: ShardCase
) -> Iterator[tuple[str, str, list[int]]]:
    """What may be wrong: its kind, its words, and what would be yielded then."""
    whole, fresh, c, w, b = (
        seen.whole,
        seen.fresh,
        len(seen.taken),
        case.world_size,
        case.data.batch_size,
    )

    def skipped(start: int) -> str:
        return f"the {min(start, len(whole)) - c} indices after the {c} consumed are skipped"

    yield (
        "replayed",
        f"the rest starts from the beginning: the {c} indices that were consumed are yielded again",
        whole,
    )
    if fresh != whole:
        yield (
            "nothing restored",
            "nothing of the state is restored: it yields what a new sampler does",
            fresh,
        )
        yield (
            "epoch lost",
            f"the saved epoch is lost: it goes on after {c} indices of a new sampler's first epoch",
            fresh[c:],
        )
    if seen.following[0] != whole:
        yield (
            "epoch ahead",
            f"it goes on after {c} indices of the next epoch's order",
            seen.following[0][c:],
        )
    if w > 1:
        yield (
            "times the world",
            f"what was consumed is multiplied by the world size: {skipped(c * w)}",
            whole[c * w :],
        )
        counted = f"one rank's count is taken for that of all ranks: it goes on after {c} indices of all {w} together"
        order = [index for index in chain.from_iterable(zip_longest(*shards)) if index is not None]
        yield "counted for all", counted, order[c:][seen.rank :: w]
        yield "counted for all", counted, whole[c // w :]
    yield "counted twice", f"what was consumed is counted twice: {skipped(2 * c)}", whole[2 * c :]
    yield (
        "a batch ahead",
        f"a batch that was read ahead counts as consumed: {skipped(c + b)}",
        whole[c + b :],
    )
    again = f"the last batch consumed is not counted: its {min(b, c)} indices are yielded again"
    yield "a batch behind", again, whole[max(c - b, 0) :]
    yield "one ahead", f"off by one: {skipped(c + 1)}", whole[c + 1 :]
    yield (
        "one behind",
        "off by one: the last index consumed is yielded again",
        whole[max(c - 1, 0) :],
    )
    yield (
        "batches for indices",
        f"batches are counted as indices: it goes on after {c // b} of {c}",
        whole[c // b :],
    )
    yield "indices for batches", f"indices are counted as batches: {skipped(c * b)}", whole[c * b :]
    yield "rest skipped", "all that was left of the epoch is skipped", []


def of_another_world(
    seen: dict[str, list[list[int]]], case: ShardCase, shards: list[list[int]]
) -> list[Cause]:
    """Why ranks of another number do not go on with the rest.

    Args:
        seen: What was yielded (`ranks.sharding._elsewhere`).
        case: The case, which says how many they are.
        shards: What every rank that saved yields of that epoch.
    """
    c, w, other = len(seen["taken"][0]), case.world_size, case.resumed_by or case.world_size
    rest = set(chain.from_iterable(seen["rest"]))
    interleaved = [
        index for index in chain.from_iterable(zip_longest(*shards)) if index is not None
    ]
    laid_on = [index for shard in shards for index in shard]
    counted = f"what one rank took, {c} indices, is counted for the {other} that load it, not for the {w} that took it"
    causes = (
        ("another world's count", counted, lambda order: set(order[c * other :])),
        (
            "one rank's count",
            f"what one rank took, {c} indices, is taken for what all {w} took",
            lambda order: set(order[c:]),
        ),
        ("replayed", "the rest starts from the beginning", set),
    )
    return list(
        dict.fromkeys(
            Cause(kind, words)
            for order in (interleaved, laid_on)
            for kind, words, predicted in causes
            if rest == predicted(order)
        )
    )


def of_the_second(seen: Resumed) -> list[Cause]:
    """Why a state saved after a resumption does not go on with the rest."""
    since = len(seen.taken_again)
    anew = Cause(
        "count anew",
        f"the count starts anew with a resumption: only the {since} taken since are skipped",
    )
    return [anew] if seen.twice == seen.whole[since:] else []


def of_the_next_epoch(seen: Resumed, case: ShardCase) -> list[Cause]:
    """Why the epoch after a resumed one is another than without a resumption."""
    plain, found = seen.following
    lost = (
        case.data.shuffle
        and len(found) == len(plain)
        and (found != seen.whole or len(found) < _LONG)
    )
    stays = Cause(
        "skip stays",
        f"the skip stays for the next epoch: its first {len(seen.taken)} indices are left out, too",
    )
    epoch = Cause(
        "epoch stays",
        "set_epoch changes nothing after a state was loaded: it is the resumed epoch again",
    )
    causes = (
        (stays, found == plain[len(seen.taken) :]),
        (epoch, found == seen.whole),
        (_order_lost(len(seen.taken)), lost),
    )
    return [cause for cause, fits in causes if fits]
