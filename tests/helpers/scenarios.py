"""Scenarios in which the reference keeps its promises beyond the plain loop.

test_reference.py runs this script on three real ranks. Each scenario gets its rank and returns True
if its promise holds there. The ranks are forked once for all scenarios.
"""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.reference.ddp import DistributedDataParallel

WORLD_SIZE = 3


def _wrapped(module: nn.Module, bucket_cap_mb: float = 25.0) -> Any:
    return DistributedDataParallel(module, bucket_cap_mb=bucket_cap_mb)


def _model(rank: int) -> Any:
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def _batch(rank: int, number: int = 0) -> Tensor:
    return torch.full((2, 2), float(rank + 1 + 10 * number))


def _gradients(module: nn.Module) -> list[Any]:
    return [None if p.grad is None else p.grad.tolist() for p in module.parameters()]


def _mean_locally(module: nn.Module, batches: Callable[[int], list[Tensor]]) -> list[Any]:
    """Return the mean over ranks of the gradients accumulated over each rank's batches.

    Every rank computes this mean alone, without communication.
    """
    totals = [torch.zeros_like(p) for p in module.parameters()]
    for rank in range(WORLD_SIZE):
        for batch in batches(rank):
            grads = torch.autograd.grad(module(batch).sum(), list(module.parameters()))
            for total, grad in zip(totals, grads, strict=True):
                total.add_(grad)
    return [(total / WORLD_SIZE).tolist() for total in totals]


def no_sync_accumulates_locally_and_the_next_backward_averages_the_sum(rank: int) -> bool:
    """Return True if two micro-batches inside no_sync and one outside give the mean of the sums."""
    ddp = _wrapped(_model(rank))
    with ddp.no_sync():
        ddp(_batch(rank, 0)).sum().backward()
        local = _gradients(ddp)
        ddp(_batch(rank, 1)).sum().backward()
    ddp(_batch(rank, 2)).sum().backward()
    expected = _mean_locally(ddp.module, lambda r: [_batch(r, n) for n in range(3)])
    alone = [
        g.tolist()
        for g in torch.autograd.grad(
            ddp.module(_batch(rank, 0)).sum(), list(ddp.module.parameters())
        )
    ]
    return _close(_gradients(ddp), expected) and _close(local, alone)


def no_sync_nests_and_survives_exceptions(rank: int) -> bool:
    """Return True if the next backward synchronises after an exception two levels deep."""
    ddp = _wrapped(_model(rank))
    try:
        with ddp.no_sync(), ddp.no_sync():
            ddp(_batch(rank)).sum().backward()
            raise KeyError("from the user")
    except KeyError:
        ddp.zero_grad()
    ddp(_batch(rank)).sum().backward()
    return _close(_gradients(ddp), _mean_locally(ddp.module, lambda r: [_batch(r)]))


def a_gradient_that_is_only_asked_for_reduces_nothing(rank: int) -> bool:
    """Return True if accumulated gradients stay local until a backward, even if autograd is asked.

    A gradient penalty asks autograd for a gradient by the inputs, or by the parameters.
    """
    ddp = _wrapped(_model(rank))
    with ddp.no_sync():
        ddp(_batch(rank, 0)).sum().backward()
    local = _gradients(ddp)
    inputs = _batch(rank, 1).requires_grad_()
    result = ddp(inputs).sum()
    torch.autograd.grad(result, inputs, create_graph=True)
    torch.autograd.grad(result, list(ddp.parameters()), create_graph=True)
    kept = _gradients(ddp) == local
    result.backward()
    expected = _mean_locally(ddp.module, lambda r: [_batch(r, n) for n in range(2)])
    return kept and _close(_gradients(ddp), expected)


class _Branches(nn.Module):
    """A module that uses the branches that its caller names."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(2, 1) for _ in range(3)])

    def forward(self, x: Tensor, used: tuple[int, ...]) -> Tensor:
        """Return the sum of the used branches' results."""
        return torch.stack([self.branches[i](x) for i in used]).sum(0)


def a_parameter_unused_on_some_ranks_counts_as_zero_there(rank: int) -> bool:
    """Return True if ranks that do not use a parameter count as zero in its mean.

    All ranks use branch 0, rank 1 alone uses branch 1, and no rank uses branch 2. The gradient of
    branch 1 is a mean with zeros, and that of branch 2 is None.
    """
    torch.manual_seed(0)
    ddp = _wrapped(_Branches())
    ddp(_batch(rank), (0, 1) if rank == 1 else (0,)).sum().backward()
    first, second, third = ddp.module.branches
    mean = sum(float(_batch(r).sum(0)[0]) for r in range(WORLD_SIZE)) / WORLD_SIZE
    return (
        _close(first.weight.grad.tolist(), [[mean, mean]])
        and _close(second.weight.grad.tolist(), [[float(_batch(1).sum(0)[0]) / WORLD_SIZE] * 2])
        and third.weight.grad is None
    )


