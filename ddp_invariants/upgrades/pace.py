"""What cases cost on two sides, from the same run: ratios, which are told and never judged."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from ddp_invariants.records.evidence import ShardEvidence, TrainingEvidence


@dataclass(frozen=True)
class Cost:
    """What a case took on one side, on the rank that took most.

    Attributes:
        seconds: From request to answer: building the model, training with the wrapper and with the
            unwrapped twin, and noting what was seen; of a sampler, all that is asked of it.
        backward: Seconds of its synchronised backwards together, waiting for their collectives
            included; 0 for a sampler.
        resident: Bytes resident when the process began to serve: torch, and what is shared with the
            host it is forked from.
        peak: Bytes resident at most since then, in this case or an earlier one of the same process.
    """

    seconds: float
    backward: float
    resident: float
    peak: float


def cost(answer: TrainingEvidence | ShardEvidence) -> Cost | None:
    """What a side's answer took; None where it did not end by itself, or nobody measured."""
    if isinstance(answer, TrainingEvidence):
        rows = [rank.cost for rank in answer.ranks]
        raised = any(rank.raised is not None for rank in answer.ranks)
        backward = max(
            (sum(ended - began for began, ended, _ in rank.backwards) for rank in answer.ranks),
            default=0.0,
        )
    else:
        rows = [one.get("cost", []) for one in answer.answers]
        raised, backward = any(one.get("raised") for one in answer.answers), 0.0
    if answer.incident is not None or raised or not rows or not all(rows):
        return None
    seconds, resident, peak = (max(column) for column in zip(*rows, strict=True))
    return Cost(seconds, backward, resident, peak)


@dataclass(frozen=True)
class Ratio:
    """One thing that was measured on both sides.

    Attributes:
        what: What.
        unit: Of `old` and `new`: `ms`, the median of the cases, or `MiB`, the most of any rank.
        old, new: Each side's.
        ratio: New over old; of times the median of the cases' own ratios.
        quartiles: Between which half of these ratios lie; None of memory, which is one number a
            side.
        cases: How many there are.
    """

    what: str
    unit: str
    old: float
    new: float
    ratio: float
    quartiles: tuple[float, float] | None
    cases: int


def ratios(costs: Sequence[tuple[Cost, Cost]]) -> list[Ratio]:
    """What a run says of speed and memory: each case's cost on the old and the new side."""
    training = [pair for pair in costs if pair[0].backward and pair[1].backward]
    asked = [pair for pair in costs if not pair[0].backward and not pair[1].backward]
    found = [
        _times("a training case", [(old.seconds, new.seconds) for old, new in training]),
        _times(
            "its synchronised backwards", [(old.backward, new.backward) for old, new in training]
        ),
        _times("a question to a sampler", [(old.seconds, new.seconds) for old, new in asked]),
        _most("resident memory of a rank", [(old.peak, new.peak) for old, new in costs]),
        _most(
            "of it since the rank started",
            [(old.peak - old.resident, new.peak - new.resident) for old, new in costs],
        ),
    ]
    return [one for one in found if one is not None]


def _times(what: str, pairs: list[tuple[float, float]]) -> Ratio | None:
    if len(pairs) < 2:
        return None
    each = [new / old for old, new in pairs]
    low, middle, high = quantiles(each, method="inclusive")
    old, new = (1000 * median(side) for side in zip(*pairs, strict=True))
    return Ratio(what, "ms", old, new, middle, (low, high), len(pairs))


def _most(what: str, pairs: list[tuple[float, float]]) -> Ratio | None:
    if not pairs:
        return None
    old, new = (max(side) / 2**20 for side in zip(*pairs, strict=True))
    return Ratio(what, "MiB", old, new, new / old, None, len(pairs)) if old > 0 else None
