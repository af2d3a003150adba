"""Work that a host does once, before it forks ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from ddp_invariants.cases import numbers
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.ranks.driving.settings import UPDATES


def optimizer_plan(case: TrainingCase) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Return the case's optimizer class and its keyword arguments."""
    plan = case.optimizer
    return UPDATES[plan.kind], plan.arguments


@contextmanager
def _asking_no_device() -> Iterator[None]:
    """Keep optimizers from asking whether a device captures a graph.

    To answer, torch initialises the device, which no fork survives.
    """
    kept = {
        name: vars(torch.optim.Optimizer)[name]
        for name in _ASKING
        if name in vars(torch.optim.Optimizer)
    }
    for name in kept:
        setattr(torch.optim.Optimizer, name, lambda _optimizer: None)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(torch.optim.Optimizer, name, method)


_ASKING = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
"""The names under which torch versions have the method that Adam calls in every step."""


@_asking_no_device()
def warm_up() -> None:
    """Import and build in the host, once, everything torch and numpy need on first use."""
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    # The first optimizer of each kind alters its class. A rank is not used again once a case has
    # altered its classes.
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        for kernels in ({}, {"foreach": True}, {"fused": True}):
            optimizer = kind([parameter], lr=1.0, **kernels)  # type: ignore[arg-type]  # all three take these arguments
            parameter.grad = torch.ones(2)
            optimizer.step()
            optimizer.zero_grad()
    np.argsort(numbers.words(0, "warm up", 2), kind="stable")
