"""Checks of training with a loss scaler: the skipped steps, and the scale after each step."""

from dataclasses import replace

import numpy as np

from ddp_invariants.cases.program import LossScale
from ddp_invariants.invariants.compare import parted
from ddp_invariants.invariants.rule import Tally
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.verdict import Failure


def next_scale(plan: LossScale, scale: float, made_in_a_row: int) -> tuple[float, int]:
    """Return the scale after a step, and the number of steps that count towards its growth."""
    if made_in_a_row == 0:
        return scale * 2.0**-plan.log2_backoff, 0
    return (
        (scale, made_in_a_row)
        if made_in_a_row < plan.interval
        else (scale * 2.0**plan.log2_growth, 0)
    )


def wrongly_skipped(
    view: EvidenceView, step: int, skips: list[bool], *, overflows: bool | None
) -> Failure | None:
    """Return a failure if ranks disagree on a step, or agree on the wrong choice."""
    world_size = len(skips)
    if len(set(skips)) == 1 and overflows in (None, skips[0]):
        return None
    rank = skips.index(not overflows) if overflows is not None else skips.index(not skips[0])
    opposed = [str(number) for number, skipped in enumerate(skips) if skipped != skips[rank]]
    whose = (
        "all gradients are finite"
        if overflows is False
        else "the order of summation decides whether gradients overflow"
        if overflows is None
        else f"a gradient is not finite on rank {', '.join(map(str, _overflowing(view, step)))}"
    )
    fact = (
        "ranks skip different steps"
        if opposed
        else (
            f"a step is {'skipped' if skips[rank] else 'made'} although "
            f"{'no' if skips[rank] else 'a'} gradient overflows"
        )
    )
    got = (
        f"it {'skips' if skips[rank] else 'makes'} the step"
        + (
            f", rank {', '.join(opposed)} {'makes' if skips[rank] else 'skips'} it"
            if opposed
            else ""
        )
        + f"; {whose}"
    )
    return _with_held_gradients(
        view, Failure("PARAM-6", fact, f"rank {rank} of {world_size}, step {step}", got), step
    )


def _overflowing(view: EvidenceView, step: int) -> list[int]:
    """Return the ranks that computed a gradient that is not finite."""
    return [
        rank
        for rank in range(view.case.world_size)
        if not all(
            np.isfinite(view.every_rank("local", micro)[rank].values_P).all()
            for micro in view.micro_steps(step)
        )
    ]


def _with_held_gradients(view: EvidenceView, failure: Failure, step: int) -> Failure:
    """Add the ranks whose synchronised gradients are not finite to the failure.

    A scaler reads the synchronised gradients.
    """
    reduced = view.noted("reduced", step)
    if reduced is None:
        return failure
    not_finite = [
        str(rank) for rank, tensors in enumerate(reduced) if not np.isfinite(tensors.values_P).all()
    ]
    held = (
        f"not finite only on rank {', '.join(not_finite)}"
        if 0 < len(not_finite) < len(reduced)
        else "not finite on all ranks"
        if not_finite
        else "finite on all ranks"
    )
    return replace(failure, got=f"{failure.got}; after synchronisation they are {held}")


def wrong_scale(view: EvidenceView, step: int, expected: float) -> Failure | None:
    """Return a failure if a rank's scale after a step differs from the scale its factors give."""
    for rank, evidence in enumerate(view.evidence.ranks):
        if evidence.scales[step] != expected:
            return Failure(
                "PARAM-6",
                "the loss scale does not follow from its growth and backoff",
                f"rank {rank} of {view.case.world_size}, after step {step}",
                f"{evidence.scales[step]:g}, expected {expected:g}",
            )
    return None


def moved_by_a_skipped_step(view: EvidenceView, tally: Tally, step: int) -> Failure | None:
    """Return a failure if a skipped step moves a parameter or the optimizer's state.

    State that a skipped step creates must be zero.
    """
    where = f"of {view.case.world_size}, step {step}"
    for rank, (started, left) in enumerate(
        zip(view.every_rank("forward", step), view.every_rank("updated", step), strict=True)
    ):
        tally.compared += sum(left.layout.sizes)
        difference = parted(started, left, "the step started from")
        if difference is not None:
            return Failure(
                "PARAM-6",
                "a skipped step moves parameters",
                f"rank {rank} {where}, {difference.place}",
                difference.words,
            )
    states = view.noted("state", step)
    if states is None or (step and view.noted("state", step - 1) is None):
        return None
    for rank, after in enumerate(states):
        before = view.every_rank("state", step - 1)[rank].by_name if step else {}
        for name, value in after.by_name.items():
            tally.compared += value.size
            if not np.array_equal(value, before.get(name, np.zeros_like(value)), equal_nan=True):
                return Failure(
                    "PARAM-6",
                    "a skipped step changes the optimizer's state",
                    f"rank {rank} {where}, {name!r}",
                    f"{value.ravel()[:4]}, expected "
                    f"{before.get(name, np.zeros_like(value)).ravel()[:4]}",
                )
    return None
