"""Name the probable cause of a wrong gradient, with the number that shows it. Unknown stays unknown.

Each candidate is an explanation that predicts a value; one is named only if it predicts every wrong element of the
parameter within rounding, and the right value does not.
"""

from collections.abc import Callable

import numpy as np

from ddp_invariants.case import SENTINEL
from ddp_invariants.evidence import FloatArray, Tensors
from ddp_invariants.invariants.hearing import Hearing

_ROUNDINGS = 16
"""Roundings a prediction may be off by: it is made from local gradients as computed, by a handful of operations."""


def of_gradient(hearing: Hearing, step: int, rank: int, name: str) -> str:
    """What a rank's synchronised gradient of a parameter equals instead of the mean; empty when nothing fits."""
    try:
        return _of_gradient(hearing, step, rank, name)
    except (KeyError, ValueError, IndexError):
        return ""  # The evidence is as odd as the gradient; the breach stands without a cause.


def _of_gradient(hearing: Hearing, step: int, rank: int, name: str) -> str:
    local, reduced = [hearing.noted("local", number) for number in hearing.micro_steps(step)], hearing.noted("reduced", step)
    if None in local or reduced is None:
        return ""
    held = reduced[rank].by_name.get(name)
    locals_KW = [[tensors.by_name.get(name) for tensors in record] for record in local if record is not None]
    if held is None or any(g is None or g.shape != held.shape or not np.isfinite(g).all() for row in locals_KW for g in row):
        return ""
    g_KW = np.stack([np.stack([g for g in row if g is not None]) for row in locals_KW])
    g_W = g_KW.sum(0)
    world_size, mean = len(g_W), g_W.mean(0)
    roundoff = _roundoff(reduced[rank], name)
    scale = np.abs(g_KW).sum((0, 1))

    def equals(prediction: FloatArray) -> bool:
        close = np.abs(held - prediction) <= _ROUNDINGS * roundoff * np.maximum(scale, np.abs(prediction))
        apart = np.abs(mean - prediction) > _ROUNDINGS * roundoff * scale
        return bool(close.all() and apart.any())

    candidates: list[tuple[FloatArray, str]] = [
        (g_W[rank], f"it equals rank {rank}'s own local gradient: never reduced"),
        (np.zeros_like(mean), "it is zero: the gradient was lost"),
        (mean * world_size, f"got / expected = {world_size} = world size: summed, never divided"),
        (mean / world_size, f"got / expected = 1/{world_size} = 1 / world size: divided twice"),
        *((g_W[other], f"it equals rank {other}'s local gradient: broadcast instead of reduced")
          for other in range(world_size) if other != rank),
        (2 * mean, "got / expected = 2: accumulated once too often"),
    ]
    if (g_W != g_W[0]).any():  # Otherwise it is as well the mean divided once more.
        divided = f"it equals rank {rank}'s own local gradient / {world_size}: divided, but not reduced or not waited for"
        candidates.insert(1, (g_W[rank] / world_size, divided))
    if len(g_KW) > 1:
        own = f"only the last micro-step was reduced: what was accumulated before is still rank {rank}'s own"
        # First: where the last batch is shared, this is the local gradient too, and one never reduced shows without K.
        candidates = [(g_KW[:-1, rank].sum(0) + g_KW[-1].mean(0), own), *candidates,
                      (g_KW[-1].mean(0), "it is the mean of the last micro-step alone: the earlier ones were lost")]
    before = hearing.noted("reduced", step - 1) if step else None
    if before is not None and name in before[rank].by_name and before[rank].by_name[name].shape == mean.shape:
        left = before[rank].by_name[name]
        candidates += [(left, f"it equals step {step - 1}'s gradient: stale"),
                       (left + mean, f"it is the mean plus step {step - 1}'s gradient: not cleared")]
    if hearing.case.perturbation.kind == "withheld":
        waiting = "it is what a buffer holds while its result is withheld: read before it was waited for"
        candidates += [(np.full_like(mean, SENTINEL * factor), waiting) for factor in (1, world_size, 1 / world_size)]
    for prediction, cause in candidates:
        if equals(prediction):
            return cause
    return _constant_factor(mean, world_size, equals) or _swapped(hearing, step, rank, name, held, roundoff)


def _roundoff(tensors: Tensors, name: str) -> float:
    layout = tensors.layout
    number = [slot.name for slot in layout.slots].index(name)
    start = layout.starts[number]
    return float(layout.roundoff_P[start]) if layout.sizes[number] else 0.0


def _constant_factor(mean: FloatArray, world_size: int, equals: Callable[[FloatArray], bool]) -> str:
    """Whether all elements are off by one factor k / W of the mean: a hard-coded denominator."""
    largest = np.unravel_index(int(np.argmax(np.abs(mean))), mean.shape) if mean.size else None
    if largest is None or mean[largest] == 0:
        return ""
    for divisor in range(1, 9):
        factor = world_size / divisor
        if divisor != world_size and equals(mean * factor):
            return (f"got / expected = {factor:.4g} = world size / {divisor}: the sum was divided by {divisor}, "
                    f"not by {world_size}")
    return ""


def _swapped(hearing: Hearing, step: int, rank: int, name: str, held: FloatArray, roundoff: float) -> str:
    local = [hearing.every_rank("local", number) for number in hearing.micro_steps(step)]
    for other in local[0][rank].by_name:
        if other == name or any(t.by_name[other].shape != held.shape for t in local[0]):
            continue
        mean = np.sum([np.mean([t.by_name[other] for t in record], axis=0) for record in local], axis=0)
        if np.any(mean) and (np.abs(held - mean) <= _ROUNDINGS * roundoff * np.abs(mean)).all():
            return f"it equals the mean of {other!r}, of equal shape: swapped"
    return ""
