"""The code of a rank on a fake device: it computes nothing, but a mix of two devices raises.

Run this file as a script, because a process can register only one such device and keeps it.
FakeTensors have shapes, dtypes and devices, but no values. A tensor that Python reads as a number is
zero here, so a loss scaler never skips a step. Cases that need values of poison are not run.
"""

import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch._subclasses import fake_tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.ranks.driving.ddp import Driver
from ddp_invariants.ranks.groups.device import RankDevice
from ddp_invariants.ranks.training import recorder, shaped
from ddp_invariants.ranks.training import run as training
from ddp_invariants.ranks.training.closure import StepClosure
from ddp_invariants.ranks.training.effects import draws
from ddp_invariants.search.strategies import cases_for

RULES = (
    "GRAD-2",
    "GRAD-8",
    "GRAD-9",
    "GRAD-13",
    "LOSS-1",
    "PARAM-3",
    "PARAM-6",
    "LIVE-2",
    "LIVE-5",
    "BUF-2",
    "STATE-1",
    "RNG-1",
    "INIT-3",
)
WITHOUT = frozenset({"nonfinite", "backward_error", "fused", "other_methods"})
"""Capabilities that such a device, or no wrapper at all, does not support.

An exception in autograd's thread for the device ends the process. The device has no fused steps.
"""
IN_LOW_PRECISION = ("linear", "matmul", "addmm", "mm", "bmm")
"""Operators that autocast runs in its dtype on this device."""


class Nowhere(RankDevice):
    """A device that computes nothing."""

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move a tensor to the device without pinned memory."""
        return tensor.to(self.device)


def bits(tensor: torch.Tensor) -> bytes:
    """Return as many zero bytes as the tensor has, and count its device.

    Adam counts its steps in a number on the CPU, on any device.
    """
    of_adam = tensor.device.type == "cpu" and not tensor.dim()
    seen["counts of steps" if of_adam else tensor.device.type] += 1
    return bytes(tensor.numel() * tensor.element_size())


seen: Counter[str] = Counter()


@settings(
    max_examples=100,
    database=None,
    derandomize=True,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.sampled_from(RULES).flatmap(lambda rule: cases_for(rule, Scope(1, WITHOUT))))
def run(case: TrainingCase) -> None:
    """Train a case of one rank, with no wrapper."""
    log = SimpleNamespace(now=lambda: 0.0)
    session = SimpleNamespace(
        rank_device=Nowhere("gloo", torch.device("away", 0)),
        subgroup=None,
        log=log,
        counts=lambda: [0],
        in_flight=list,
        destroyed=False,
    )
    with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = training.train(
            replace(case, outside=0),
            0,
            Driver(Ddp("none")),
            session,  # type: ignore[arg-type]  # a stand-in
        )
    raised = record.facts.get("raised")
    assert raised is None, (raised["phase"], raised["message"], raised["traceback"])
    seen["cases"] += 1


def coalesce(gradient: torch.Tensor) -> torch.Tensor:
    """Return a sparse gradient as if no index occurred twice."""
    return torch.sparse_coo_tensor(
        gradient._indices(), gradient._values(), gradient.shape, is_coalesced=True
    )


def add_sparse(to: torch.Tensor, *_: object, **_options: object) -> torch.Tensor:
    """Add a sparse gradient to a parameter, or to another sparse gradient."""
    seen["sparse gradients"] += 1
    return to


def in_low_precision(operator: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return an operator as autocast on this device runs it."""
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]

    def cast(argument: object) -> object:
        if isinstance(argument, torch.Tensor) and argument.is_floating_point():
            return argument.to(torch.get_autocast_dtype("away"))
        return argument

    def run_in_it(*arguments: object) -> torch.Tensor:
        seen["operators under autocast"] += 1
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return operator(*map(cast, arguments))

    return run_in_it


def complete_the_device() -> tuple[torch.library.Library, torch.library.Library]:
    """Give the fake device autocast and the sparse kernels it lacks, as long as the result lives."""
    others = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    others.fallback(torch.library.fallthrough_kernel)
    kernels = torch.library.Library("aten", "IMPL")
    kernels.impl("_coalesce", coalesce, "SparseMeta")
    kernels.impl("add_.Tensor", add_sparse, "SparseMeta")
    for name in IN_LOW_PRECISION:
        kernels.impl(name, in_low_precision(getattr(torch.ops.aten, name)), "AutocastPrivateUse1")
    return others, kernels


if __name__ == "__main__":
    _setup_privateuseone_for_python_backend("away")
    kept = complete_the_device()
    # Checkpoints and autocast call this function.
    torch.away.get_amp_supported_dtype = lambda: [torch.bfloat16]  # type: ignore[attr-defined]
    fake_tensor.CONSTANT_NUMEL_LIMIT = (
        -1
    )  # Otherwise, FakeTensor would keep the value of a one-element tensor and compute with it.
    vars(sys.modules["torch.optim.adam"])["_get_value"] = lambda _: (
        1.0
    )  # At step 0, Adam divides by zero.
    torch.Tensor.item = lambda _: 0.0  # type: ignore[assignment, method-assign]  # as above
    recorder._bits = bits
    shaped._tensor = lambda tensor: f"{tensor.dtype} on {tensor.device.type}"
    # Whether two tensors are equal has no value here, either.
    StepClosure.returned = lambda *_: True  # type: ignore[method-assign]
    draws._draw = lambda *_: None  # Random numbers of a program have no value here.
    run()
    sys.stdout.write(json.dumps(seen))
    sys.stdout.flush()
    os._exit(0)  # On a normal exit, autograd's thread for the device would abort the interpreter.
