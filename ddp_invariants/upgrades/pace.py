"""The cost of cases on two sides, from the same run: ratios that are reported, never judged."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from ddp_invariants.records.evidence import ShardEvidence, TrainingEvidence


@dataclass(frozen=True)
class Cost:
    """The cost of a case on one side, on the most expensive rank.

    Attributes:
        seconds: Time from request to answer. It covers building the model, training with the
            wrapper and with the unwrapped twin module, and recording. For a sampler, it covers all
            questions.
        backward: Seconds of all synchronised backwards together, with the wait for their
            collectives; 0 for a sampler.
        resident: Bytes resident when the process began to serve: torch, and the memory shared with
            the host process it is forked from.
        peak: Largest number of bytes resident since then, in this case or an earlier case of the
            same process.
    """

    seconds: float
    backward: float
    resident: float
    peak: float


def cost(answer: TrainingEvidence | ShardEvidence) -> Cost | None:
    """Return the cost of a side's answer; None if the run was not measured to its end."""
    if isinstance(answer, TrainingEvidence):
        rows = [rank.cost for rank in answer.ranks]
        raised = any(rank.raised is not None for rank in answer.ranks)
        backward = max(
            (
                sum(backward.ended - backward.began for backward in rank.backwards)
                for rank in answer.ranks
            ),
            default=0.0,
        )
    else:
        rows = [process.get("cost", []) for process in answer.answers]
        raised, backward = any(process.get("raised") for process in answer.answers), 0.0
    if answer.incident is not None or raised or not rows or not all(rows):
        return None
    seconds, resident, peak = (max(column) for column in zip(*rows, strict=True))
    return Cost(seconds, backward, resident, peak)


@dataclass(frozen=True)
class Ratio:
    """One quantity that was measured on both sides.

    Attributes:
        quantity: The name of the quantity.
        unit: The unit of `old` and `new`: `ms` for the median of the cases, `MiB` for the largest
            value of any rank.
        old, new: The value on each side.
        ratio: New over old; for times, the median of the cases' own ratios.
        quartiles: The range of the middle half of these ratios; None for memory, which is one
            number per side.
        cases: Number of cases.
    """

    quantity: str
    unit: str
    old: float
    new: float
    ratio: float
    quartiles: tuple[float, float] | None
    cases: int


def ratios(costs: Sequence[tuple[Cost, Cost]]) -> list[Ratio]:
    """Return the speed and memory ratios of a run, from each case's cost on both sides."""
    training = [pair for pair in costs if pair[0].backward and pair[1].backward]
    of_samplers = [pair for pair in costs if not pair[0].backward and not pair[1].backward]
    measured = [
        _times("a training case", [(old.seconds, new.seconds) for old, new in training]),
        _times(
            "its synchronised backwards", [(old.backward, new.backward) for old, new in training]
        ),
        _times("a sampler case", [(old.seconds, new.seconds) for old, new in of_samplers]),
        _most("resident memory of a rank", [(old.peak, new.peak) for old, new in costs]),
        _most(
            "memory added by the cases",
            [(old.peak - old.resident, new.peak - new.resident) for old, new in costs],
        ),
    ]
    return [ratio for ratio in measured if ratio is not None]


def _times(label: str, pairs: list[tuple[float, float]]) -> Ratio | None:
    if len(pairs) < 2:
        return None
    each = [new / old for old, new in pairs]
    low, middle, high = quantiles(each, method="inclusive")
    old, new = (1000 * median(side) for side in zip(*pairs, strict=True))
    return Ratio(label, "ms", old, new, middle, (low, high), len(pairs))


def _most(label: str, pairs: list[tuple[float, float]]) -> Ratio | None:
    if not pairs:
        return None
    old, new = (max(side) / 2**20 for side in zip(*pairs, strict=True))
    return Ratio(label, "MiB", old, new, new / old, None, len(pairs)) if old > 0 else None
