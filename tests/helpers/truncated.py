"""Truncated evidence: the record of a run that lacks ranks, steps, moments or rows."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from random import Random
from typing import Any, Literal, NamedTuple

from ddp_invariants.records.evidence import Incident, RaisedError, RankEvidence, TrainingEvidence

NOTHING = RankEvidence({})
"""The evidence of a rank that never answered."""
ROWS = [each.name for each in fields(RankEvidence) if str(each.type).startswith("list[")]
"""The fields of a rank's evidence that are lists."""


class Truncated(NamedTuple):
    """Truncated evidence.

    Attributes:
        how: The name of the way in which it is truncated.
        evidence: The evidence.
        may_fail: The rules that may fail, beside those that fail on the whole evidence; None for
            any rule, since a shorter list of rows states another fact.
    """

    how: str
    evidence: TrainingEvidence
    may_fail: frozenset[str] | None = frozenset()


ENDED = frozenset({"LIVE-1", "LIVE-2", "LIVE-3"})
"""The rules about a run that hung or died."""
RAISED = frozenset({*ENDED, "COMM-2", "LIVE-6", "LIVE-7", "LIVE-8"})
"""The rules that an exception on one rank breaks."""


def truncations(evidence: TrainingEvidence, random: Random, count: int) -> Iterator[Truncated]:
    """Yield evidence truncated in random ways."""
    for _ in range(count):
        way = random.choice(list(WAYS))
        yield WAYS[way](way, evidence, random)


def _without_moments(rank: RankEvidence, random: Random) -> RankEvidence:
    """Return a rank's evidence without a moment, without later steps, or without random records."""
    keys = list(rank.tensors)
    if not keys:
        return rank
    moment, step = random.choice(keys)
    gone: Callable[[tuple[str, int]], bool] = random.choice(
        [
            lambda key: key == (moment, step),
            lambda key: key[0] == moment,
            lambda key: key[1] >= step,
            lambda _: random.random() < 0.5,
        ]
    )
    return replace(rank, tensors={key: rank.tensors[key] for key in keys if not gone(key)})


def _with_ranks(evidence: TrainingEvidence, ranks: list[RankEvidence]) -> TrainingEvidence:
    return replace(evidence, ranks=tuple(ranks))


def _incident(kind: Literal["hung", "died"], evidence: TrainingEvidence, rank: int) -> Incident:
    number = evidence.case.members[rank]
    return Incident(
        kind, {number: "waits"}, {}, 3.0, statuses={number: -9} if kind == "died" else {}
    )


def _moments_of_one_rank(how: str, evidence: TrainingEvidence, random: Random) -> Truncated:
    ranks = list(evidence.ranks)
    rank = random.randrange(len(ranks))
    ranks[rank] = _without_moments(ranks[rank], random)
    return Truncated(how, _with_ranks(evidence, ranks))


def _moments_of_all(how: str, evidence: TrainingEvidence, random: Random) -> Truncated:
    ranks = [_without_moments(rank, random) for rank in evidence.ranks]
    return Truncated(how, _with_ranks(evidence, ranks))


def _a_rank(how: str, evidence: TrainingEvidence, random: Random) -> Truncated:
    ranks = list(evidence.ranks)
    ranks[random.randrange(len(ranks))] = NOTHING
    return Truncated(how, _with_ranks(evidence, ranks))


def _a_rank_that_hung_or_died(how: str, evidence: TrainingEvidence, random: Random) -> Truncated:
    ranks = [random.choice([rank, _without_moments(rank, random)]) for rank in evidence.ranks]
    gone = random.randrange(len(ranks))
    ranks[gone] = NOTHING
    kind: Literal["hung", "died"] = "hung" if how == "a rank hung" else "died"
    ended = replace(_with_ranks(evidence, ranks), incident=_incident(kind, evidence, gone))
    return Truncated(how, ended, ENDED)


def _all_ranks(how: str, evidence: TrainingEvidence, random: Random) -> Truncated:
    ended = _with_ranks(evidence, [NOTHING] * len(evidence.ranks))
    incident = _incident(random.choice(("hung", "died")), evidence, 0)
    return Truncated(how, replace(ended, incident=incident), ENDED)


def _a_rank_that_raised(how: str, evidence: TrainingEvidence, random: Random) -> Truncated:
    ranks = list(evidence.ranks)
    rank, step = random.randrange(len(ranks)), random.randrange(evidence.case.steps)
    error = RaisedError("backward", step, "RuntimeError", "refused", "")
    ranks[rank] = replace(_without_moments(ranks[rank], random), raised=error)
    return Truncated(how, _with_ranks(evidence, ranks), RAISED)


def _rows(how: str, evidence: TrainingEvidence, random: Random) -> Truncated:
    ranks = []
    for rank in evidence.ranks:
        shorter: dict[str, Any] = {}
        for name in random.sample(ROWS, 3):
            rows = getattr(rank, name)
            shorter[name] = rows[: random.randint(0, len(rows))]
        ranks.append(replace(_without_moments(rank, random), **shorter))
    return Truncated(how, _with_ranks(evidence, ranks), None)


WAYS: dict[str, Callable[[str, TrainingEvidence, Random], Truncated]] = {
    "moments of a rank": _moments_of_one_rank,
    "moments of all ranks": _moments_of_all,
    "a rank": _a_rank,
    "a rank hung": _a_rank_that_hung_or_died,
    "a rank died": _a_rank_that_hung_or_died,
    "all ranks": _all_ranks,
    "a rank raised": _a_rank_that_raised,
    "rows": _rows,
}
"""The ways to truncate evidence."""
