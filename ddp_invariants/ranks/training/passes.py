"""The orders in which the forwards and backwards of a step's micro-steps follow one another.

`PASSES` has one function for each value of `TrainingCase.passes`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ddp_invariants.cases.case import Passes

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper

Quiet = list[tuple[list[int], list[int]]]
"""Per backward without communication, how many collectives each group had sent before and after."""


def _alternate(stepper: "Stepper", dealt: list[Any]) -> Quiet:
    """Run each micro-step's forward and backward in turn, and all but the last quietly.

    An implementation without `no_sync` communicates in each.
    """
    trained, effects = stepper.trained, stepper.effects
    last, each = len(dealt) - 1, trained.drive.driven["accumulation"] != "no_sync"
    quiet: Quiet = []
    for micro_step, indices in enumerate(dealt):
        if micro_step < last and not each:
            with trained.drive.accumulate(trained.wrapped):
                for effect in effects:
                    effect.inside_no_sync(stepper)
                quiet.append(_micro_step(stepper, micro_step, indices))
            continue
        for effect in () if each else effects:
            effect.before_synchronised_pass(stepper)
        _micro_step(stepper, micro_step, indices)
        stepper.position.phase = "synchronisation"
        trained.after_backward()
    return quiet


def _micro_step(stepper: "Stepper", micro_step: int, indices: Any) -> tuple[list[int], list[int]]:
    """Run one forward and backward, and repeat them on the twin.

    Returns:
        How many collectives each group had sent before and after the backward.
    """
    position, observer, session = stepper.position, stepper.observer, stepper.setup.session
    batch = stepper.program.batch(indices, position.step)
    stepper.prepare(micro_step)
    position.phase, observer.watching = "forward", micro_step == 0
    loss, share = stepper.forward(batch, micro_step)
    position.phase = "backward"
    start = session.counts()
    observer.backward_begins()
    stepper.backward(share)
    span = start, session.counts()
    position.phase = "twin"
    if micro_step == 0:
        observer.after_forwards()
    stepper.twin.micro_step(micro_step, batch, loss)
    return span


def _joint(stepper: "Stepper", dealt: list[Any]) -> Quiet:
    """Run all forwards, then one backward of their summed losses."""
    position, observer = stepper.position, stepper.observer
    batches = [stepper.program.batch(indices, position.step) for indices in dealt]
    position.phase, observer.watching = "forward", True
    forwards: list[tuple[Tensor, Tensor]] = []
    for micro_step, batch in enumerate(batches):
        stepper.prepare(micro_step)
        forwards.append(stepper.forward(batch, micro_step))
    position.phase = "backward"
    observer.backward_begins()
    stepper.trained.backward(torch.stack([share for _, share in forwards]).sum())
    position.phase = "synchronisation"
    stepper.trained.after_backward()
    position.phase = "twin"
    observer.after_forwards()
    stepper.twin.joint(batches, [loss for loss, _ in forwards])
    return []


def _retained(stepper: "Stepper", dealt: list[Any]) -> Quiet:
    """Run one forward on the first batch, and each micro-step's backward through it."""
    position, observer = stepper.position, stepper.observer
    batches = [stepper.program.batch(indices, position.step) for indices in dealt]
    position.phase, observer.watching = "forward", True
    stepper.prepare(0)
    loss, share = stepper.forward(batches[0], *range(len(batches)))
    position.phase = "backward"
    observer.backward_begins()
    for micro_step in range(len(dealt)):
        share.backward(retain_graph=micro_step < len(dealt) - 1)
        stepper.trained.after_backward()
    position.phase = "twin"
    observer.after_forwards()
    for micro_step, batch in enumerate(batches):
        stepper.twin.micro_step(micro_step, batch, loss)
    return []


PASSES: dict[Passes, Callable[["Stepper", list[Any]], Quiet]] = {
    "alternate": _alternate,
    "joint": _joint,
    "retained": _retained,
}
"""The function that runs a step's passes, by their order."""
