"""Ranks of another number, which train before a case's own and save what these go on from."""

import io
from typing import Any

import torch
import torch.distributed as dist

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.ranks.driving.ddp import Driver
from ddp_invariants.ranks.groups.distributed import Session
from ddp_invariants.ranks.training.run import Run, Saved

_KEY = "saved"


def train(case: TrainingCase, number: int, driver: Driver, session: Session) -> Saved:
    """Train as one of those before, or wait for them; every process of the case takes part.

    What is saved goes to the others through the store, as through a file, and is the first rank's.

    Args:
        case: Which says how many they are.
        number: This process's, in the default group.
        driver: The implementation on trial.
        session: The process groups of the case.
    """
    before = case.before
    saved = Saved(({}, {}), {})
    given, session.subgroup = session.subgroup, None
    try:
        if before.world_size < case.ranks_needed:
            session.subgroup = dist.new_group(list(range(before.world_size)))
        if number < before.world_size:
            saved = Run(before, number, driver, session).before(driver)
    except BaseException as error:  # noqa: BLE001 - the implementation on trial may raise anything; it is evidence
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
            RuntimeError("nothing was saved: rank 0 of those that train before raised"),
        )
    here = {"cuda:0": str(session.place.device)}  # What was saved is the first rank's.
    return Saved(torch.load(io.BytesIO(states), weights_only=False, map_location=here), saved.own)


def _packed(states: tuple[Any, Any]) -> bytes:
    """As in a file, which the ranks of one case hand to one another and nobody else."""
    file = io.BytesIO()
    torch.save(states, file)
    return file.getvalue()
