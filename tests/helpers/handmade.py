"""Evidence made by hand: the records of right ranks, without starting a process."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ddp_invariants.cases import numbers as draws
from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data, Optimizer
from ddp_invariants.oracle import balls, training
from ddp_invariants.oracle.optimizer import Optimization
from ddp_invariants.records.evidence import (
    Backward,
    Layout,
    ModuleTensor,
    Moment,
    RankEvidence,
    ShardEvidence,
    Slot,
    Tensors,
    TrainingEvidence,
)
from ddp_invariants.records.trace import Call

CASE = TrainingCase(
    model=Model(
        2,
        (
            Layer("linear", 2, bias=True),
            Layer("scale", frozen=True),
            Layer("linear", 2, tied=0),
            Layer("empty"),
            Layer("scale"),
            Layer("statistics"),
        ),
    ),
    world_size=2,
    data=Data(samples=3, batch_size=1),
    steps=3,
    optimizer=Optimizer(log2_lr=-10, momentum=0.5),
    bucket_cap=16,
)
"""A case so small that most of its arithmetic is exact."""

SHAPES = {
    "layers.0.weight": (2, 2),
    "layers.0.bias": (2,),
    "layers.1.factor": (),
    "layers.3.nothing": (0, 2),
    "layers.4.factor": (),
}
WEIGHT, SCALE = "layers.0.weight", "layers.4.factor"
FROZEN = {"layers.1.factor"}
BUFFERS = {
    "layers.5.running": ("float32", (2,)),
    "layers.5.count": ("int64", ()),
    "layers.5.seen": ("bool", (2,)),
}
STRUCTURE = [
    *(
        ModuleTensor(name, "float32", list(shape), name not in FROZEN, name, "parameter")
        for name, shape in SHAPES.items()
    ),
    ModuleTensor("layers.2.weight", "float32", [2, 2], True, "layers.0.weight", "parameter"),
    *(
        ModuleTensor(name, dtype, list(shape), False, name, "buffer")
        for name, (dtype, shape) in BUFFERS.items()
    ),
]


Alteration = Callable[[TrainingEvidence], TrainingEvidence]
Array = np.ndarray[Any, np.dtype[Any]]


def raised_by_one(value: Array) -> Array:
    """Return the values, each increased by one."""
    raised: Array = value + value.dtype.type(1)
    return raised


def one_bit_up(value: Array) -> Array:
    """Return the next larger float32 of every value."""
    raised: Array = np.nextafter(value, np.float32(99))
    return raised


class Maker:
    """A maker of tensor records that share layouts, as the records of a decoded frame do."""

    def __init__(self) -> None:
        self.layouts: dict[tuple[Slot, ...], Layout] = {}

    def tensors(self, named: Mapping[str, FloatArray | None], dtype: str = "float32") -> Tensors:
        """Return a record of float tensors; None stands for a tensor that does not exist."""
        slots = tuple(
            Slot(name, None, ()) if value is None else Slot(name, dtype, np.shape(value))
            for name, value in named.items()
        )
        bits = b"".join(
            np.asarray(value).astype(dtype).tobytes()
            for value in named.values()
            if value is not None
        )
        return Tensors(self.layouts.setdefault(slots, Layout(slots)), bits)

    def typed(self, named: dict[str, tuple[str, FloatArray]]) -> Tensors:
        """Return a record of tensors of several dtypes."""
        slots = tuple(Slot(name, dtype, np.shape(value)) for name, (dtype, value) in named.items())
        return Tensors(
            self.layouts.setdefault(slots, Layout(slots)),
            b"".join(np.asarray(value).astype(dtype).tobytes() for dtype, value in named.values()),
        )


def _unpacked(flat_P: FloatArray) -> dict[str, FloatArray]:
    parts, start = {}, 0
    for name, shape in SHAPES.items():
        size = int(np.prod(shape, dtype=int))
        parts[name] = flat_P[start : start + size].reshape(shape)
        start += size
    return parts


def right(  # noqa: C901 - it is one training run, from its first step to its last
    case: TrainingCase = CASE, *, none: bool = True
) -> TrainingEvidence:
    """Return what right ranks record on a case with CASE's model.

    The values are the oracle's centres, rounded to float32.

    Args:
        case: The case.
        none: True if a parameter that no rank uses has no gradient. Zero would be right as well.
    """
    maker = Maker()
    count = sum(int(np.prod(shape, dtype=int)) for shape in SHAPES.values())
    built = [_unpacked(draws.parameters(case, rank, count)) for rank in range(case.world_size)]
    buffers = [
        maker.typed(
            {name: (dtype, np.full(shape, rank % 2)) for name, (dtype, shape) in BUFFERS.items()}
        )
        for rank in range(case.world_size)
    ]
    notes: list[dict[tuple[str, int], Tensors]] = [
        {
            ("built", 0): maker.tensors(built[rank]),
            ("wrapped", 0): maker.tensors(built[0]),
            ("built buffers", 0): buffers[rank],
            ("wrapped buffers", 0): buffers[0],
        }
        for rank in range(case.world_size)
    ]
    held, optimization = dict(built[0]), Optimization()
    trainable = [name for name in SHAPES if name not in FROZEN or name in case.sometimes_frozen]
    left: dict[str, FloatArray] = {}
    scales, in_a_row = [2.0 ** (case.scaler.log2_scale if case.scaler is not None else 0)], 0
    dealt = training.batches(case)
    for step in range(case.steps):
        numbers = range(step * case.accumulation, (step + 1) * case.accumulation)
        writes = any(
            (action.kind, action.step) == ("weights", step) for action in case.between_steps
        )
        if writes:
            still = case.frozen(step)
            held = {name: each if name in still else each / 2 for name, each in held.items()}
        now, frozen = case.at(step), case.frozen(step) & case.sometimes_frozen
        results_K = [training.gradients(now, held, dealt[number], scales[-1]) for number in numbers]
        results_K = [
            replace(
                result,
                by_name={
                    **result.by_name,
                    **{name: training.nothing(held[name], case.world_size) for name in frozen},
                },
            )
            for result in results_K
        ]
        # The ranks compute in float32 and reduce these float32 values.
        local_K = [
            {name: result.by_name[name].centre.astype(np.float32) for name in trainable}
            for result in results_K
        ]
        if case.exhausted:  # A rank that has no batch counts as zero.
            active_W = np.array(
                [step < case.steps_of(rank) for rank in range(case.world_size)], np.float32
            )
            local_K = [
                {
                    name: values * active_W.reshape(-1, *[1] * (values.ndim - 1))
                    for name, values in result.items()
                }
                for result in local_K
            ]
        if case.scaler is not None and case.poison is not None and case.poison.step == step:
            for values_W in local_K:
                values_W["layers.0.weight"][case.poison.rank, 0] = float(case.poison.value)
        local = {
            name: np.sum([local[name] for local in local_K], axis=0, dtype=np.float32)
            for name in trainable
        }
        means = {
            name: values.sum(0) / np.float32(case.world_size) for name, values in local.items()
        }
        mean = {
            name: (value + left.get(name, np.float32(0)).astype(np.float32)).astype(np.float64)
            for name, value in means.items()
        }
        form = balls.FORMATS["float32"]
        start_P = np.concatenate([held[name].ravel() for name in trainable])
        mean_P = np.concatenate([mean[name].ravel() for name in trainable]) / scales[-1]
        skipped = not np.isfinite(mean_P).all()
        if case.scaler is not None:
            in_a_row = 0 if skipped else in_a_row + 1
            grows = in_a_row == case.scaler.interval
            in_a_row = 0 if grows else in_a_row
            scales.append(
                scales[-1]
                * 2.0 ** (-case.scaler.log2_backoff if skipped else grows * case.scaler.log2_growth)
            )
        every = case.model.used(frozenset())
        unused = [
            every - case.model.used(case.never_used(rank, step)) for rank in range(case.world_size)
        ]
        nowhere = (frozenset.intersection(*unused) if none else frozenset()) | frozen
        left_out_P = np.concatenate(
            [np.full(held[name].size, name in nowhere) for name in trainable]
        )
        updated = (
            start_P
            if skipped
            else optimization.step(
                now.optimizer, balls.exactly(start_P), balls.exactly(mean_P), form, left_out_P
            ).centre
        )
        after = {**held, **_like(held, trainable, updated)}
        buffer = optimization.first.centre if optimization.first is not None else None
        reloaded = any(
            (action.kind, action.step) == ("reload", step) for action in case.between_steps
        )
        for rank, noted in enumerate(notes):
            if step >= case.steps_of(rank):
                continue
            if reloaded:
                for restored, kept in {
                    "restored": "updated",
                    "restored buffers": "left buffers",
                    "restored state": "state",
                }.items():
                    noted[restored, step] = noted[kept, step - 1]
            noted["forward", step] = maker.tensors({name: held[name] for name in SHAPES})
            if writes:
                noted["written", step] = noted["forward", step]
            noted["forward buffers", step] = (
                notes[0].get(("left buffers", step - 1), buffers[0]) if step else buffers[0]
            )
            for number, result, parts in zip(numbers, results_K, local_K, strict=True):
                noted["local", number] = maker.tensors(
                    {name: parts[name][rank] if name in parts else None for name in SHAPES}
                )
                loss = result.losses_W.centre[rank]
                noted["loss", number] = maker.tensors({"loss": loss, "twin": loss}, "float64")
            noted["reduced", step] = maker.tensors(
                {name: None if name in nowhere else mean.get(name) for name in SHAPES}
            )
            noted["updated", step] = maker.tensors({name: after[name] for name in SHAPES})
            noted["left buffers", step] = maker.typed(
                {
                    name: (dtype, np.full(shape, (rank + step) % 2))
                    for name, (dtype, shape) in BUFFERS.items()
                }
            )
            noted["twin buffers", step] = noted["left buffers", step]
            noted["plain", step] = noted["updated", step]
            noted["state", step] = maker.tensors({} if buffer is None else {"momentum": buffer})
        held = after
        left = mean if case.zero_grad == "never" else {}
    for noted in notes if case.exhausted else ():
        noted["joined", 0] = maker.tensors({name: held[name] for name in SHAPES})
    for noted in notes if case.saved_by is not None else ():
        noted["restored", 0] = noted["saved", 0] = noted["forward", 0]
        noted["restored state", 0] = noted["saved state", 0] = maker.tensors({})
    # Each step has two all-reduces, the result of a greedy filling that begins at the last
    # parameter. The first one starts before the last gradient is computed.
    sent = [
        [
            call
            for step in range(case.steps)
            for call in (
                Call(
                    "allreduce",
                    "float32",
                    3,
                    "SUM",
                    asynchronous=True,
                    site="ddp.py:1",
                    launched=step + 0.5,
                    waited=step + 0.8,
                ),
                Call(
                    "allreduce",
                    "float32",
                    4,
                    "SUM",
                    asynchronous=True,
                    site="ddp.py:1",
                    launched=step + 0.7,
                    waited=step + 0.8,
                ),
            )
        ]
    ]
    marks = [[[2 * step], [2 * step + 2]] for step in range(case.steps)]
    quiet = [[[[2 * step], [2 * step]]] * (case.accumulation - 1) for step in range(case.steps)]
    arrivals = list(zip(trainable[::-1], (0.2, 0.3, 0.4, 0.6, 0.6), strict=False))
    backwards = [
        Backward(step + 0.1, step + 0.9, [(name, step + at) for name, at in arrivals])
        for step in range(case.steps)
    ]
    saved = [
        sorted(row.name for row in STRUCTURE)
        for action in case.between_steps
        if action.kind == "reload"
    ]
    saved += [sorted(row.name for row in STRUCTURE)] if case.saved_by is not None else []
    return TrainingEvidence(
        case,
        tuple(
            RankEvidence(
                noted,
                STRUCTURE,
                STRUCTURE,
                sent=sent,
                marks=marks,
                quiet=quiet,
                backwards=backwards,
                driven={"accumulation": "no_sync"},
                saved=saved,
                scales=scales[1:],
            )
            for noted in notes
        ),
    )


def _like(
    held: dict[str, FloatArray], names: list[str], flat_P: FloatArray
) -> dict[str, FloatArray]:
    parts, start = {}, 0
    for name in names:
        parts[name] = (
            flat_P[start : start + held[name].size]
            .reshape(held[name].shape)
            .astype(np.float32)
            .astype(np.float64)
        )
        start += held[name].size
    return parts


def altered(
    evidence: TrainingEvidence, rank: int, moment: Moment, step: int, name: str, change: object
) -> TrainingEvidence:
    """Return evidence in which one tensor of one rank is altered.

    Args:
        evidence: The evidence before the change; it is not modified.
        rank: The rank whose tensor changes.
        moment: The moment of the record that holds the tensor.
        step: The step of that record.
        name: The tensor's name.
        change: A function of the tensor's values, or None to remove the tensor.
    """
    noted = dict(evidence.ranks[rank].tensors)
    before = noted[moment, step]
    bits, slots, start = b"", [], 0
    for slot, size in zip(before.layout.slots, before.layout.sizes, strict=True):
        width = 0 if slot.dtype is None else size * np.dtype(slot.dtype).itemsize
        piece = before.bits[start : start + width]
        start += width
        if slot.name == name and slot.dtype is not None:
            if change is None:
                slots.append(Slot(name, None, ()))
                continue
            assert callable(change)
            value = np.asarray(change(np.frombuffer(piece, slot.dtype).reshape(slot.shape)))
            piece = value.astype(value.dtype if value.dtype.kind == "f" else slot.dtype).tobytes()
            dtype = str(value.dtype) if value.dtype.kind == "f" else slot.dtype
            slot = Slot(name, dtype, value.shape)  # noqa: PLW2901 - the altered slot
        slots.append(slot)
        bits += piece
    layout = before.layout if tuple(slots) == before.layout.slots else Layout(tuple(slots))
    noted[moment, step] = Tensors(layout, bits)
    ranks = list(evidence.ranks)
    ranks[rank] = replace(ranks[rank], tensors=noted)
    return replace(evidence, ranks=tuple(ranks))


def everywhere(
    evidence: TrainingEvidence, moment: Moment, step: int, name: str, change: object
) -> TrainingEvidence:
    """Return evidence in which one tensor is altered in the same way on every rank.

    The ranks still agree afterwards.
    """
    for rank in range(len(evidence.ranks)):
        evidence = altered(evidence, rank, moment, step, name, change)
    layout = evidence.ranks[0].tensors[moment, step].layout
    ranks = [
        replace(
            rank,
            tensors={
                **rank.tensors,
                (moment, step): Tensors(layout, rank.tensors[moment, step].bits),
            },
        )
        for rank in evidence.ranks
    ]
    return replace(evidence, ranks=tuple(ranks))


def asked(case: ShardCase, got: list[list[list[int]]]) -> ShardEvidence:
    """Return the evidence of a sampler that deals four samples to two ranks, and is asked once more.

    Args:
        case: The case, with the other way to ask as its situation.
        got: The indices by rank and iteration when the sampler is asked so.
    """
    plain = [[0, 2], [1, 3]]
    answer = {
        "lengths": [2, 2],
        "shards": [plain],
        "again": plain,
        "afresh": plain,
        "reseeded": None,
        "touched": [],
        "refused": {},
        "asked": [{"got": got, "wanted": [None, None], "raised": ["", ""]}],
    }
    return ShardEvidence(case, (answer, answer))