def the_used_set_may_change_from_step_to_step(rank: int) -> bool:
    """Return True if nothing of an incomplete step leaks into the next step."""
    torch.manual_seed(0)
    ddp = _wrapped(_Branches(), bucket_cap_mb=1e-6)
    seen = []
    for used in ((0, 1, 2), (2,), (1, 0), (0,)):
        ddp.zero_grad()
        ddp(_batch(rank), used).sum().backward()
        seen.append([branch.weight.grad is not None for branch in ddp.module.branches])
    return seen == [[True] * 3, [False, False, True], [True, True, False], [True, False, False]]


def ranks_may_reach_parameters_in_different_orders(rank: int) -> bool:
    """Return True if no gradients are swapped between parameters of equal shape.

    Each parameter has its own bucket, and the ranks' graphs have opposite orders.
    """
    torch.manual_seed(0)
    ddp = _wrapped(_Branches(), bucket_cap_mb=1e-6)
    ddp(_batch(rank), (0, 1, 2) if rank % 2 else (2, 1, 0)).sum().backward()
    mean = sum(float(_batch(r).sum(0)[0]) for r in range(WORLD_SIZE)) / WORLD_SIZE
    return all(
        _close(branch.weight.grad.tolist(), [[mean, mean]]) for branch in ddp.module.branches
    )


class _RaisesInBackward(torch.autograd.Function):
    armed = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        del ctx
        if _RaisesInBackward.armed:
            raise KeyError("in the user's backward")
        return grads[0]


class _Fragile(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        first, last = _model(rank)
        self.first: nn.Module = first
        self.last: nn.Module = last

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(
            _RaisesInBackward.apply(self.first(x))  # type: ignore[no-untyped-call]  # torch's
        )
        return result


def an_exception_half_way_through_a_backward_leaves_nothing_behind(rank: int) -> bool:
    """Return True if the step after an exception on all ranks is right.

    The buckets that were sent before the exception are finished and dropped.
    """
    return _right_after_an_exception(rank, raises=True)


def an_exception_on_one_rank_is_caught_up_with_at_its_next_forward(rank: int) -> bool:
    """Return True if the step after an exception on rank 0 alone is right on all ranks.

    The other ranks wait for rank 0 until it goes on.
    """
    return _right_after_an_exception(rank, raises=rank == 0)


def _right_after_an_exception(rank: int, *, raises: bool) -> bool:
    ddp = _wrapped(_Fragile(rank), bucket_cap_mb=1e-6)
    _RaisesInBackward.armed = raises
    try:
        ddp(_batch(rank)).sum().backward()
    except KeyError:
        _RaisesInBackward.armed = False
    ddp.zero_grad()
    ddp(_batch(rank)).sum().backward()
    return _close(_gradients(ddp), _mean_locally(ddp.module, lambda r: [_batch(r)]))


def freezing_and_unfreezing_after_wrapping_is_followed(rank: int) -> bool:
    """Return True if a frozen parameter gets no gradient, and is reduced once it is unfrozen."""
    model = _model(rank)
    model[0].weight.requires_grad_(False)
    ddp = _wrapped(model)
    ddp(_batch(rank)).sum().backward()
    frozen_first = ddp.module[0].weight.grad is None
    for parameter in ddp.parameters():
        parameter.requires_grad_(True)
    ddp.zero_grad()
    ddp(_batch(rank)).sum().backward()
    return frozen_first and _close(
        _gradients(ddp), _mean_locally(ddp.module, lambda r: [_batch(r)])
    )


def replaced_parameters_are_followed(rank: int) -> bool:
    """Return True if parameters replaced by load_state_dict(assign=True) are reduced."""
    ddp = _wrapped(_model(rank))
    ddp.module.load_state_dict(
        {k: v.clone() for k, v in ddp.module.state_dict().items()}, assign=True
    )
    for parameter in ddp.parameters():
        parameter.requires_grad_(True)
    ddp(_batch(rank)).sum().backward()
    return _close(_gradients(ddp), _mean_locally(ddp.module, lambda r: [_batch(r)]))


def results_may_be_nested_in_containers(rank: int) -> bool:
    """Return True if a module may return tuples, lists and dicts of tensors."""

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _model(rank)

        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"a": [self.inner(x), "no tensor"], "b": (3,)}

    ddp = _wrapped(Nested())
    ddp(_batch(rank))["a"][0].sum().backward()
    return _close(_gradients(ddp), _mean_locally(ddp.module.inner, lambda r: [_batch(r)]))


