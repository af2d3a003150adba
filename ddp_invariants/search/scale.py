"""Large cases: a few percent of all cases are large along one axis.

Real code has limits beyond the sizes of most cases: a bitmask of 64 parameters, chunks of 1,024
elements, a first bucket of 1 MiB, a counter of four bits. A case that is large along every axis
would take long, and would show nothing more.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer, Layout, Model
from ddp_invariants.cases.program import Data, Perturbation
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.errors import CaseError
from ddp_invariants.situations.penalty import Penalty
from ddp_invariants.situations.perturbation import Perturbed
from ddp_invariants.situations.schedule import RateSchedule

AXES = st.sampled_from(
    ("",) * 471
    + ("parameters", "layers", "square", "length", "elements", "steps") * 4
    + ("steps",) * 4
    + ("batch", "batch", "backwards", "backwards", "mebibytes")
)
"""The axis along which a case is large; none in most cases."""
_PARAMETERS = (129, 65, 300, 257, 129, 66, 100, 128, 33, 300)
_LAYERS = (12, 11, 16, 17)
_SIDES = (9, 16, 17, 10, 12, 31, 32, 33, 48, 64, 65, 100)
_LENGTHS = (13, 17, 31, 33, 61, 65, 97, 127, 129, 257, 509, 1021)
_ELEMENTS = (1025, 1023, 1024, 4097, 2047, 4095, 16_383, 16_385, 16_384)
_MEBIBYTES = (262_145, 65_537, 262_143, 131_073, 65_535, 524_289)
_MEBIBYTE_CAPS = (None, 1 << 20, None, 4 << 20)
"""Bucket capacities of cases with tensors of about a mebibyte; None leaves the default."""
_STEPS = (25, 33, 12, 40, 17, 21, 33, 16, 20)
_BACKWARDS = (11, 17, 33, 12, 16, 32)
_BATCHES = (33, 16, 17, 64)
_SAMPLES = (4099, 1009, 4099, 16_411, 4099, 65_539)
"""Samples of a long dataset: prime numbers, so that no number of ranks divides them."""
_FEW_RANKS = 4
_SMALL_RATE = -16
"""Binary logarithm of a learning rate at which a large model does not diverge in a few steps."""


def scaled(case: TrainingCase, draw: Callable[[Any], Any]) -> TrainingCase:
    """Return a drawn case, made large along one axis in a few percent of all cases.

    Args:
        case: The case.
        draw: Hypothesis' `draw`.
    """
    axis = draw(AXES)
    return grown(case, axis, draw) if axis else case


def grown(case: TrainingCase, axis: str, draw: Callable[[Any], Any]) -> TrainingCase:
    """Return a drawn case, made large along an axis unless that does not suit it.

    Args:
        case: The case.
        axis: One of `LARGE`.
        draw: Hypothesis' `draw`.
    """
    size, variant = draw(st.integers(0, 23)), draw(st.integers(0, 7))
    if takes_long(case):
        return case
    try:
        return _GROWN[axis](_few(case), size, variant)
    except CaseError:  # The axis does not suit what else the case contains.
        return case


def prolonged(case: ShardCase, draw: Callable[[Any], Any], *, drop_last: bool) -> ShardCase:
    """Return a drawn case of a sampler with a long dataset.

    Args:
        case: The case.
        draw: Hypothesis' `draw`.
        drop_last: Leave the rest of the dataset out.
    """
    data = replace(case.data, samples=draw(st.sampled_from(_SAMPLES)), drop_last=drop_last)
    world_size = min(max(case.world_size, 2), 2 * _FEW_RANKS)
    return replace(case, world_size=world_size, data=data)


def is_long(case: ShardCase) -> bool:
    """Return whether the dataset of a case is a long one, and some ranks share it unevenly."""
    return case.data.samples >= min(_SAMPLES) and case.data.samples % case.world_size != 0


def takes_long(case: TrainingCase) -> bool:
    """Return whether a run of a case takes long by itself, so that the case is not made large, too.

    In anomaly mode autograd writes down the stack of every operation.
    """
    return case.rounds > 1 or case.kills or TRAINING["anomaly"].present(case)


def _few(case: TrainingCase) -> TrainingCase:
    """Return the case with few ranks, micro-steps and samples."""
    world_size = min(case.world_size, _FEW_RANKS)
    data = replace(
        case.data,
        samples=min(case.data.samples, 4 * world_size),
        batch_size=min(2, case.data.batch_size),
    )
    return _changed(case, world_size=world_size, data=data, accumulation=min(case.accumulation, 2))


def _changed(case: TrainingCase, **changes: Any) -> TrainingCase:
    """Return the case with other fields, and with those of its situations that suit them."""
    optimizer = changes.pop("optimizer", case.optimizer)
    loss_only = changes.get("model", case.model).has("loss_only")
    needed = (each for each in case.situations if loss_only and isinstance(each, Penalty))
    changed = replace(
        case, situations=tuple(needed), optimizer=replace(optimizer, kernels="default"), **changes
    )
    for situation in case.situations:
        changed = _or_unchanged(changed, situations=(*changed.situations, situation))
    return _or_unchanged(changed, optimizer=optimizer)


def _or_unchanged(case: TrainingCase, **changes: Any) -> TrainingCase:
    try:
        return replace(case, **changes)
    except CaseError:
        return case


def _gently(case: TrainingCase, model: Model, **changes: Any) -> TrainingCase:
    """Return the case with a large model, and a learning rate that suits it."""
    optimizer = replace(case.optimizer, log2_lr=_SMALL_RATE)
    changes = {"steps": min(case.steps, 2), "log2_scale": 0, "optimizer": optimizer, **changes}
    return _changed(case, model=model, **changes)


def _of(values: tuple[Any, ...], number: int) -> Any:
    return values[number % len(values)]


def _parameters(case: TrainingCase, size: int, variant: int) -> TrainingCase:
    """Give the model up to 300 parameters, or add so many vectors."""
    dtype = case.model.layers[0].dtype
    model = (
        case.model
        if case.model.widths()[-1] <= 2
        else replace(case.model, layers=(*case.model.layers, Layer("linear", 1, dtype=dtype)))
    )
    count = _of(_PARAMETERS, size)
    if variant % 4:
        count = max(count - len(_sizes_of(model)), 1)
    layers = (*model.layers, Layer("terms", count, dtype=dtype))
    return _gently(case, replace(model, layers=layers))


def _layers(case: TrainingCase, size: int, variant: int) -> TrainingCase:
    """Add so many layers that their numbers have two digits."""
    dtype = case.model.layers[0].dtype
    count = max(_of(_LAYERS, size) - len(case.model.layers), 1)
    layer = Layer("linear", 1, dtype=dtype) if variant % 2 else Layer("scale", dtype=dtype)
    narrow = Layer("linear", 1, dtype=dtype)
    layers = (*case.model.layers, narrow, *(layer,) * count)
    return _gently(case, replace(case.model, layers=layers))


def _square(case: TrainingCase, size: int, variant: int) -> TrainingCase:
    """Train square matrices with sides over eight."""
    side, dtype = _of(_SIDES, size), case.model.layers[0].dtype
    layout: Layout = _of(("contiguous", "contiguous", "transposed", "strided"), variant)
    square = Layer("linear", side, dtype=dtype, layout=layout, bias=variant > 3)
    layers = (square,) * (1 + variant % 2)
    return _gently(case, replace(case.model, inputs=side, layers=layers))


def _length(case: TrainingCase, size: int, variant: int) -> TrainingCase:
    """Train vectors with odd and prime numbers of elements, or about as many as ranks."""
    lengths = (*_LENGTHS, *(max(case.world_size + more, 1) for more in (-1, 0, 1)))
    length, dtype = _of(lengths, size), case.model.layers[0].dtype
    vector = Layer("linear", length, dtype=dtype, bias=True)
    return _gently(case, Model(1 + variant % 3, (vector, Layer("linear", 1, dtype=dtype))))


def _elements(case: TrainingCase, size: int, variant: int) -> TrainingCase:
    """Train tensors with about a power of two of elements."""
    return _long(case, _of(_ELEMENTS, size), variant, bucket_cap=case.bucket_cap)


def _mebibytes(case: TrainingCase, size: int, variant: int) -> TrainingCase:
    """Train tensors of about a mebibyte, in one short step."""
    data = Data(samples=case.world_size, batch_size=1)
    cap, count = _of(_MEBIBYTE_CAPS, variant), _of(_MEBIBYTES, size)
    if case.model.layers[0].dtype == "float64":  # A tensor of as many bytes.
        count = count // 2 + count % 4 - 1
    return _long(case, count, variant, bucket_cap=cap, data=data, steps=1, accumulation=1)


def _long(case: TrainingCase, count: int, variant: int, **changes: Any) -> TrainingCase:
    dtype = case.model.layers[0].dtype
    wide = Layer("linear", count, dtype=dtype, bias=bool(variant % 2))
    model = Model(1, (wide, Layer("linear", 1, dtype=dtype)))
    return _gently(case, model, world_size=min(case.world_size, 3), **changes)


def _steps(case: TrainingCase, size: int, variant: int) -> TrainingCase:
    """Train for up to 40 steps, often with a schedule of the learning rate."""
    # In more steps, integers would leave the exact numbers, and some models would diverge.
    optimizer = replace(case.optimizer, log2_lr=min(case.optimizer.log2_lr, -9))
    model = replace(case.model, layers=case.model.layers[:2])
    changed = _changed(
        case, steps=_of(_STEPS, size), values="real", log2_scale=0, optimizer=optimizer, model=model
    )
    if variant % 2:
        changed = changed.with_situation(RateSchedule((0, -1, -2)))
    # A collective of every tenth step may be in flight at the end of that step.
    return (
        changed.with_situation(Perturbed(Perturbation("withheld"))) if variant % 4 > 1 else changed
    )


def _backwards(case: TrainingCase, size: int, variant: int) -> TrainingCase:
    """Accumulate the gradients of up to 33 backwards, if the case accumulates at all."""
    if case.accumulation == 1:
        return _steps(case, size, variant)
    optimizer = replace(case.optimizer, log2_lr=min(case.optimizer.log2_lr, -9))
    return _changed(case, accumulation=_of(_BACKWARDS, size), steps=2, optimizer=optimizer)


def _batch(case: TrainingCase, size: int, variant: int) -> TrainingCase:
    """Train on batches of up to 64 samples, of which the last may be short."""
    batch_size = _of(_BATCHES, size)
    data = replace(case.data, batch_size=batch_size, samples=case.world_size * batch_size + variant)
    return _gently(case, case.model, data=data)


_GROWN: dict[str, Callable[[TrainingCase, int, int], TrainingCase]] = {
    "parameters": _parameters,
    "layers": _layers,
    "square": _square,
    "length": _length,
    "elements": _elements,
    "mebibytes": _mebibytes,
    "steps": _steps,
    "backwards": _backwards,
    "batch": _batch,
}


def _sizes_of(model: Model) -> list[int]:
    """Return the elements of each parameter of a model."""
    layers = zip(model.layers, model.widths(), strict=False)
    return [size for layer, width in layers for size in layer.sizes(width)]


def _sizes(case: TrainingCase) -> list[int]:
    return _sizes_of(case.model)


LARGE: dict[str, Callable[[TrainingCase], bool]] = {
    "parameters": lambda case: len(_sizes(case)) > 32,
    "layers": lambda case: len(case.model.layers) > 10,
    "square": lambda case: any(
        layer.outputs == width > 8
        for layer, width in zip(case.model.layers, case.model.widths(), strict=False)
    ),
    "length": lambda case: any(size > 12 and size % 2 for size in _sizes(case)),
    "elements": lambda case: max(_sizes(case)) > 1000,
    "mebibytes": lambda case: max(_sizes(case)) > 1 << 16,
    "steps": lambda case: case.steps > 11,
    "backwards": lambda case: case.accumulation > 10,
    "batch": lambda case: case.data.batch_size > 15,
}
"""For each axis, a test for cases that are large along it."""


def has_many_operations(case: TrainingCase) -> bool:
    """Return whether a case is large along an axis that makes its runs long."""
    return any(LARGE[axis](case) for axis in ("parameters", "layers", "steps", "backwards"))
