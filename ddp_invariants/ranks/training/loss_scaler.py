"""A loss scaler as a program uses one: torch's own, one on every rank, which knows of no other rank."""

from typing import Any

import torch

from ddp_invariants.cases.case import TrainingCase


def scaler_of(case: TrainingCase, device: torch.device) -> torch.amp.GradScaler | None:
    """The case's scaler of gradients on a device before its first step; None where it has none."""
    plan = case.scaler
    return (
        None
        if plan is None
        else torch.amp.GradScaler(
            device.type,
            init_scale=2.0**plan.log2_scale,
            growth_factor=2.0**plan.log2_growth,
            backoff_factor=2.0**-plan.log2_backoff,
            growth_interval=plan.interval,
        )
    )


def unscale(case: TrainingCase, scaler: torch.amp.GradScaler, optimizer: Any) -> None:
    """Unscale gradients where the program does so itself: where it says so, and where it clips them."""
    assert case.scaler is not None
    if case.scaler.unscaled or case.clip is not None:
        scaler.unscale_(optimizer)


def step(scaler: torch.amp.GradScaler, optimizer: Any) -> float:
    """Make the step, or skip it. Returns the scale of the next one."""
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale()
