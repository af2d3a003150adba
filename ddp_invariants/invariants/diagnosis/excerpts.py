"""The data that a page shows of one case, taken from its evidence by pure functions.

`pictures.py` draws them. Evidence has megabytes, and people must be able to read a certificate, so
all data here are bounded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ddp_invariants.cases.case import describe
from ddp_invariants.cases.fields import Strict
from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.errors import EvidenceError
from ddp_invariants.invariants.diagnosis.events import carried_by
from ddp_invariants.invariants.rule import Unjudged
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import Moment, RankEvidence, ShardEvidence, TrainingEvidence
from ddp_invariants.records.trace import Call

MOST_RANKS, MOST_EPOCHS, MOST_INDICES = 8, 4, 32
"""Limits of a shard map: ranks, epochs, and indices of each rank."""
MOST_NAMES, MOST_CALLS = 24, 40
"""Limits: parameters of a heat map or a bucket, and collectives of a rank in a timeline."""


@dataclass(frozen=True)
class ShardMap(Strict):
    """A map of which rank got which sample in which epoch.

    Attributes:
        case: The case, in words.
        world_size, samples: The world size and the dataset length.
        epochs: The epoch numbers, in the order of the requests.
        shards: For each epoch and rank, the indices in the order they were yielded.
        cut: True if the case has more data than shown here.
    """

    case: str
    world_size: int
    samples: int
    epochs: tuple[int, ...]
    shards: tuple[tuple[tuple[int, ...], ...], ...]
    cut: bool = False


@dataclass(frozen=True)
class Sent(Strict):
    """One collective of one rank.

    Attributes:
        description: The collective in words, with the place that issued it.
        launched: Start time, in milliseconds from the beginning of the picture.
        waited: Time of the wait in the same unit; None if nobody waited for it.
        asynchronous: True if the caller requested a handle to wait for.
        of_gradients: True if it reduced gradients; False for a broadcast of buffers, for example.
    """

    description: str
    launched: float
    waited: float | None = None
    asynchronous: bool = False
    of_gradients: bool = True


@dataclass(frozen=True)
class Lane(Strict):
    """One rank in a step: its backward, the time each gradient was computed, and its collectives.

    All times are in milliseconds.
    """

    began: float
    ended: float
    ready: tuple[tuple[str, float], ...]
    sent: tuple[Sent, ...]


@dataclass(frozen=True)
class Bucket(Strict):
    """One reduction of a step: its number of elements, its dtype, and the parameters it carried.

    The parameters are given as far as they are known.
    """

    elements: int
    dtype: str
    carried: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timeline(Strict):
    """A step on all ranks.

    Each rank's clock starts when its case does; the clocks agree to some tenths of a millisecond.

    Attributes:
        case: The case, in words.
        step: The step.
        disturbed: The change to the timing of collectives; empty if there was none.
        late: Ranks whose collectives were started late on purpose.
        withheld: True if results were delivered only when the program waited for them.
        lanes: The lanes, by rank.
        buckets: The step's reductions on the first rank.
    """

    case: str
    step: int
    lanes: tuple[Lane, ...]
    buckets: tuple[Bucket, ...] = ()
    disturbed: str = ""
    late: tuple[int, ...] = ()
    withheld: bool = False


@dataclass(frozen=True)
class Mismatch(Strict):
    """The distance of each rank from the expected values, parameter by parameter.

    Attributes:
        label: The compared values, in words.
        step: The step.
        names: The parameters, largest distance first.
        largest: By parameter and rank, the largest difference of an element in units of the largest
            expected value. None if there is nothing to compare, or if a value is not finite.
        cut: Number of parameters that are left out.
    """

    label: str
    step: int
    names: tuple[str, ...]
    largest: tuple[tuple[float | None, ...], ...]
    cut: int = 0


@dataclass(frozen=True)
class Example(Strict):
    """The data shown of one case.

    Attributes:
        shards: The map of a sampler's case.
        timeline: The timeline of training with observed collectives.
        mismatch: The mismatch of training with a wrong value.
    """

    shards: ShardMap | None = None
    timeline: Timeline | None = None
    mismatch: Mismatch | None = None


def example(evidence: TrainingEvidence | ShardEvidence) -> Example | None:
    """Return a typical case as a page shows it, or None for any other case.

    The caller asks for every case until one is typical.
    """
    try:
        return _example(evidence)
    # An implementation may record anything, and a picture is not worth a lost verdict.
    except Exception:  # noqa: BLE001 - a missing picture is better than a lost verdict
        return None


def _example(evidence: TrainingEvidence | ShardEvidence) -> Example | None:
    if isinstance(evidence, ShardEvidence):
        case, data = evidence.case, evidence.case.data
        if (
            case.world_size in (3, 4)
            and 8 <= data.samples <= 20
            and data.samples % case.world_size
            and data.shuffle
            and not data.drop_last
            and len(case.epochs) > 1
        ):
            shards = shard_map(evidence)
            return None if shards is None else Example(shards)
        return None
    trained = evidence.case
    if (
        trained.world_size not in (2, 3)
        or trained.steps < 2
        or trained.bucket_cap is None
        or trained.accumulation > 1
        or trained.perturbation.kind != "withheld"
        or trained.injected_failure is not None
        or trained.between_steps
    ):
        return None
    shown = timeline(evidence)
    return Example(timeline=shown) if shown is not None and 2 <= len(shown.buckets) <= 6 else None


def of_violation(evidence: TrainingEvidence | ShardEvidence | None, rule: str) -> Example:
    """Return the data that a page shows of a violating case, as far as its evidence has them."""
    try:
        if isinstance(evidence, TrainingEvidence):
            return Example(timeline=timeline(evidence), mismatch=mismatch(evidence, rule))
        return Example() if evidence is None else Example(shard_map(evidence))
    except Exception:  # noqa: BLE001 - as above
        return Example()


def shard_map(evidence: ShardEvidence) -> ShardMap | None:
    """Return the map of the first process's answer; None if it gave none."""
    case = evidence.case
    answer = evidence.answers[0] if evidence.answers else {}
    if "shards" not in answer:
        return None
    epochs, ranks = case.epochs[:MOST_EPOCHS], min(case.world_size, MOST_RANKS)
    shards = tuple(
        tuple(tuple(shard[:MOST_INDICES]) for shard in of_epoch[:ranks])
        for of_epoch in answer["shards"][: len(epochs)]
    )
    longest = max((len(shard) for of_epoch in answer["shards"] for shard in of_epoch), default=0)
    cut = len(epochs) < len(case.epochs) or ranks < case.world_size or longest > MOST_INDICES
    return ShardMap(describe(case), case.world_size, case.data.samples, epochs, shards, cut)


