"""Right implementations in every shape that the driver must support without glue.

All are the same small DDP, called in different ways.
"""

import itertools
import os
import random
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import BatchSampler


def start_equal(module: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), src=0)


def average(parameters: Iterable[Tensor]) -> None:
    """Give every rank the mean of the gradients."""
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


class Unfinished(nn.Module):
    """A wrapper that starts equal and averages gradients in a method with an unusual name."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        start_equal(module)

    def forward(self, x: Tensor) -> Any:
        """Return the module's outputs."""
        return self.module(x)

    def exchange(self) -> None:
        """Average the gradients."""
        average(self.parameters())


class UsualCall(Unfinished):
    """A wrapper whose method to call after backward has a usual name."""

    def sync_gradients(self) -> None:
        """Average the gradients."""
        self.exchange()


class Engine(UsualCall):
    """A wrapper that runs backward itself."""

    def backward(self, loss: Tensor) -> None:
        """Run backward from the loss."""
        loss.backward()


class WholeEngine(Unfinished):
    """A wrapper whose backward also averages the gradients."""

    def backward(self, loss: Tensor) -> None:
        """Run backward from the loss, and average the gradients."""
        loss.backward()
        self.exchange()


class Stage(UsualCall):
    """A wrapper with methods of an engine's names that are not called as an engine's."""

    def backward(self, inputs: Tensor, outputs: Tensor, gradient: Tensor) -> None:
        """Run backward of a pipeline's stage."""
        raise NotImplementedError

    def step(self, schedule: object) -> None:
        """Advance the pipeline."""
        raise NotImplementedError


class Lazy(nn.Module):
    """A wrapper that starts equal at the first forward."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.started = module, False

    def forward(self, x: Tensor) -> Any:
        """Return the module's outputs, and give all ranks equal parameters first."""
        if not self.started:
            start_equal(self.module)
            self.started = True
        return self.module(x)

    def sync_grads(self) -> None:
        """Average the gradients."""
        average(self.parameters())


def in_place(model: nn.Module) -> None:
    """Add gradient hooks to the module, and return nothing."""
    start_equal(model)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: average([p]))


