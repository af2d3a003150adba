"""Variants of a probe that is refused: the same contents in other positions, sizes and worlds.

An implementation may refuse a parameter in one place and train it wrongly in another. A capability
is refused only if no variant shows that.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer
from ddp_invariants.errors import CaseError
from ddp_invariants.situations.capability import Capability

_WIDER = 8
"""Width of the input, and of each layer that may have one, in the wider variant."""


def elsewhere(case: TrainingCase, capability: Capability) -> Iterator[TrainingCase]:
    """Yield valid variants of a case that still contain a capability.

    A variant that changes nothing is left out.
    """
    seen = [case]
    for change in _CHANGES:
        try:
            variant = change(case)
        except CaseError:
            continue
        if variant not in seen and capability.present(variant):
            seen.append(variant)
            yield variant


def _last_first(case: TrainingCase) -> TrainingCase:
    """Move the last layer to the front, where its input is that of the model."""
    *rest, last = case.model.layers
    return _with(case, (last, *rest))


def _in_the_middle(case: TrainingCase) -> TrainingCase:
    """Move the last layer to the middle."""
    *rest, last = case.model.layers
    half = len(rest) // 2
    return _with(case, (*rest[:half], last, *rest[half:]))


def _wider(case: TrainingCase) -> TrainingCase:
    """Give the layers more elements."""
    layers = tuple(
        replace(layer, outputs=_WIDER) if layer.kind == "linear" else layer
        for layer in case.model.layers
    )
    return replace(case, model=replace(case.model, inputs=_WIDER, layers=layers))


def _more_ranks(case: TrainingCase) -> TrainingCase:
    """Add a rank."""
    return replace(case, world_size=case.world_size + 1)


_CHANGES: tuple[Callable[[TrainingCase], TrainingCase], ...] = (
    _last_first,
    _in_the_middle,
    _wider,
    _more_ranks,
)


def _with(case: TrainingCase, layers: tuple[Layer, ...]) -> TrainingCase:
    return replace(case, model=replace(case.model, layers=layers))
