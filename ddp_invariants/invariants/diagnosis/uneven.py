"""Explanations of a wrong gradient when some ranks have run out of batches."""

import numpy as np

from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.cases.program import Exhausted
from ddp_invariants.invariants.recorded import flat_by_name
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import Layout
from ddp_invariants.records.verdict import Cause


def causes(
    view: EvidenceView, step: int, rank: int, active: list[int], layout: Layout
) -> list[Cause]:
    """Return the causes that predict a rank's gradients at a step, all parameters end to end.

    The list is empty if no cause fits.

    Args:
        view: The evidence view of the case.
        step: The step.
        rank: The rank with the wrong gradient.
        active: The ranks that still have a batch.
        layout: The layout of the gradients.
    """
    world_size, declared = view.case.world_size, view.declared.divisor
    local = {number: _computed(view, number, step, layout) for number in active}
    held_P, total_P = (
        flat_by_name(view.of_rank(rank, "reduced", step), layout),
        np.sum(list(local.values()), axis=0),
    )
    out = [ended for ended in view.case.exhausted if ended.rank not in active]
    stale = _stale(view, out, layout)
    left, were = f"the {len(active)} ranks that are left", f"the {world_size} initial ranks"
    by, meant, divisor = (
        (left, were, len(active)) if declared == "initial" else (were, left, world_size)
    )
    kinds: list[tuple[str, str, FloatArray]] = [
        (
            "never reduced",
            f"it equals rank {rank}'s own local gradient: never reduced",
            local[rank],
        ),
        ("never divided", "it is the sum: never divided", total_P),
    ]
    if out:
        kinds += [
            (
                "another divisor",
                f"it is the sum divided by {by}, not by {meant}",
                total_P / divisor,
            ),
            *(
                (
                    "last gradient again",
                    "a rank without batches sends its last gradient again and again",
                    (total_P + stale_P) / world_size,
                )
                for stale_P in stale
            ),
        ]
    tolerance_P = (world_size + 3) * layout.roundoff_P * (np.abs([*local.values(), *stale]).sum(0))
    return [
        Cause(kind, words)
        for kind, words, value_P in kinds
        if bool((np.abs(held_P - value_P) <= tolerance_P).all())
    ]


def _stale(view: EvidenceView, out: list[Exhausted], layout: Layout) -> list[FloatArray]:
    """Return the sums of the last gradients of the ranks without a batch; empty if all have one.

    Such a rank may still hold the last gradient it computed, or the last one it received.
    """
    if not out:
        return []
    computed = [_computed(view, ended.rank, ended.steps - 1, layout) for ended in out]
    received = [
        flat_by_name(view.of_rank(ended.rank, "reduced", ended.steps - 1), layout) for ended in out
    ]
    return [np.sum(last, axis=0) for last in (computed, received)]


def _computed(view: EvidenceView, rank: int, step: int, layout: Layout) -> FloatArray:
    """Return the gradient that a rank computed at a step, over all micro-steps."""
    total: FloatArray = np.sum(
        [
            flat_by_name(view.of_rank(rank, "local", number), layout)
            for number in view.micro_steps(step)
        ],
        axis=0,
    )
    return total
