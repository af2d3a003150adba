"""The registered ways to ask a sampler, and the answers to a case's situations."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.rank_sampler import RankSampler
from ddp_invariants.ranks.training.recorder import exception_data


class Asked(NamedTuple):
    """The indices that one rank yields.

    Attributes:
        got: Of each iteration.
        wanted: The indices expected, if they are not those of an epoch that was asked plainly.
        missing: The reason why an iteration is missing; empty if none is.
    """

    got: list[list[int]]
    wanted: list[list[int]] | None = None
    missing: str = ""


Way = Callable[[Any, ShardCase, SamplerMaker, int], Asked | None]
"""A function of the situation, the case, the sampler and the rank; None if it cannot be asked so."""
_WAYS: dict[str, Way] = {}


def way(kind: str) -> Callable[[Way], Way]:
    """Return a decorator that registers the way of a kind of situation."""

    def register(ask: Way) -> Way:
        _WAYS[kind] = ask
        return ask

    return register


def answers(case: ShardCase, make: SamplerMaker, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """Ask every rank in the way of each situation.

    Returns:
        By situation: `got[rank]` and `wanted[rank]` of `Asked`, None where a rank raised or cannot
        be asked so; `raised[rank]`, the type and the text of an exception, or "";
        `errors[rank]`, the exception as plain data, or None; and `missing[rank]`, the reason why
        an iteration is missing, or "".
    """
    return [_answer(situation, case, make, ranks) for situation in case.situations]


def _answer(
    situation: Any, case: ShardCase, make: SamplerMaker, ranks: Sequence[int]
) -> dict[str, Any]:
    """Ask the last rank first, because an answer must not depend on that order."""
    got, wanted, raised, errors, missing = [], [], [], [], []
    for rank in reversed(ranks):
        asked, error, data = None, "", None
        try:
            asked = _WAYS[situation.kind](situation, case, make, rank)
        except Exception as exception:  # noqa: BLE001 - an implementation may raise anything: evidence
            data = exception_data(exception, situation.words, 0)
            error = f"{data['type']}: {data['message']}"[:500]
        got.append(None if asked is None else asked.got)
        wanted.append(None if asked is None else asked.wanted)
        raised.append(error)
        errors.append(data)
        missing.append("" if asked is None else asked.missing)
    return {
        "got": got[::-1],
        "wanted": wanted[::-1],
        "raised": raised[::-1],
        "errors": errors[::-1],
        "missing": missing[::-1],
    }


def in_last_epoch(case: ShardCase, make: SamplerMaker, rank: int) -> RankSampler:
    """Return a new sampler of a rank, set to the last epoch.

    It has been iterated once, so that it is known whether it yields batches.
    """
    sampler = RankSampler(case, make, rank)
    sampler.set_epoch(case.epochs[-1])
    sampler.indices()
    sampler.stay_in(case.epochs[-1])
    return sampler
