"""The last step of shrinking: make a failing case simpler by its meaning.

Hypothesis shrinks the choices from which a case was drawn. It deletes a few neighbouring choices at
a time, and a layer takes ten, so models keep layers that do not matter for the failure.
"""

import operator
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer, LayerKind
from ddp_invariants.cases.program import Data, Optimizer
from ddp_invariants.cases.situation import Situation
from ddp_invariants.errors import CaseError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Plan = TypeVar("Plan", bound="DataclassInstance")

_FEW = 8
"""Fields of a training case up to this number are made smaller by all smaller numbers."""
_FEW_DEALT = 40
"""Samples and ranks of a sampler below this number are all tried: such a case takes little time."""


def simpler(case: Case) -> Iterator[Case]:
    """Yield cases that are one step simpler and can be run, the greatest steps first."""
    return _simpler_training(case) if isinstance(case, TrainingCase) else _simpler_shard(case)


def _simpler_training(case: TrainingCase) -> Iterator[TrainingCase]:
    # Situations go first: they are few, and a fault that needs none must not be told with one,
    # even if a large case leaves no runs for the rest.
    for situation in case.situations:
        yield from _tried(case, situations=_without(case, situation))
    for index in range(len(case.model.layers)):
        left = (situation.without_layer(index) for situation in case.situations)
        yield from _tried(
            case,
            layers=without_layer(case.model.layers, index),
            situations=tuple(situation for situation in left if situation is not None),
        )
    yield from _fewer(case, "world_size", 2)
    yield from _fewer(case, "steps")
    yield from _fewer(case, "accumulation")
    yield from _with_defaults(case)
    yield from _with_plainer_parts(case)
    yield from _fewer(case, "rounds")
    for index, layer in enumerate(case.model.layers):
        for plain in simpler_fields(layer, Layer(layer.kind)):
            yield from _tried(case, layers=_with_layer(case, index, plain))
        for outputs in lower(layer.outputs):
            layers = _with_layer(case, index, replace(layer, outputs=outputs))
            yield from _tried(case, layers=layers)
            if case.model.inputs == layer.outputs:  # A square matrix stays square.
                yield from _tried(case, layers=layers, inputs=outputs)
    for inputs in lower(case.model.inputs):
        yield from _tried(case, inputs=inputs)


def _with_layer(case: TrainingCase, index: int, layer: Layer) -> tuple[Layer, ...]:
    """Return the case's layers with another layer in one place."""
    return (*case.model.layers[:index], layer, *case.model.layers[index + 1 :])


def lower(number: int, least: int = 1) -> Iterator[int]:
    """Yield some smaller numbers, the smallest first: each twice as close as the one before.

    A search that goes on from the first that fails finds a threshold in few tries.
    """
    distance = number - least
    while distance > 0:
        yield number - distance
        distance //= 2


def _fewer(case: TrainingCase, name: str, least: int = 1) -> Iterator[TrainingCase]:
    """Yield the case with smaller numbers in a field, the smallest first."""
    most = getattr(case, name)
    for number in range(least, most) if most <= _FEW else lower(most, least):
        yield from _tried(case, **{name: number})


def _with_defaults(case: TrainingCase) -> Iterator[TrainingCase]:
    """Yield the case with one field at its default."""
    defaults = {field.name: field.default for field in fields(case)}
    yield from _tried(case, naming="numbered") if case.model.naming != "numbered" else ()
    for name in (
        "outside",
        "data",
        "optimizer",
        "bucket_cap",
        "values",
        "log2_scale",
        "zero_grad",
        "rounds",
        "seed",
    ):
        if getattr(case, name) != defaults[name]:
            yield from _tried(case, **{name: defaults[name]})
    # An implementation that relies on equal seeds cannot do without equal starts.
    if case.init in ("rearranged", "unset"):
        yield from _tried(case, init="distinct")


