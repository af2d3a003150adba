"""Crossed cases: a drawn case that also contains what the probe of another capability contains.

Many faults show only where two things meet: an infinite gradient in float16, or a layer that the
last micro-step leaves unused. By chance two rare features hardly ever meet in one case.
"""

from dataclasses import fields, replace
from typing import Any

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.dtypes import DTYPES
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Optimizer
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.joined import situations_of
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.search.scale import has_many_operations, takes_long
from ddp_invariants.situations.capability import BASE, FOUR

_KEPT = ("model", "situations", "optimizer", "steps", "accumulation", "values", "data", "seed")
"""Fields that are not simply taken from the probe."""
_MOST_LAYERS = 12
MOST_COMPUTED = 5_000_000
"""Numbers that a crossed case may compute; a run of as many takes about two seconds.

A large tensor is drawn for one short step. Some additions need many steps, with which a single case
took longer than a hundred others.
"""
_GENTLE_RATE, _SMALL_RATE = -9, -12
"""Binary logarithms of learning rates at which crossed models do not diverge in a few steps."""

CROSSED = tuple(
    name for name, capability in TRAINING.items() if capability.probe.model.layers[:4] == FOUR
)
"""The capabilities that can be added to a case."""


def crossed(case: TrainingCase, name: str, scope: Scope) -> TrainingCase:
    """Return a drawn case with a capability, unchanged if it cannot have the capability.

    Args:
        case: The case.
        name: One of `CROSSED`.
        scope: The limits of cases, to which the result can be fitted.
    """
    capability = TRAINING[name]
    if capability.present(case) or case.rounds > 1 or case.kills:
        return case
    try:
        joint = _with(case, capability.probe)
        scope.fit(joint)
    except CaseError:
        return case
    if takes_long(joint) and has_many_operations(joint):
        return case  # In anomaly mode it would take half a minute.
    if computed(joint) > max(MOST_COMPUTED, computed(case)):
        return case
    return joint if capability.present(joint) else case


def computed(case: TrainingCase) -> int:
    """Return how many numbers all gradients of a run have, on all ranks and in all micro-steps."""
    return case.model.numbers * case.forwards


def _with(case: TrainingCase, probe: TrainingCase) -> TrainingCase:
    """Return a case with what a probe adds to the simplest case.

    Raises:
        CaseError: The case cannot have it.
    """
    layers = (*case.model.layers, *probe.model.layers[len(FOUR) :])
    if len(layers) > _MOST_LAYERS:
        raise CaseError("the model would have too many layers")
    changes = {
        field.name: getattr(probe, field.name)
        for field in fields(TrainingCase)
        if field.name not in _KEPT and getattr(probe, field.name) != getattr(BASE, field.name)
    }
    narrow = any(DTYPES[layer.dtype].largest < DTYPES["float32"].largest for layer in layers)
    return replace(
        case,
        model=_extended(case.model, probe.model),
        situations=situations_of(case, probe),
        optimizer=_optimizer(case.optimizer, probe.optimizer),
        steps=max(case.steps, probe.steps),
        accumulation=max(case.accumulation, probe.accumulation),
        values="real" if case.values in ("faint", "scarce") else case.values,
        log2_scale=min(case.log2_scale, 0) if narrow else case.log2_scale,
        data=replace(case.data, samples=max(case.data.samples, changes.get("world_size", 1))),
        **changes,
    )


def _extended(model: Model, probed: Model) -> Model:
    """Return a model with a probe's names and its further layers, which get four numbers each."""
    more = probed.layers[len(FOUR) :]
    naming = model.naming if probed.naming == BASE.model.naming else probed.naming
    dtype = model.layers[0].dtype
    fits = not more or model.widths()[-1] == BASE.model.inputs
    widened = () if fits else (Layer("linear", 4, dtype=dtype),)
    return replace(model, layers=(*model.layers, *widened, *more), naming=naming)


def _optimizer(own: Optimizer, probed: Optimizer) -> Optimizer:
    """Return an optimizer with the options of a probe, at a small rate."""
    plain = Optimizer()
    changes: dict[str, Any] = {
        field.name: getattr(probed, field.name)
        for field in fields(Optimizer)
        if field.name != "log2_lr" and getattr(probed, field.name) != getattr(plain, field.name)
    }
    if changes.get("kind", own.kind) != own.kind:
        return replace(probed, log2_lr=min(own.log2_lr, _SMALL_RATE))
    if changes.get("momentum") and own.momentum:
        del changes["momentum"]
    if own.kind != "sgd":
        shared = ("weight_decay", "kernels", "maximize")
        changes = {name: changes[name] for name in changes if name in shared}
    return replace(own, log2_lr=min(own.log2_lr, _GENTLE_RATE), **changes)
