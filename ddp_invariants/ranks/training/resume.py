"""Ranks of another world size, which train before a case's own ranks and save their state."""

import io
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.ranks.driving.ddp import Driver
from ddp_invariants.ranks.groups.distributed import CaseGroups
from ddp_invariants.ranks.training.setup import Saved, Setup
from ddp_invariants.ranks.training.stepper import Stepper

_KEY = "saved"


def train(case: TrainingCase, number: int, driver: Driver, session: CaseGroups) -> Saved:
    """Train as one of the ranks before, or wait for them; every process of the case takes part.

    The first rank's state goes to the other processes through the store, as through a file.

    Args:
        case: The case, which says how many ranks train before.
        number: This process's number in the default group.
        driver: The implementation under test.
        session: The process groups of the case.
    """
    before = case.before
    saved = Saved(({}, {}), {})
    given, session.subgroup = session.subgroup, None
    try:
        if before.world_size < case.ranks_needed:
            session.subgroup = dist.new_group(list(range(before.world_size)))
        if number < before.world_size:
            saved = _trained(Setup(before, number, driver, session))
    except BaseException as error:  # noqa: BLE001 - the implementation under test may raise anything; it is evidence
        saved = Saved(({}, {}), {}, error)
    finally:
        session.subgroup = given
    if number == 0:
        session.store.set(_KEY, b"" if saved.error is not None else _packed(saved.states))
        return saved
    states = session.store.get(_KEY)
    if saved.error is not None:
        return saved
    if not states:
        return Saved(
            ({}, {}),
            {},
            RuntimeError("nothing was saved: rank 0 raised in the training before"),
        )
    here = {"cuda:0": str(session.rank_device.device)}  # The first rank saved from its own device.
    return Saved(torch.load(io.BytesIO(states), weights_only=False, map_location=here), saved.own)


def _trained(setup: Setup) -> Saved:
    """Train as one rank of those before, and return its state."""
    stepper = Stepper(setup)
    trained, observer = stepper.trained, stepper.observer
    trained.start(setup)
    stepper.begin()
    stepper.take_steps()
    states = deepcopy((trained.stateful.state_dict(), trained.optimizer.state_dict()))
    own: dict[str, Any] = {
        "saved": observer.named,
        "saved buffers": list(trained.replica.named_buffers()),
        "saved state": list(observer.optimizer_state()),
    }
    trained.drive.teardown(setup.context)
    return Saved(
        states,
        {
            moment: [(name, tensor.detach().clone()) for name, tensor in tensors]
            for moment, tensors in own.items()
        },
    )


def _packed(states: tuple[Any, Any]) -> bytes:
    """Return states as in a file. Only ranks of one case exchange it."""
    file = io.BytesIO()
    torch.save(states, file)
    return file.getvalue()