def timeline(evidence: TrainingEvidence) -> Timeline | None:
    """Return the timeline of the last or second-last step, whichever has more reductions.

    The first step is left out if possible, since the implementation may not have planned its
    buckets yet. The result is None if the process groups were plain, or if a rank did not reach the
    step.
    """
    case, ranks = evidence.case, evidence.ranks
    reached = min((len(rank.backwards) for rank in ranks), default=0)
    if not reached or not all(any(rank.sent) for rank in ranks):
        return None
    view = EvidenceView(evidence)
    try:
        step, carried = max(
            (
                (step, [carried_by(view, step, rank) for rank in range(len(ranks))])
                for step in range(max(0, reached - 2), reached)
            ),
            key=lambda candidate: len(candidate[1][0]),
        )
    # A run that was cut short may lack evidence.
    except (Unjudged, EvidenceError, KeyError, IndexError):
        return None
    start = min(rank.backwards[step].began for rank in ranks)
    lanes = [
        _lane(rank, step, start, [call for call, _ in reductions])
        for rank, reductions in zip(ranks, carried, strict=True)
    ]
    buckets = tuple(
        Bucket(call.elements, call.dtype, tuple(names[:MOST_NAMES]))
        for call, names in carried[0][:MOST_CALLS]
    )
    plan = case.perturbation
    late = {"late": (plan.rank,), "delays": tuple(range(case.world_size))}.get(plan.kind, ())
    return Timeline(
        describe(case), step, tuple(lanes), buckets, plan.words, late, plan.kind == "withheld"
    )


