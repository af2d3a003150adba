"""Lasting cases: a drawn case that goes on for a few more steps, or for twenty.

Some code changes its course after a few steps: it has learned by then which parameters are used, or
it looks at something only now and then. It may also stop looking once enough steps were alike. Most
drawn cases end before.
"""

from dataclasses import replace

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.program import Unused
from ddp_invariants.errors import CaseError
from ddp_invariants.search.scale import LARGE
from ddp_invariants.situations.unused import UnusedLayers, passable

STEPS = (5, 6, 7, 8)
"""The steps of a lasting case. Most other cases have fewer; a few, which `scale` draws, have more."""
LONG = 5
"""The number that chooses `LONG_STEPS`."""
LONG_STEPS = 20
_SMALL_RATE = -9
"""Binary logarithm of a learning rate at which most models do not diverge in that time."""


def lasting(case: TrainingCase, number: int) -> TrainingCase:
    """Return a drawn case with more steps, unchanged if it cannot have them, or is slow.

    Args:
        case: The case.
        number: The number that chooses the steps: `LONG` stands for twenty, any other number for 5
            to 8. With `LONG`, the last two steps pass a layer by. With any other odd number, no
            rank uses a layer before the last two steps, if the case has unused layers.
    """
    steps = LONG_STEPS if number == LONG else STEPS[number % len(STEPS)]
    # Delays before each collective make a case of many steps slow.
    delayed = case.perturbation.kind not in ("none", "withheld")
    slow = delayed or any(is_large(case) for is_large in LARGE.values())
    if slow or case.rounds > 1 or case.kills or case.steps >= steps:
        return case
    optimizer = replace(case.optimizer, log2_lr=min(case.optimizer.log2_lr, _SMALL_RATE))
    try:
        longer = replace(
            case,
            steps=steps,
            optimizer=optimizer,
            # In more steps, integers would leave the exact numbers.
            values="real" if case.values == "integer" else case.values,
            log2_scale=min(case.log2_scale, 0),
        )
    except CaseError:
        return case
    if number == LONG:
        return _unused_late(longer)
    return _used_late(longer) if number % 2 else longer


def _unused_late(case: TrainingCase) -> TrainingCase:
    """Return the case with one unused layer, which only the last two steps pass by.

    The last rank alone does so first. The case is unchanged if no layer can be passed by.
    """
    found, last = case.get(UnusedLayers), case.steps - 1
    layers = passable(case.model) if found is None else [found.layers[0].layer]
    if not layers:
        return case
    layer = layers[0]
    late = UnusedLayers(
        (Unused(layer, rank=case.world_size - 1, step=last - 1), Unused(layer, step=last))
    )
    lasting_case: TrainingCase = late.fitted_or_left_out(case)
    return lasting_case


def _used_late(case: TrainingCase) -> TrainingCase:
    """Return the case with one unused layer in place of all, which the last two steps use.

    The case is unchanged if it has no unused layers, or if nothing else would be trained.
    """
    found = case.get(UnusedLayers)
    if found is None:
        return case
    layer = found.layers[0].layer
    late = UnusedLayers(tuple(Unused(layer, step=step) for step in range(case.steps - 2)))
    lasting_case: TrainingCase = late.fitted_or_left_out(case)
    return lasting_case