def replicas_of_different_structure_are_refused_on_every_rank(rank: int) -> bool:
    """Return True if different modules raise an error, rather than hang or mix values."""
    try:
        _wrapped(nn.Linear(2, 1 + rank // 2))
    except RuntimeError as error:
        return "modules differ" in str(error)
    return False


def a_module_without_anything_to_train_is_refused(rank: int) -> bool:
    """Return True if a module with nothing to synchronise is refused."""
    del rank
    try:
        _wrapped(nn.ReLU())
    except ValueError as error:
        return "no parameter that requires a gradient" in str(error)
    return False


def buffers_are_refreshed_before_each_training_forward_only(rank: int) -> bool:
    """Return True if only a training forward outside no_sync takes rank 0's buffers."""
    ddp = _wrapped(nn.BatchNorm1d(2))
    mean = ddp.module.running_mean
    assert isinstance(mean, Tensor)
    ddp.eval()
    mean.fill_(rank)
    ddp(_batch(rank))
    kept = mean.tolist() == [rank, rank]
    ddp.train()
    ddp.module.momentum = 0.0
    with ddp.no_sync():
        ddp(_batch(rank))
    kept &= mean.tolist() == [rank, rank]
    ddp(_batch(rank))
    return kept and mean.tolist() == [0, 0]


def several_dtypes_are_bucketed_apart(rank: int) -> bool:
    """Return True if float32, float64, bfloat16 and complex64 work in one module."""
    torch.manual_seed(0)
    parameters = [
        nn.Parameter(torch.ones(2, dtype=d))
        for d in (torch.float32, torch.float64, torch.bfloat16, torch.complex64)
    ]

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.many = nn.ParameterList(parameters)

        def forward(self, factor: float) -> Tensor:
            return torch.stack([(p * factor).real.double().sum() for p in self.many]).sum()

    ddp = _wrapped(Mixed())
    ddp(float(rank + 1)).backward()
    return all(
        p.grad is not None and p.grad.dtype == p.dtype and p.grad.real.tolist() == [2.0, 2.0]
        for p in parameters
    )


def a_wrapper_that_is_dropped_is_freed(rank: int) -> bool:
    """Return True if hooks keep neither the wrapper nor the module alive."""
    import gc
    import weakref

    ddp = _wrapped(_model(rank))
    ddp(_batch(rank)).sum().backward()
    alive = weakref.ref(ddp.module)
    del ddp
    gc.collect()
    return alive() is None


def _close(got: Any, expected: Any) -> bool:
    if isinstance(got, list) and isinstance(expected, list):
        return len(got) == len(expected) and all(
            _close(g, e) for g, e in zip(got, expected, strict=True)
        )
    # A few float32 products may be added up in another order: 16 roundings cover that.
    return (
        got is not None
        and expected is not None
        and abs(got - expected) <= 16 * 2.0**-24 * (1 + abs(expected))
    )


SCENARIOS = {
    name: member
    for name, member in list(globals().items())
    if callable(member)
    and getattr(member, "__module__", "") == __name__
    and not name.startswith("_")
}


def _serve(rank: int, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{path}/store", WORLD_SIZE),  # type: ignore[attr-defined]
        rank=rank,
        world_size=WORLD_SIZE,
    )
    answers = {}
    for name, scenario in SCENARIOS.items():
        try:
            answers[name] = "" if scenario(rank) else "wrong"
        except Exception:  # noqa: BLE001 - whatever a scenario raises is its answer
            answers[name] = traceback.format_exc()
    Path(f"{path}/{rank}.json").write_text(json.dumps(answers))
    # No rank leaves while another is still in a collective.
    dist.barrier()
    os._exit(0)


def main() -> None:
    """Fork the ranks, wait for them, and print each scenario's answers by rank."""
    with tempfile.TemporaryDirectory() as path:
        children = []
        for rank in range(WORLD_SIZE):
            child = os.fork()
            if child == 0:
                _serve(rank, path)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        answers = [
            json.loads(Path(f"{path}/{rank}.json").read_text()) for rank in range(WORLD_SIZE)
        ]
    json.dump({name: [answer[name] for answer in answers] for name in SCENARIOS}, sys.stdout)


if __name__ == "__main__":
    main()