class Stepper:
    """A wrapper of an optimizer that synchronises in its step."""

    def __init__(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
        self.optimizer, self.module = optimizer, module

    @property
    def state(self) -> Any:
        """The optimizer's state."""
        return self.optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the optimizer's gradients."""
        self.optimizer.zero_grad(set_to_none)

    def step(self) -> None:
        """Average the gradients, then step."""
        average(self.module.parameters())
        self.optimizer.step()


def with_optimizer(
    module: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[nn.Module, Stepper]:
    """Take a module and its optimizer, and return the module and another optimizer."""
    start_equal(module)
    return module, Stepper(optimizer, module)


def with_optim(module: nn.Module, optim: torch.optim.Optimizer) -> tuple[nn.Module, Stepper]:
    """Do the same, under another usual name."""
    return with_optimizer(module, optim)


class SynchronisingSgd(torch.optim.SGD):
    """An optimizer that starts its parameters equal and synchronises in its step."""

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        parameters = list(params)
        for parameter in parameters:
            dist.broadcast(parameter.detach(), src=0)
        super().__init__(parameters, lr)

    def step(self, closure: Any = None) -> Any:
        """Average the gradients, then step."""
        average(p for group in self.param_groups for p in group["params"])
        return super().step(closure)


class ToldItsRank(UsualCall):
    """A wrapper that takes rank and world size as arguments."""

    def __init__(self, model: nn.Module, rank: int, world_size: int) -> None:
        super().__init__(model)
        if (rank, world_size) != (dist.get_rank(), dist.get_world_size()):
            raise ValueError(f"rank {rank} of {world_size}")


class CapInElements(UsualCall):
    """A wrapper that takes its bucket cap in elements: 2 where the case says 8 bytes."""

    def __init__(self, module: nn.Module, bucket_size: int) -> None:
        super().__init__(module)
        if bucket_size not in (2, 25 << 18, 1):
            raise ValueError(f"bucket size {bucket_size}")


class Flavoured(UsualCall):
    """A wrapper that needs an argument only its user knows."""

    def __init__(self, module: nn.Module, *, flavour: str) -> None:
        super().__init__(module)
        if flavour != "plain":
            raise ValueError(flavour)


class MainGrad(Unfinished):
    """A wrapper that leaves its gradients in `main_grad`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for parameter in module.parameters():
            # As in Megatron: a new attribute of the parameter.
            parameter.main_grad = torch.zeros_like(parameter)  # type: ignore[attr-defined]

    def zero_grad_buffer(self) -> None:
        """Clear the gradients; call this before each batch."""
        for parameter in self.parameters():
            parameter.main_grad.zero_()  # type: ignore[attr-defined]  # as above

    def finish_grad_sync(self) -> None:
        """Average the gradients; call this after backward."""
        average(self.parameters())
        for parameter in self.parameters():
            parameter.main_grad += parameter.grad  # type: ignore[attr-defined]  # as above
            parameter.grad = None


class Toggled(Unfinished):
    """A wrapper with an attribute instead of no_sync."""

    require_backward_grad_sync = True

    def forward(self, x: Tensor) -> Any:
        """Return the module's outputs; their backward averages unless the attribute is False."""
        y = super().forward(x)
        if self.require_backward_grad_sync:
            y.register_hook(
                lambda _: torch.autograd.Variable._execution_engine.queue_callback(self.exchange)
            )
        return y


SIZES: list[tuple[int, int]] = []


def set_up(size: int, rank: int) -> None:
    """Record the world size and rank, as a runtime that must know them before wrapping."""
    SIZES.append((size, rank))


class NeedsSetUp(UsualCall):
    """A wrapper that cannot be made before `set_up` is called."""

    def __init__(self, module: nn.Module) -> None:
        if SIZES[-1] != (dist.get_world_size(), dist.get_rank()):
            raise ValueError(SIZES)
        super().__init__(module)


class OwnGroup(UsualCall):
    """A wrapper that initialises the process group in its constructor."""

    def __init__(self, module: nn.Module, rank: int, world_size: int) -> None:
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        super().__init__(module)


class Adapter:
    """An adapter for a wrapper that fits no usual shape."""

    def wrap(self, module: nn.Module, _context: Any) -> Unfinished:
        """Return the wrapped module."""
        return Unfinished(module)

    def after_backward(self, wrapped: Unfinished, _optimizer: Any) -> None:
        """Average the gradients with the wrapper's own method."""
        wrapped.exchange()


def free_function(model: nn.Module) -> None:
    """Average a model's gradients."""
    average(model.parameters())


def get_ddp_bucketed(module: nn.Module, bucket_size_mb: float) -> Unfinished:
    """Return the wrapper, as a course's function does."""
    assert bucket_size_mb > 0
    return Unfinished(module)


def ddp_bucketed_on_after_backward(ddp_model: Unfinished, _optimizer: Any) -> None:
    """Average the gradients, as a course's function does."""
    ddp_model.exchange()


def ddp_bucketed_on_train_batch_start(ddp_model: Unfinished, _optimizer: Any) -> None:
    """Do nothing, as a course's function may."""


# Samplers.


def indices(dataset: range, rank: int, world_size: int) -> list[int]:
    """Return a rank's indices."""
    _check(rank, world_size)
    return (
        [
            dataset[(rank + i * world_size) % len(dataset)]
            for i in range(-(-len(dataset) // world_size))
        ]
        if dataset
        else []
    )


def _check(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}")


def split(src: Iterable[Any]) -> Iterator[Any]:
    """Return a rank's items, by RANK and WORLD_SIZE; unpadded shards may be unequal."""
    return itertools.islice(src, int(os.environ["RANK"]), None, int(os.environ["WORLD_SIZE"]))


class AsksTorch:
    """A sampler that asks torch.distributed for its rank."""

    def __init__(self, dataset: range) -> None:
        self.mine = indices(dataset, dist.get_rank(), dist.get_world_size())

    def __len__(self) -> int:
        return len(self.mine)

    def __iter__(self) -> Iterator[int]:
        return iter(self.mine)


class Batches:
    """A sampler that yields whole batches, and pads the dataset to whole global batches."""

    declares: ClassVar[dict[str, str]] = {"padding": "batch"}

    def __init__(self, batch_sampler: BatchSampler, num_processes: int, process_index: int) -> None:
        _check(process_index, num_processes)
        flat, size = [index for batch in batch_sampler for index in batch], batch_sampler.batch_size
        whole = num_processes * size * -(-len(flat) // (num_processes * size))
        padded = [flat[i % len(flat)] for i in range(whole)]
        self.mine = [
            padded[i : i + size] for i in range(process_index * size, whole, num_processes * size)
        ]

    def __len__(self) -> int:
        return len(self.mine)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.mine)


def over_a_length(
    n: int, num_shards: int, shard_id: int, shuffle: bool, seed: int, epoch: int
) -> list[int]:
    """Return a rank's indices, given the dataset's length and the epoch."""
    _check(shard_id, num_shards)
    order = list(range(n))
    if shuffle:
        random.Random(f"{seed}/{epoch}").shuffle(order)
    return [order[i % n] for i in range(shard_id, num_shards * -(-n // num_shards), num_shards)]


class _StepsInFull:
    """An optimizer whose step takes a flag."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.module, self.optimizer = module, optimizer
        self.param_groups, self.state = optimizer.param_groups, optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad(set_to_none)

    def step(self, averages: bool = True) -> None:
        """Average the gradients, and update the parameters."""
        if averages:
            average(self.module.parameters())
        self.optimizer.step()


def steps_in_full(
    module: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[nn.Module, _StepsInFull]:
    """Return the module, and an optimizer that averages its gradients."""
    return module, _StepsInFull(module, optimizer)
