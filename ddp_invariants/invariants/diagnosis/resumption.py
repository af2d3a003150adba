"""Causes of a sampler that loads a saved state and does not continue where the saved one stopped.

Words: W world size, L indices per rank, k batches of B indices taken before the state was saved, c
= k * B.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.records.verdict import Cause

_LONG = 13
"""Length from which two orders are equal with a chance below 1e-9 (1 / 13! = 1.6e-10)."""


@dataclass(frozen=True)
class Resumed:
    """One rank's resumption (`ranks.shards.resumed`), and the indices of an uninterrupted epoch.

    Attributes:
        taken: Indices before the state was saved.
        rest: Indices that the saved sampler yields afterwards.
        loaded: Indices that a new sampler yields with the state.
        taken_again: The first batch of `loaded`; the state is saved once more after it.
        twice: Indices that a new sampler yields with that second state.
        repeated: Indices of the same sampler, iterated again without `set_epoch`; None if that is
            the next epoch.
        fresh: Indices that a new sampler yields without a state.
        following: The next epoch's indices of the saved sampler and of the loaded one.
        after_leaving: The same of a sampler without a state and of a loaded one, after an iteration
            that was left after one item; None if nobody can say which epoch that is.
        lengths: The `len` of both in that epoch, in indices; None without a `len`.
        whole: The indices of the epoch without a save.
        rank: The rank.
    """

    taken: list[int]
    rest: list[int]
    loaded: list[int]
    taken_again: list[int]
    twice: list[int]
    repeated: list[int] | None
    fresh: list[int]
    following: list[list[int]]
    after_leaving: list[list[int]] | None
    lengths: list[int | None]
    whole: list[int]
    rank: int


def of_the_rest(resumed: Resumed, shards: list[list[int]], case: ShardCase) -> list[Cause]:
    """Return the causes of a loaded state that does not continue with the rest of its epoch.

    Args:
        resumed: The rank that fails.
        shards: The indices that every rank yields in that epoch.
        case: The case.
    """
    fitting = [
        Cause(kind, words)
        for kind, words, predicted in _predictions(resumed, shards, case)
        if resumed.loaded == predicted
    ]
    if len(resumed.loaded) != len(resumed.rest) or (fitting and len(resumed.loaded) >= _LONG):
        return fitting
    same = sorted(resumed.loaded) == sorted(resumed.rest)
    fitting += [Cause("rest reordered", "it yields the rest in another order")] * same
    lost = case.data.shuffle and not (same and len(resumed.loaded) >= _LONG)
    return [*fitting, _order_lost(len(resumed.taken))] if lost else fitting


def _order_lost(consumed: int) -> Cause:
    return Cause(
        "order lost",
        f"it continues after {consumed} indices of another order: the state that "
        "fixes the order is lost",
    )


def _predictions(
    resumed: Resumed, shards: list[list[int]], case: ShardCase
) -> Iterator[tuple[str, str, list[int]]]:
    """Yield possible causes: kind, words, and the indices that would be yielded."""
    whole, fresh, c = resumed.whole, resumed.fresh, len(resumed.taken)
    yield (
        "replayed",
        f"the rest starts from the beginning: the {c} consumed indices are yielded again",
        whole,
    )
    if fresh != whole:
        yield (
            "nothing restored",
            "nothing of the state is restored: it yields the indices of a new sampler",
            fresh,
        )
        yield (
            "epoch lost",
            (
                f"the saved epoch is lost: it continues after {c} indices of a new sampler's first "
                "epoch"
            ),
            fresh[c:],
        )
    if resumed.following[0] != whole:
        yield (
            "epoch ahead",
            f"it continues after {c} indices of the next epoch's order",
            resumed.following[0][c:],
        )
    yield from _of_counts(resumed, shards, case)


def _of_counts(
    resumed: Resumed, shards: list[list[int]], case: ShardCase
) -> Iterator[tuple[str, str, list[int]]]:
    """Yield the causes in which the number of consumed indices is wrong."""
    whole, c, w, b = resumed.whole, len(resumed.taken), case.world_size, case.data.batch_size

    def skipped(start: int) -> str:
        return f"the {min(start, len(whole)) - c} indices after the {c} consumed are skipped"

    if w > 1:
        yield (
            "times the world",
            f"the number of consumed indices is multiplied by the world size: {skipped(c * w)}",
            whole[c * w :],
        )
        counted = (
            f"one rank's count is taken for that of all ranks: it continues after {c} indices of "
            f"all {w} together"
        )
        order = [index for index in chain.from_iterable(zip_longest(*shards)) if index is not None]
        yield "counted for all", counted, order[c:][resumed.rank :: w]
        yield "counted for all", counted, whole[c // w :]
    yield (
        "counted twice",
        f"the consumed indices are counted twice: {skipped(2 * c)}",
        whole[2 * c :],
    )
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
        f"batches are counted as indices: it continues after {c // b} of {c}",
        whole[c // b :],
    )
    yield "indices for batches", f"indices are counted as batches: {skipped(c * b)}", whole[c * b :]
    yield "rest skipped", "the whole rest of the epoch is skipped", []


def of_another_world(
    answer: dict[str, list[list[int]]], case: ShardCase, shards: list[list[int]]
) -> list[Cause]:
    """Return the causes of ranks of another number that do not continue with the rest.

    Args:
        answer: The indices that were yielded (`ranks.shards._elsewhere`).
        case: The case, which holds the number of ranks.
        shards: The indices of that epoch of every rank that saved.
    """
    c, w, loaders = len(answer["taken"][0]), case.world_size, case.resumed_by or case.world_size
    rest = set(chain.from_iterable(answer["rest"]))
    interleaved = [
        index for index in chain.from_iterable(zip_longest(*shards)) if index is not None
    ]
    laid_on = [index for shard in shards for index in shard]
    counted = (
        f"one rank's {c} consumed indices are counted for the {loaders} ranks that load the "
        f"state, not for the {w} that saved it"
    )
    causes = (
        ("another world's count", counted, lambda order: set(order[c * loaders :])),
        (
            "one rank's count",
            f"one rank's {c} consumed indices are taken for those of all {w} ranks",
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


def of_the_second(resumed: Resumed) -> list[Cause]:
    """Return the cause of a second saved state that does not continue with the rest."""
    since = len(resumed.taken_again)
    anew = Cause(
        "count anew",
        f"the count starts anew at a resumption: only the {since} indices consumed since then are "
        "skipped",
    )
    return [anew] if resumed.twice == resumed.whole[since:] else []


def of_the_next_epoch(resumed: Resumed, case: ShardCase) -> list[Cause]:
    """Return the causes of a wrong epoch after a resumed one."""
    uninterrupted, continued = resumed.following
    lost = (
        case.data.shuffle
        and len(continued) == len(uninterrupted)
        and (continued != resumed.whole or len(continued) < _LONG)
    )
    stays = Cause(
        "skip stays",
        f"the skip stays for the next epoch: its first {len(resumed.taken)} indices are left out, too",
    )
    epoch = Cause(
        "epoch stays",
        "set_epoch changes nothing after a state was loaded: it is the resumed epoch again",
    )
    causes = (
        (stays, continued == uninterrupted[len(resumed.taken) :]),
        (epoch, continued == resumed.whole),
        (_order_lost(len(resumed.taken)), lost),
    )
    return [cause for cause, fits in causes if fits]