def _with_plainer_parts(case: TrainingCase) -> Iterator[TrainingCase]:
    """Yield the case with its data, its optimizer or something that happens one step simpler."""
    parts: dict[str, tuple[Any, Any]] = {
        "data": (case.data, Data()),
        "optimizer": (case.optimizer, Optimizer()),
    }
    for name, (part, plain) in parts.items():
        for simpler_part in simpler_fields(part, plain):
            yield from _tried(case, **{name: simpler_part})
    for situation in case.situations:
        for plainer in situation.simpler():
            yield from _tried(case, situations=(*_without(case, situation), plainer))


def _without(case: TrainingCase, removed: Situation) -> tuple[Situation, ...]:
    """Return the case's situations without one."""
    return tuple(situation for situation in case.situations if situation is not removed)


def simpler_each(
    values: tuple[Any, ...], plainest: Callable[[Any], Any]
) -> Iterator[tuple[Any, ...]]:
    """Yield some plans without one of them, or with a simpler one."""
    for index, value in enumerate(values):
        yield values[:index] + values[index + 1 :]
        for plain in simpler_fields(value, plainest(value)):
            yield (*values[:index], plain, *values[index + 1 :])


def _simpler_shard(case: ShardCase) -> Iterator[ShardCase]:
    for world_size in _smaller(case.world_size, 1):
        yield replace(case, world_size=world_size)
    for samples in _smaller(case.data.samples, 0):
        yield replace(case, data=replace(case.data, samples=samples))
    for data in simpler_fields(case.data, Data(samples=case.data.samples)):
        yield replace(case, data=data)
    if len(case.epochs) > 1:
        yield from (
            replace(case, epochs=case.epochs[:count]) for count in range(1, len(case.epochs))
        )
    for index, situation in enumerate(case.situations):
        rest = case.situations[:index], case.situations[index + 1 :]
        yield replace(case, situations=(*rest[0], *rest[1]))
        for plainer in situation.simpler():
            yield replace(case, situations=(*rest[0], plainer, *rest[1]))
    if case.seed_step != 1:
        yield replace(case, seed_step=1)
    for workers in range(case.workers):
        yield replace(case, workers=workers)
    if case.saved_after is not None:
        yield replace(case, saved_after=None, resumed_by=None)
        yield from (replace(case, saved_after=count) for count in range(case.saved_after))
        sizes = () if case.resumed_by is None else (None, *range(1, case.resumed_by))
        yield from (replace(case, resumed_by=world_size) for world_size in sizes)


def _smaller(number: int, least: int) -> Iterator[int]:
    """Yield smaller numbers: all the smallest ones, and then ever closer ones."""
    few = min(number, least + _FEW_DEALT)
    yield from range(least, few)
    yield from (closer for closer in lower(number, least) if closer >= few)


def simpler_fields(plan: Plan, plainest: Plan) -> Iterator[Plan]:
    """Yield the plan with one field at a time as in the plainest plan."""
    for field in fields(plan):
        if getattr(plan, field.name) != getattr(plainest, field.name):
            try:
                yield replace(plan, **{field.name: getattr(plainest, field.name)})
            except CaseError:
                continue


def without_layer(layers: tuple[Layer, ...], index: int) -> tuple[Layer, ...]:
    """Return the layers without one of them.

    Layers that were tied to it own a weight; the indices of other ties follow.
    """
    rest = layers[:index] + layers[index + 1 :]
    return tuple(
        layer
        if layer.tied is None or layer.tied < index
        else replace(layer, tied=None if layer.tied == index else layer.tied - 1)
        for layer in rest
    )


def without_kinds(case: TrainingCase, *kinds: LayerKind) -> TrainingCase:
    """Return the case without layers of some kinds."""
    for index in reversed(range(len(case.model.layers))):
        if case.model.layers[index].kind in kinds:
            model = replace(case.model, layers=without_layer(case.model.layers, index))
            case = case.with_each(operator.methodcaller("without_layer", index), model=model)
    return case


def _tried(case: TrainingCase, **changes: object) -> Iterator[TrainingCase]:
    """Yield the changed case, or nothing where it cannot be run."""
    model = {name: changes.pop(name) for name in ("layers", "inputs", "naming") if name in changes}
    try:
        yield replace(case, model=replace(case.model, **model), **changes)  # type: ignore[arg-type]  # checked by the case
    except CaseError:
        return
