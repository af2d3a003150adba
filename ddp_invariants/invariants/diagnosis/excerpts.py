"""What a page shows of one case: small plain data, taken from its evidence by pure functions; `pictures.py` draws it.

Evidence has megabytes, a certificate has to be read by people: everything here is bounded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ddp_invariants.cases.case import describe
from ddp_invariants.cases.fields import STRICT
from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.errors import EvidenceError
from ddp_invariants.invariants.diagnosis.events import carried_by
from ddp_invariants.invariants.rule import Unjudged
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import Moment, ShardEvidence, TrainingEvidence

MOST_RANKS, MOST_EPOCHS, MOST_INDICES = 8, 4, 32
"""Of a shard map: ranks, epochs, and indices of each rank."""
MOST_NAMES, MOST_CALLS = 24, 40
"""Of a heat map or a bucket: parameters; of a timeline: collectives of a rank."""


@dataclass(frozen=True)
class ShardMap:
    """Which rank got which sample in which epoch.

    Attributes:
        case: In words.
        world_size, samples: Its ranks and its dataset's length.
        epochs: Their numbers, in the order they were asked for.
        shards: Per epoch and rank, the indices in the order they were yielded.
        cut: Whether there was more than is here.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    case: str
    world_size: int
    samples: int
    epochs: tuple[int, ...]
    shards: tuple[tuple[tuple[int, ...], ...], ...]
    cut: bool = False


@dataclass(frozen=True)
class Sent:
    """One collective of one rank.

    Attributes:
        told: It, in words, and where it was issued.
        launched: Milliseconds from the picture's beginning.
        waited: The same; None where nobody waited for it.
        asynchronous: Whether the caller asked for something to wait for.
        of_gradients: Whether it reduced them, and was no broadcast of buffers, say.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    told: str
    launched: float
    waited: float | None = None
    asynchronous: bool = False
    of_gradients: bool = True


@dataclass(frozen=True)
class Lane:
    """One rank in a step: its backward, when each gradient was computed, and its collectives; in milliseconds."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    began: float
    ended: float
    ready: tuple[tuple[str, float], ...]
    sent: tuple[Sent, ...]


@dataclass(frozen=True)
class Bucket:
    """One reduction of a step: its number of elements and dtype, and the parameters it carried as far as that is known."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    elements: int
    dtype: str
    carried: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timeline:
    """A step on all ranks. Each rank's clock starts as its case does: they are alike to some tenths of a millisecond.

    Attributes:
        case: In words.
        step: Which.
        disturbed: What was done to the timing of collectives; empty where nothing was.
        late: Ranks whose collectives were started late on purpose.
        withheld: Whether results were handed over only when somebody waited for them.
        lanes: By rank.
        buckets: The step's reductions on the first rank.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    case: str
    step: int
    lanes: tuple[Lane, ...]
    buckets: tuple[Bucket, ...] = ()
    disturbed: str = ""
    late: tuple[int, ...] = ()
    withheld: bool = False


@dataclass(frozen=True)
class Mismatch:
    """How far each rank is from what was expected, parameter by parameter.

    Attributes:
        what: Compared with what, in words.
        step: At which step.
        names: The parameters, those that are furthest off first.
        largest: By parameter and rank, the largest difference of an element in units of the largest
            expected value; None where there is nothing to compare, or what there is is no number.
        cut: Parameters that are left out.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    what: str
    step: int
    names: tuple[str, ...]
    largest: tuple[tuple[float | None, ...], ...]
    cut: int = 0


@dataclass(frozen=True)
class Example:
    """What is shown of one case.

    Attributes:
        shards: Of a question to a sampler.
        timeline: Of training whose collectives were observed.
        mismatch: Of training in which something is off.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    shards: ShardMap | None = None
    timeline: Timeline | None = None
    mismatch: Mismatch | None = None


def example(evidence: TrainingEvidence | ShardEvidence) -> Example | None:
    """A case that shows well what cases are, as a page shows it; None of any other. Asked of every case until one is found."""
    try:
        return _example(evidence)
    except Exception:  # noqa: BLE001 - an implementation may note anything, and no picture is worth a verdict
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
    """What a page shows of the case that violates a rule, as far as its evidence holds it."""
    try:
        if isinstance(evidence, TrainingEvidence):
            return Example(timeline=timeline(evidence), mismatch=mismatch(evidence, rule))
        return Example() if evidence is None else Example(shard_map(evidence))
    except Exception:  # noqa: BLE001 - as above
        return Example()


