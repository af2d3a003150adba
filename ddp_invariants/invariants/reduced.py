"""The gradients after synchronisation, against the values that every rank must hold.

A rank's local gradient is that of its twin: the unwrapped module with the same parameters, batch
and random state.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.invariants.compare import outside
from ddp_invariants.invariants.diagnosis import gradients
from ddp_invariants.invariants.recorded import flat_by_name
from ddp_invariants.invariants.rule import Tally
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.oracle.balls import Ball
from ddp_invariants.records.evidence import Layout, Tensors
from ddp_invariants.records.verdict import Failure

TWO_RANKS = "more than one rank"


LOCAL_DIFFERED = "local gradients differed between ranks"


def _distinct(records: tuple[Tensors, ...]) -> list[int]:
    """Return the ranks to judge: the first rank, and every rank that holds other bits."""
    return [rank for rank, tensors in enumerate(records) if rank == 0 or tensors != records[0]]


def against(
    view: EvidenceView, tally: Tally, rule: str, fact: str, step: int, expected: Ball
) -> Failure | None:
    """Compare the ranks' gradients after synchronisation with a ball in the twins' layout."""
    reduced, local = (
        view.every_rank("reduced", step),
        view.every_rank("local", view.micro_steps(step)[0]),
    )
    if view.declared.gradients == "owner":
        held_P = by_owner(
            view, step, lambda held_WP: np.abs(held_WP - expected.centre) <= expected.radius
        )
        difference = outside(local[0], held_P, expected, tally)
        return (
            None
            if difference is None
            else Failure(
                rule,
                fact,
                f"every rank of {view.case.world_size} that holds it, step {step}, "
                f"{difference.place}",
                difference.words,
            )
        )
    for rank in _distinct(reduced):
        held_P = flat_by_name(reduced[rank], local[rank].layout)
        difference = outside(local[rank], held_P, expected, tally)
        if difference is not None:
            failure = Failure(
                rule,
                fact,
                f"rank {rank} of {view.case.world_size}, step {step}, {difference.place}",
                difference.words,
            )
            return gradients.of_gradient(view, failure, step, rank, difference.name)
    return None


def _present(tensors: Tensors, layout: Layout) -> NDArray[np.bool_]:
    """Return a mask of the layout's elements that a record has. Shape (P,)."""
    return np.repeat([slot.name in tensors.by_name for slot in layout.slots], layout.sizes)


def by_owner(
    view: EvidenceView, step: int, right: Callable[[FloatArray], NDArray[np.bool_]]
) -> FloatArray:
    """Return each parameter's gradient from the rank that owns it. Shape (P,).

    The owner is the rank with the right value, or else the first rank with a gradient. On any other
    rank, `.grad` has no meaning.

    Args:
        view: The evidence view of the case.
        step: The step.
        right: Returns a mask of the right elements of all ranks' gradients, shape (W, P).
    """
    layout = view.layout(step)
    held_WP = np.stack(
        [flat_by_name(tensors, layout) for tensors in view.every_rank("reduced", step)]
    )
    present_WP = np.stack(
        [_present(tensors, layout) for tensors in view.every_rank("reduced", step)]
    )
    right_WP = present_WP & right(held_WP)
    held_P: FloatArray = held_WP[0].copy()
    for start, end in pairwise(layout.starts):
        owner = next(
            (rank for rank, right in enumerate(right_WP[:, start:end]) if right.all()),
            int(np.argmax(present_WP[:, start:end].any(1))),
        )
        held_P[start:end] = held_WP[owner, start:end]
    return held_P


def unowned(view: EvidenceView, step: int) -> str:
    """Return the name of a parameter whose gradient no rank holds; empty if there is none.

    A parameter that no rank used at the step, or that was frozen then, need not have a gradient.
    """
    reduced = view.every_rank("reduced", step)
    without = frozenset.intersection(*view.unused(step)) | view.left_frozen(step)
    return next(
        (
            slot.name
            for slot in view.layout(step).slots
            if slot.elements
            and slot.name not in without
            and not any(slot.name in tensors.by_name for tensors in reduced)
        ),
        "",
    )


def mean_at(view: EvidenceView, tally: Tally, rule: str, fact: str, step: int) -> Failure | None:
    """Compare a step's gradients with the mean of the twins' gradients."""
    failure = against(view, tally, rule, fact, step, view.expected.local_means(step))
    tally.meet({LOCAL_DIFFERED: locals_differ(view, step)})
    return failure


def locals_differ(view: EvidenceView, step: int) -> bool:
    """Return whether the ranks' local gradients of a step differ."""
    records = [view.every_rank("local", number) for number in view.micro_steps(step)]
    return any(tensors != record[0] for record in records for tensors in record[1:])


def mean_with(view: EvidenceView, tally: Tally, rule: str, met: set[str]) -> Failure | None:
    """Compare every step's gradients with the twins' mean, in the cases of a rule."""
    tally.meet({TWO_RANKS: view.case.world_size > 1})
    for step in view.steps("reduced")[: view.clean_steps]:
        failure = mean_at(
            view,
            tally,
            rule,
            f"with {' and '.join(sorted(met))}, the gradient is not the mean of the "
            "ranks' local gradients",
            step,
        )
        tally.met |= met
        if failure is not None:
            return failure
    return None
