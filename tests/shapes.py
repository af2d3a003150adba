"""Right implementations in every shape that is to be driven without glue: the same little DDP, called in other ways."""

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
    """Give every rank rank 0's parameters and buffers."""
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), src=0)


def average(parameters: Iterable[Tensor]) -> None:
    """Give every rank the mean of the gradients."""
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


class Unfinished(nn.Module):
    """Starts equal, and leaves the gradients to a call nobody knows."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        start_equal(module)

    def forward(self, x: Tensor) -> Any:
        """The module's."""
        return self.module(x)

    def exchange(self) -> None:
        """Average the gradients."""
        average(self.parameters())


class UsualCall(Unfinished):
    """A call after backward by a usual name."""

    def sync_gradients(self) -> None:
        """Average the gradients."""
        self.exchange()


class Lazy(nn.Module):
    """Starts equal at the first forward."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.started = module, False

    def forward(self, x: Tensor) -> Any:
        """The module's, from equal parameters."""
        if not self.started:
            start_equal(self.module)
            self.started = True
        return self.module(x)

    def sync_grads(self) -> None:
        """Average the gradients."""
        average(self.parameters())


def in_place(model: nn.Module) -> None:
    """Hooks the module and returns nothing."""
    start_equal(model)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: average([p]))


class Stepper:
    """An optimizer's wrapper that synchronises when it steps."""

    def __init__(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
        self.optimizer, self.module = optimizer, module

    @property
    def state(self) -> Any:
        """The optimizer's."""
        return self.optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The optimizer's."""
        self.optimizer.zero_grad(set_to_none)

    def step(self) -> None:
        """Average, then step."""
        average(self.module.parameters())
        self.optimizer.step()


def with_optimizer(
    module: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[nn.Module, Stepper]:
    """Takes the optimizer and returns another."""
    start_equal(module)
    return module, Stepper(optimizer, module)


class SynchronisingSgd(torch.optim.SGD):
    """An optimizer that starts its parameters equal and synchronises when it steps."""

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        parameters = list(params)
        for parameter in parameters:
            dist.broadcast(parameter.detach(), src=0)
        super().__init__(parameters, lr)

    def step(self, closure: Any = None) -> Any:
        """Average, then step."""
        average(p for group in self.param_groups for p in group["params"])
        return super().step(closure)


class ToldItsRank(UsualCall):
    """Asks for rank and world size."""

    def __init__(self, model: nn.Module, rank: int, world_size: int) -> None:
        super().__init__(model)
        if (rank, world_size) != (dist.get_rank(), dist.get_world_size()):
            raise ValueError(f"rank {rank} of {world_size}")


class CapInElements(UsualCall):
    """Asks for a bucket capacity in elements: 2 where the case says 8 bytes."""

    def __init__(self, module: nn.Module, bucket_size: int) -> None:
        super().__init__(module)
        if bucket_size not in (2, 25 << 18, 1):
            raise ValueError(f"bucket size {bucket_size}")


class Flavoured(UsualCall):
    """Asks for something only its user knows."""

    def __init__(self, module: nn.Module, *, flavour: str) -> None:
        super().__init__(module)
        if flavour != "plain":
            raise ValueError(flavour)


class MainGrad(Unfinished):
    """Leaves its gradients in `main_grad`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for parameter in module.parameters():
            parameter.main_grad = torch.zeros_like(parameter)  # type: ignore[attr-defined]  # as Megatron does

    def zero_grad_buffer(self) -> None:
        """To be called before each batch."""
        for parameter in self.parameters():
            parameter.main_grad.zero_()  # type: ignore[attr-defined]  # as above

    def finish_grad_sync(self) -> None:
        """To be called after backward."""
        average(self.parameters())
        for parameter in self.parameters():
            parameter.main_grad += parameter.grad  # type: ignore[attr-defined]  # as above
            parameter.grad = None


class Toggled(Unfinished):
    """An attribute instead of no_sync."""

    require_backward_grad_sync = True

    def forward(self, x: Tensor) -> Any:
        """The module's; its backward averages unless told not to."""
        y = super().forward(x)
        if self.require_backward_grad_sync:
            y.register_hook(
                lambda _: torch.autograd.Variable._execution_engine.queue_callback(self.exchange)
            )
        return y


SIZES: list[tuple[int, int]] = []


def set_up(size: int, rank: int) -> None:
    """A runtime that must be told the world before anything is wrapped."""
    SIZES.append((size, rank))


class NeedsSetUp(UsualCall):
    """Cannot be made before `set_up`."""

    def __init__(self, module: nn.Module) -> None:
        if SIZES[-1] != (dist.get_world_size(), dist.get_rank()):
            raise ValueError(SIZES)
        super().__init__(module)


class OwnGroup(UsualCall):
    """Makes the process group itself, as far as it knows."""

    def __init__(self, module: nn.Module, rank: int, world_size: int) -> None:
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        super().__init__(module)


class Adapter:
    """For a wrapper that fits no usual shape."""

    def wrap(self, module: nn.Module, _context: Any) -> Unfinished:
        """Make it."""
        return Unfinished(module)

    def after_backward(self, wrapped: Unfinished, _optimizer: Any) -> None:
        """Its call."""
        wrapped.exchange()


def free_function(model: nn.Module) -> None:
    """Averages a model's gradients."""
    average(model.parameters())


def get_ddp_bucketed(module: nn.Module, bucket_size_mb: float) -> Unfinished:
    """A course's function."""
    assert bucket_size_mb > 0
    return Unfinished(module)


def ddp_bucketed_on_after_backward(ddp_model: Unfinished, _optimizer: Any) -> None:
    """A course's function."""
    ddp_model.exchange()


def ddp_bucketed_on_train_batch_start(ddp_model: Unfinished, _optimizer: Any) -> None:
    """A course's function."""


# Samplers.


def indices(dataset: range, rank: int, world_size: int) -> list[int]:
    """A function returning indices."""
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
    """A split of items, by the environment; exact, and so unequal."""
    return itertools.islice(src, int(os.environ["RANK"]), None, int(os.environ["WORLD_SIZE"]))


class AsksTorch:
    """Asks torch.distributed for its rank."""

    def __init__(self, dataset: range) -> None:
        self.mine = indices(dataset, dist.get_rank(), dist.get_world_size())

    def __len__(self) -> int:
        return len(self.mine)

    def __iter__(self) -> Iterator[int]:
        return iter(self.mine)


class Batches:
    """Deals whole batches, and pads to whole global batches."""

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
    """Told a length and the epoch."""
    _check(shard_id, num_shards)
    order = list(range(n))
    if shuffle:
        random.Random(f"{seed}/{epoch}").shuffle(order)
    return [order[i % n] for i in range(shard_id, num_shards * -(-n // num_shards), num_shards)]
