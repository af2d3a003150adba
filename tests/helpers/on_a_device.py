"""The code of ranks on a fake device: it computes nothing, but a mix of two devices raises.

Run this file as a script, because a process can register only one such device and keeps it.
FakeTensors have shapes, dtypes and devices, but no values. A tensor that Python reads as a number is
zero here, so a loss scaler never skips a step. Cases that need values of poison are not run.

One rank trains alone, without a wrapper, so that autograd runs the backward in the device's own
thread. Several ranks train with the reference in a simulation, whose collectives refuse what is not
on the device.
"""

import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch._subclasses import fake_impls, fake_tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.ranks.driving.ddp import Driver
from ddp_invariants.ranks.groups.device import RankDevice
from ddp_invariants.ranks.groups.simulated import connections, refusals
from ddp_invariants.ranks.simulation import World
from ddp_invariants.ranks.training import recorder, shaped
from ddp_invariants.ranks.training import run as training
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
WITHOUT = frozenset({"nonfinite", "fused"})
"""Capabilities that such a device does not support: it has no values, and no fused steps."""
ALONE = WITHOUT | {"backward_error", "other_methods"}
"""Capabilities that one rank on its own does not support, either.

An exception in autograd's thread for the device ends the process.
"""
IN_LOW_PRECISION = ("linear", "matmul", "addmm", "mm", "bmm")
"""Operators that autocast runs in its dtype on this device."""


class Nowhere(RankDevice):
    """A device that computes nothing, and so has nothing in its queues."""

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move a tensor to the device without pinned memory."""
        return tensor.to(self.device)

    def enter(self) -> None:
        """Do nothing: there is no other device."""

    def finish(self) -> None:
        """Return at once."""

    def moment(self) -> None:
        """Return None, as for a device without queues."""

    def keep(self, tensor: torch.Tensor) -> None:
        """Do nothing: memory is not reused."""

    def keep_busy(self, seconds: float) -> None:
        """Do nothing."""

    @contextmanager
    def slowed(self, seconds: float, *, waited_for: bool) -> Iterator[None]:  # noqa: ARG002  # RankDevice's signature
        """Slow nothing."""
        yield


def bits(tensor: torch.Tensor) -> bytes:
    """Return as many zero bytes as the tensor has, and count its device.

    Adam counts its steps in a number on the CPU, on any device.
    """
    of_adam = tensor.device.type == "cpu" and not tensor.dim()
    seen["counts of steps" if of_adam else tensor.device.type] += 1
    return bytes(tensor.numel() * tensor.element_size())


seen: Counter[str] = Counter()


def away() -> Nowhere:
    """Return the fake device, which this script has registered."""
    return Nowhere("gloo", torch.device("away", 0))


GENERATE = settings(
    max_examples=25,
    database=None,
    derandomize=True,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@GENERATE
@given(st.sampled_from(RULES).flatmap(lambda rule: cases_for(rule, Scope(1, ALONE))))
def train_alone(case: TrainingCase) -> None:
    """Train a case of one rank, with no wrapper."""
    log = SimpleNamespace(now=lambda: 0.0)
    session = SimpleNamespace(
        rank_device=away(),
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
    require_no_exception(record.facts)
    seen["cases alone"] += 1


class FakeWorld(World):
    """Simulated ranks on the fake device, whose tensors all ranks may use."""

    def _train(self, rank: int) -> None:
        # A rank's hooks must run in its own thread, which hands on; a device's thread would serve
        # all ranks. And torch must be told in each thread that `torch.tensor` has no memory to fill.
        torch._C._set_only_lift_cpu_tensors(True)
        with FAKE, torch.autograd.set_multithreading_enabled(False):
            super()._train(rank)


FAKE = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)


@GENERATE
@given(st.sampled_from(RULES).flatmap(lambda rule: cases_for(rule, Scope(3, WITHOUT))))
def train_together(case: TrainingCase) -> None:
    """Train a case of up to three simulated ranks with the reference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = FakeWorld(case, Driver(Ddp()), seen["cases together"]).run(60)
    assert not outcome.stuck, outcome
    assert not outcome.refused, outcome.refused
    for header in outcome.headers:
        assert header is not None, outcome.failed
        require_no_exception(header["facts"])
    seen["cases together"] += 1


def require_no_exception(facts: dict[str, Any]) -> None:
    """Fail if a rank's training has raised an exception."""
    raised = facts.get("raised")
    assert raised is None, (raised["phase"], raised["message"], raised["traceback"])


def require_sent(_: object, kind: str, tensors: Sequence[torch.Tensor]) -> None:
    """Refuse a collective of tensors that are not on the device, as NCCL does."""
    for tensor in tensors:
        assert tensor.device.type == "away", f"{kind} of a tensor on {tensor.device}"
        seen["tensors sent"] += 1


def number(_: object, __: object, tensor: torch.Tensor) -> complex:
    """Return the number that a tensor of one element has for Python: zero."""
    if tensor.dtype == torch.bool:
        return False
    return 0j if tensor.is_complex() else 0.0 if tensor.is_floating_point() else 0


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
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]  # no stub

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
    for operator, implementation in (
        (torch.ops.aten._local_scalar_dense.default, number),
        (torch.ops.aten.equal.default, lambda *_: True),
    ):
        fake_impls._deregister_op_impl(operator)
        fake_impls.register_op_impl(operator)(implementation)
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
    recorder._bits = bits
    shaped._tensor = lambda tensor: f"{tensor.dtype} on {tensor.device.type}"
    draws._draw = lambda *_: None  # Random numbers of a program have no value here.
    # The stand-ins have other types than the originals, so they are set where mypy sees no types.
    vars(connections)["RankDevice"] = away
    vars(refusals)["require_sent"] = require_sent
    train_alone()
    train_together()
    sys.stdout.write(json.dumps(seen))
    sys.stdout.flush()
    os._exit(0)  # On a normal exit, autograd's thread for the device would abort the interpreter.