def shard_map(evidence: ShardEvidence) -> ShardMap | None:
    """Who got what, by the first process's answer; None where it gave none."""
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
    """The step with most reductions among the last two; None where groups were plain, or a rank did not get there.

    Not the first, which may come before a plan.
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
            key=lambda one: len(one[1][0]),
        )
    except (
        Unjudged,
        EvidenceError,
        KeyError,
        IndexError,
    ):  # Of a run that was cut short there may be less.
        return None
    start = min(rank.backwards[step][0] for rank in ranks)

    def since(moment: float) -> float:
        return round((moment - start) * 1e3, 4)

    lanes = []
    for rank, found in zip(ranks, carried, strict=True):
        began, ended, ready = rank.backwards[step]
        reduced = [call for call, _ in found]
        starts, ends = rank.marks[step] if step < len(rank.marks) else ([], [])
        others = [call for call in rank.sent_between(starts, ends) if call not in reduced]
        sent = tuple(
            Sent(
                call.at,
                since(call.launched),
                None if call.waited is None else since(call.waited),
                call.asynchronous,
                call in reduced,
            )
            for call in sorted([*reduced, *others], key=lambda call: call.launched)[:MOST_CALLS]
        )
        lanes.append(
            Lane(
                since(began),
                since(ended),
                tuple((name, since(at)) for name, at in ready[:MOST_NAMES]),
                sent,
            )
        )
    buckets = tuple(
        Bucket(call.elements, call.dtype, tuple(names[:MOST_NAMES]))
        for call, names in carried[0][:MOST_CALLS]
    )
    plan = case.perturbation
    late = {"late": (plan.rank,), "delays": tuple(range(case.world_size))}.get(plan.kind, ())
    return Timeline(
        describe(case), step, tuple(lanes), buckets, plan.words, late, plan.kind == "withheld"
    )


_AGREEING: tuple[tuple[str, Moment, str], ...] = (
    ("INIT", "wrapped", "parameters when training starts, against rank 0's"),
    ("PARAM", "updated", "parameters after the step, against rank 0's"),
    ("BUF-1", "left buffers", "buffers after the step, against rank 0's"),
    ("STATE", "restored", "parameters after they were loaded, against rank 0's"),
)
"""What ranks must agree on, by invariant: where nothing parts there, gradients are looked at."""


def mismatch(evidence: TrainingEvidence, rule: str) -> Mismatch | None:
    """Where ranks are off: from the mean of their local gradients, or from one another; None where neither shows."""
    kinds = [one for one in _AGREEING if rule.startswith(one[0])]
    for _, moment, what in kinds:
        for step in range(evidence.case.steps):
            tensors = evidence.moment(moment, step)
            if tensors is not None:
                by_rank = [one.by_name for one in tensors]
                found = _mismatch(what, step, by_rank[0], by_rank)
                if found is not None:
                    return found
    return _from_the_mean(evidence)


def _from_the_mean(evidence: TrainingEvidence) -> Mismatch | None:
    """The first step in which a rank's gradient is not the mean of what the ranks computed in it."""
    case = evidence.case
    for step in range(case.steps):
        reduced = evidence.moment("reduced", step)
        local = [
            evidence.moment("local", step * case.accumulation + number)
            for number in range(case.accumulation)
        ]
        if reduced is None or None in local:
            return None
        names = {name for one in reduced for name in one.by_name}
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
        found = _mismatch(
            "gradients, against the mean of the ranks' local ones",
            step,
            mean,
            [one.by_name for one in reduced],
        )
        if found is not None:
            return found
    return None


SMALL = 1e-5
"""Differences below are what rounding may explain: a picture of them would show nothing."""


def _mismatch(
    what: str, step: int, expected: dict[str, FloatArray], by_rank: Sequence[dict[str, FloatArray]]
) -> Mismatch | None:
    rows = {
        name: tuple(_largest(rank.get(name), expected[name]) for rank in by_rank[:MOST_RANKS])
        for name in expected
    }
    if not any(value is None or value > SMALL for row in rows.values() for value in row):
        return None
    names = sorted(rows, key=lambda name: -_furthest(rows[name]))[:MOST_NAMES]
    return Mismatch(
        what, step, tuple(names), tuple(rows[name] for name in names), len(rows) - len(names)
    )


def _furthest(row: Iterable[float | None]) -> float:
    return max((np.inf if value is None else value for value in row), default=0.0)


def _largest(got: FloatArray | None, expected: FloatArray) -> float | None:
    """The largest difference in units of the largest expected value, or as it is where that is zero."""
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
