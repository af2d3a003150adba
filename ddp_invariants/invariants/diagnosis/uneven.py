"""What a wrong gradient equals where some ranks have run out of batches."""

import numpy as np

from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.invariants.view import EvidenceView, flat_by_name
from ddp_invariants.records.evidence import Layout, Moment
from ddp_invariants.records.verdict import Cause


def causes(
    view: EvidenceView, step: int, rank: int, active: list[int], layout: Layout
) -> list[Cause]:
    """What a rank's gradients at a step may be wrong by, all parameters end to end; empty where nothing fits.

    Args:
        view: Of the case.
        step: Which.
        rank: Whose gradient is wrong.
        active: The ranks that still have a batch.
        layout: How the gradients are laid out.
    """
    world_size, declared = view.case.world_size, view.declared.divisor
    local = {one: flat_by_name(view.of_rank(one, "local", step), layout) for one in active}
    held_P, total_P = (
        flat_by_name(view.of_rank(rank, "reduced", step), layout),
        np.sum(list(local.values()), axis=0),
    )
    # What a rank without a batch computed last, or got for it, may still be there.
    out = [one for one in view.case.exhausted if one.rank not in active]
    moments: tuple[Moment, ...] = ("local", "reduced")
    stale = [
        np.sum(
            [flat_by_name(view.of_rank(one.rank, moment, one.steps - 1), layout) for one in out],
            axis=0,
        )
        for moment in moments
        if out
    ]
    left, were = f"the {len(active)} ranks that are left", f"the {world_size} there were"
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