def _lane(rank: RankEvidence, step: int, start: float, reduced: list[Call]) -> Lane:
    """Return one rank's lane of a timeline whose clock starts at `start`."""

    def since(moment: float) -> float:
        return round((moment - start) * 1e3, 4)

    began, ended, ready = rank.backwards[step]
    starts, ends = rank.marks[step] if step < len(rank.marks) else ([], [])
    unrelated = [call for call in rank.sent_between(starts, ends) if call not in reduced]
    sent = tuple(
        Sent(
            call.at,
            since(call.launched),
            None if call.waited is None else since(call.waited),
            call.asynchronous,
            call in reduced,
        )
        for call in sorted([*reduced, *unrelated], key=lambda call: call.launched)[:MOST_CALLS]
    )
    times = tuple((name, since(at)) for name, at in ready[:MOST_NAMES])
    return Lane(since(began), since(ended), times, sent)


_AGREEING: tuple[tuple[str, Moment, str], ...] = (
    ("INIT", "wrapped", "parameters when training starts, against rank 0's"),
    ("PARAM", "updated", "parameters after the step, against rank 0's"),
    ("BUF-1", "left buffers", "buffers after the step, against rank 0's"),
    ("STATE", "restored", "parameters after they were loaded, against rank 0's"),
)
"""Values on which ranks must agree, by invariant; if they agree, gradients are compared."""


def mismatch(evidence: TrainingEvidence, rule: str) -> Mismatch | None:
    """Return the ranks' distance from each other, or else from the mean of their gradients.

    The result is None if neither shows a difference.
    """
    kinds = [kind for kind in _AGREEING if rule.startswith(kind[0])]
    for _, moment, label in kinds:
        for step in range(evidence.case.steps):
            tensors = evidence.moment(moment, step)
            if tensors is not None:
                by_rank = [held.by_name for held in tensors]
                distance = _mismatch(label, step, by_rank[0], by_rank)
                if distance is not None:
                    return distance
    # Opposite infinities have no mean.
    with np.errstate(invalid="ignore"):
        return _from_the_mean(evidence)


def _from_the_mean(evidence: TrainingEvidence) -> Mismatch | None:
    """Return the first step in which a rank's gradient is not the mean of the local gradients."""
    case = evidence.case
    for step in range(case.steps):
        reduced = evidence.moment("reduced", step)
        local = [
            evidence.moment("local", step * case.accumulation + number)
            for number in range(case.accumulation)
        ]
        if reduced is None or None in local:
            return None
        names = {name for held in reduced for name in held.by_name}
        mean = {
            name: sum(
                (
                    np.mean([rank.by_name[name] for rank in micro], axis=0)
                    for micro in local
                    if micro is not None and all(name in rank.by_name for rank in micro)
                ),
                start=np.zeros(()),
            )
            for name in sorted(names)
        }
        distance = _mismatch(
            "gradients, against the mean of the ranks' local ones",
            step,
            mean,
            [held.by_name for held in reduced],
        )
        if distance is not None:
            return distance
    return None


SMALL = 1e-5
"""Smallest difference shown; rounding may explain smaller ones."""


def _mismatch(
    label: str, step: int, expected: dict[str, FloatArray], by_rank: Sequence[dict[str, FloatArray]]
) -> Mismatch | None:
    rows = {
        name: tuple(_largest(rank.get(name), expected[name]) for rank in by_rank[:MOST_RANKS])
        for name in expected
    }
    if not any(value is None or value > SMALL for row in rows.values() for value in row):
        return None
    names = sorted(rows, key=lambda name: -_furthest(rows[name]))[:MOST_NAMES]
    return Mismatch(
        label, step, tuple(names), tuple(rows[name] for name in names), len(rows) - len(names)
    )


def _furthest(row: Iterable[float | None]) -> float:
    return max((np.inf if value is None else value for value in row), default=0.0)


def _largest(got: FloatArray | None, expected: FloatArray) -> float | None:
    """Return the largest difference in units of the largest expected value.

    If that value is zero, the difference is returned as it is.
    """
    if (
        got is None
        or got.shape != expected.shape
        or not np.isfinite(got).all()
        or not np.isfinite(expected).all()
    ):
        return None
    if not expected.size:
        return 0.0
    scale = float(np.abs(expected).max())
    return round(float(np.abs(got - expected).max()) / (scale or 1.0), 9)
