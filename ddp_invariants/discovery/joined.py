"""Probes joined into one case: if every rule holds in it, each capability in it is right.

Most implementations offer most capabilities. A case with several of them costs little more than a
case with one, so one run answers for all of them. If a joined case fails, both halves of its
capabilities are tried, and in the end each is probed alone.
"""

from dataclasses import fields, replace
from functools import cache, reduce
from typing import Any, TypeVar

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Optimizer
from ddp_invariants.cases.situation import Situation
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.errors import CaseError
from ddp_invariants.situations.capability import BASE, FOUR

Value = TypeVar("Value")

MOST = 6
"""Capabilities of a joined case at most: a longer case would repeat more probes if it fails."""


@cache
def groups() -> tuple[tuple[str, ...], ...]:
    """Return the groups of capabilities whose probes are joined, each of at least two."""
    made: list[tuple[str, ...]] = []
    for name, capability in TRAINING.items():
        if not _joins(capability.probe):
            continue
        for index, names in enumerate(made):
            if len(names) < MOST and joined((*names, name)) is not None:
                made[index] = (*names, name)
                break
        else:
            made.append((name,))
    return tuple(names for names in made if len(names) > 1)


@cache
def joined(names: tuple[str, ...]) -> TrainingCase | None:
    """Return a case that contains what the probes of some capabilities contain.

    Returns:
        The case; None if no case contains them all.
    """
    try:
        case = reduce(_both, (TRAINING[name].probe for name in names))
    except CaseError:
        return None
    return case if all(TRAINING[name].present(case) for name in names) else None


def _joins(probe: TrainingCase) -> bool:
    """Return whether a probe can be joined to others without hiding what they show."""
    return (
        probe.model.layers[: len(FOUR)] == FOUR
        and (probe.world_size, probe.outside, probe.data)
        == (BASE.world_size, BASE.outside, BASE.data)
        and all(situation.joins for situation in probe.situations)
    )


def _both(first: TrainingCase, second: TrainingCase) -> TrainingCase:
    """Return a case that contains what two probes contain.

    Raises:
        CaseError: No case does.
    """
    more = second.model.layers[len(FOUR) :]
    steps = max(first.steps, second.steps)
    values = "real" if "real" in (first.values, second.values) else first.values
    changes: dict[str, Any] = {
        field.name: _either(
            getattr(first, field.name), getattr(second, field.name), getattr(BASE, field.name)
        )
        for field in fields(TrainingCase)
        if field.name not in ("model", "situations", "optimizer", "steps", "values")
    }
    return replace(
        first,
        model=replace(
            _extended(first.model, more),
            naming=_either(first.model.naming, second.model.naming, BASE.model.naming),
        ),
        situations=situations_of(first, second),
        optimizer=_optimizer(first.optimizer, second.optimizer),
        steps=steps,
        values=values,
        **changes,
    )


def _extended(model: Model, more: tuple[Layer, ...]) -> Model:
    """Return a model with more layers, which get inputs as wide as the model's."""
    width = model.widths()[-1]
    between = (Layer("linear", model.inputs),) if more and width != model.inputs else ()
    return replace(model, layers=(*model.layers, *between, *more))


def _either(first: Value, second: Value, plain: Value) -> Value:
    """Return the value of two that is not the plain one.

    Raises:
        CaseError: Neither is, and they differ.
    """
    if second in (plain, first):
        return first
    if first == plain:
        return second
    raise CaseError(f"{first} and {second} exclude each other")


def _optimizer(first: Optimizer, second: Optimizer) -> Optimizer:
    """Return an optimizer with the options of two.

    Raises:
        CaseError: They exclude each other.
    """
    plain = Optimizer()
    options: dict[str, Any] = {
        field.name: _either(
            getattr(first, field.name), getattr(second, field.name), getattr(plain, field.name)
        )
        for field in fields(Optimizer)
    }
    return Optimizer(**options)


def situations_of(first: TrainingCase, second: TrainingCase) -> tuple[Situation, ...]:
    """Return the situations of two cases, those of one kind as one.

    Raises:
        CaseError: Two of one kind exclude each other.
    """
    situations = {situation.kind: situation for situation in first.situations}
    for situation in second.situations:
        other = situations.get(situation.kind)
        situations[situation.kind] = situation if other is None else other.joined(situation)
    return tuple(situations.values())
