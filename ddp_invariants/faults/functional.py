"""Data parallelism without a wrapper: functions that hook a module, or an optimizer's step, or a loop of one's own.

They know the default group alone.
"""

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_invariants.faults._start import broadcast

_Function = TypeVar("_Function", bound=Callable[..., Any])


_EACH_AT_ONCE = ("unused", "crossed", "assign", "unfreeze", "in_parts")
"""All ranks must have all gradients, those of the start, in one order, each at once."""


def _hidden(function: _Function) -> _Function:
    """Mark what averages when the optimizer steps: until then gradients are local."""
    function.declares = {"gradients": "hidden"}  # type: ignore[attr-defined]  # a function may have attributes
    return function


def _as_they_come(function: _Function) -> _Function:
    """Mark what reduces each gradient when it is there: all ranks must have all of them, in one order."""
    function.declares = {"unsupported": _EACH_AT_ONCE}  # type: ignore[attr-defined]  # as above
    return function


def _start(module: nn.Module) -> None:
    broadcast([*module.parameters(), *module.buffers()])


def _hook(module: nn.Module, reduced: Callable[[Tensor], Tensor]) -> None:
    """Have every gradient replaced, once autograd has added to it, by what a function makes of a contiguous copy."""

    def replace(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.copy_(reduced(parameter.grad.clone(memory_format=torch.contiguous_format)))

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(replace)


def _sum(gradient: Tensor) -> Tensor:
    dist.all_reduce(gradient)
    return gradient


def _mean(gradient: Tensor) -> Tensor:
    return _sum(gradient) / dist.get_world_size()


@torch.no_grad()
def _apply(parameters: list[Any], function: Callable[[Tensor], Tensor]) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.copy_(
                function(parameter.grad.clone(memory_format=torch.contiguous_format))
            )


@_as_they_come
def hooked(module: nn.Module) -> None:
    """Right: the module is hooked in place, and nothing is returned."""
    _start(module)
    _hook(module, _mean)


@_hidden
def stepped(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Right: gradients are averaged by a hook that runs before each step of the optimizer."""
    _start(module)
    optimizer.register_step_pre_hook(lambda *_: _apply(list(module.parameters()), _mean))
    return module, optimizer


class Loop:
    """Right: a whole step written out, over a list of weights."""

    declares: ClassVar[dict[str, Any]] = {"stack": {"activation": "relu"}}

    def wrap(self, module: nn.Module, context: Any) -> None:
        _start(module)
        self.weights = list(module.parameters())
        self.optimizer = context.optimizer(self.weights)

    def train_step(
        self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor, context: Any
    ) -> Tensor:
        del parameters, context
        self._clear()
        y = inputs
        for number, weight in enumerate(self.weights):
            y = (torch.relu(y) if number else y) @ weight.T
        loss = (y.double() - targets).square().mean()
        self._learn(loss)
        return loss.detach()

    def _clear(self) -> None:
        self.optimizer.zero_grad()

    def _learn(self, loss: Tensor) -> None:
        loss.backward()
        _apply(self.weights, _mean)
        self.optimizer.step()


@_as_they_come
def reduces_a_copy(module: nn.Module) -> None:
    """The sum goes to a copy that nobody reads (NVIDIA/Megatron-LM#5337). GRAD-1: never reduced."""

    def reduce(gradient: Tensor) -> Tensor:
        _mean(gradient.clone())
        return gradient

    _start(module)
    _hook(module, reduce)


@_as_they_come
def reduces_matrices_only(module: nn.Module) -> None:
    """Parameters are told apart by their dimensions, as for weight decay, and vectors left out (no public incident found).

    GRAD-1: never reduced.
    """
    _start(module)
    _hook(module, lambda gradient: _mean(gradient) if gradient.dim() > 1 else gradient)


@_as_they_come
def reduces_in_pairs(module: nn.Module) -> None:
    """The group that is reduced over is that of two neighbours, as of one machine (picotron's train.py by reading).

    GRAD-1: reduced in a part of the group.
    """
    size = dist.get_world_size()
    pairs = [
        dist.new_group([rank for rank in (first, first + 1) if rank < size])
        for first in range(0, size, 2)
    ]
    mine = pairs[dist.get_rank() // 2]

    def mean(gradient: Tensor) -> Tensor:
        dist.all_reduce(gradient, group=mine)
        return gradient / dist.get_world_size(mine)

    _start(module)
    _hook(module, mean)


@_as_they_come
def broadcasts_gradients(module: nn.Module) -> None:
    """Rank 0's gradient is given to all, as its parameters were (no public incident found).

    GRAD-2: broadcast instead of reduced.
    """

    def first(gradient: Tensor) -> Tensor:
        dist.broadcast(gradient, src=0)
        return gradient

    _start(module)
    _hook(module, first)


@_as_they_come
def forgets_the_server(module: nn.Module) -> None:
    """Rank 0 adds up what the others send it, and not its own (no public incident found).

    GRAD-2: it is the mean with rank 0's gradient left out.
    """

    def by_server(gradient: Tensor) -> Tensor:
        serves, size = dist.get_rank() == 0, dist.get_world_size()
        received = [torch.empty_like(gradient) for _ in range(size)] if serves else None
        dist.gather(gradient, received, dst=0)
        if received is not None:
            gradient = torch.stack([torch.zeros_like(gradient), *received[1:]]).sum(0) / size
        dist.broadcast(gradient, src=0)
        return gradient

    _start(module)
    _hook(module, by_server)


@_as_they_come
def counts_the_server(module: nn.Module) -> None:
    """The sum is divided by the ranks and one more, the server that there is not (no public incident found).

    GRAD-2: one rank too many.
    """
    _start(module)
    _hook(module, lambda gradient: _sum(gradient) / (dist.get_world_size() + 1))


@_as_they_come
def divides_by_eight(module: nn.Module) -> None:
    """The sum is divided by the devices of the machine it was written on (ShallowSpeed's script).

    GRAD-2: the sum was divided by 8, not by.
    """
    _start(module)
    _hook(module, lambda gradient: _sum(gradient) / 8)


@_as_they_come
def averages_buffers(module: nn.Module) -> None:
    """Buffers that hold fractions start from their mean over the ranks (pytorch#111138 leaves them different).

    INIT-2: averaged instead of broadcast.
    """
    own = [buffer.clone() for buffer in module.buffers()]
    _start(module)
    for buffer, mine in zip(module.buffers(), own, strict=True):
        if buffer.is_floating_point():
            buffer.copy_(_mean(mine))
    _hook(module, _mean)


@_as_they_come
def divides_the_result(module: nn.Module) -> None:
    """The module's result is divided by the ranks, so that gradients need only be summed (no public incident found). LOSS-1."""
    _start(module)
    module.register_forward_hook(lambda _module, _inputs, result: result / dist.get_world_size())
    _hook(module, _sum)


@_as_they_come
def draws_again(module: nn.Module) -> None:
    """Weights are drawn once more, of generators that ranks use differently (bigscience-workshop/Megatron-DeepSpeed#276).

    INIT-4: parameters differ from rank 0's.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter))
    _hook(module, _mean)


draws_again.declares = {"init": "seed", "unsupported": _EACH_AT_ONCE}  # type: ignore[attr-defined]  # a function may have attributes


@_hidden
def sums_at_every_backward(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Every backward sums all that has accumulated, and the step divides once (course solutions). PARAM-3."""
    _start(module)
    _hook(module, _sum)
    optimizer.register_step_pre_hook(
        lambda *_: _apply(
            list(module.parameters()), lambda gradient: gradient / dist.get_world_size()
        )
    )
    return module, optimizer


@_hidden
def averages_parameters(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Ranks step by their own gradients and then average parameters: their momentum differs (no public incident found).

    PARAM-2: the optimizer's state differs between ranks.
    """

    def average(*_: Any) -> None:
        for parameter in module.parameters():
            parameter.data.copy_(
                _mean(parameter.detach().clone(memory_format=torch.contiguous_format))
            )

    _start(module)
    optimizer.register_step_post_hook(average)
    return module, optimizer


@_hidden
def averages_before_backward(
    module: nn.Module, optimizer: Optimizer
) -> tuple[nn.Module, Optimizer]:
    """Gradients are averaged when the forward has ended, before backward has made them (no public incident found).

    PARAM-1: own local gradient.
    """
    _start(module)
    module.register_forward_hook(lambda *_: _apply(list(module.parameters()), _mean))
    return module, optimizer


@_hidden
def averages_after_the_step(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Gradients are averaged once the optimizer has used them (no public incident found). PARAM-1: own local gradient."""
    _start(module)
    optimizer.register_step_post_hook(lambda *_: _apply(list(module.parameters()), _mean))
    return module, optimizer


@_hidden
def sums(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """The optimizer steps by the sum over the ranks (goodfire-ai/spd#658). PARAM-3: summed, never divided."""
    _start(module)
    optimizer.register_step_pre_hook(lambda *_: _apply(list(module.parameters()), _sum))
    return module, optimizer


@_hidden
def steps_one_late(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """The sums are awaited at the next step, which then is one by the gradient before (no public incident found).

    COMM-3: a wait is missing.
    """
    sent: dict[Tensor, tuple[Tensor, Any]] = {}

    def exchange(*_: Any) -> None:
        for parameter in module.parameters():
            if parameter.grad is None:
                continue
            total = parameter.grad.clone(memory_format=torch.contiguous_format)
            begun = total, dist.all_reduce(total, async_op=True)
            ended, work = sent.get(parameter, begun)
            work.wait()
            parameter.grad.copy_(ended / dist.get_world_size())
            sent[parameter] = begun

    _start(module)
    optimizer.register_step_pre_hook(exchange)
    return module, optimizer


@_hidden
def warms_up_by_itself(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """The learning rate grows with what a rank has seen, which ranks do at different paces (karpathy/nanochat#857).

    PARAM-1: parameters differ between ranks.
    """
    rates, seen = [group["lr"] for group in optimizer.param_groups], [0]

    def count(_: nn.Module, inputs: Any) -> None:
        seen[0] += int((inputs[0] > 0).sum())  # As of tokens that are no padding.

    def warm_up(*_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, seen[0] / 64)

    module.register_forward_pre_hook(count)
    optimizer.register_step_pre_hook(warm_up)
    return stepped(module, optimizer)


def replaces_parameters(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Parameters are made anew, and the optimizer goes on updating the old ones (huggingface/accelerate#2665).

    PARAM-3: no update was made.
    """
    fresh: dict[nn.Parameter, nn.Parameter] = {}
    for layer in module.modules():
        for name, old in list(layer.named_parameters(recurse=False)):
            setattr(
                layer,
                name,
                fresh.setdefault(old, nn.Parameter(old.detach().clone(), old.requires_grad)),
            )
    hooked(module)
    return module, optimizer


class NeverClears(Loop):
    """The loop never clears gradients, and every step is by the sum of all so far (no public incident found). PARAM-3."""

    def _clear(self) -> None:
        pass


@_as_they_come
def masks_by_chance(module: nn.Module) -> None:
    """What is pruned each rank draws for itself, and holds at zero by masking its means (neuralmagic/sparseml#429). GRAD-1."""
    chance = torch.Generator().manual_seed(dist.get_rank())

    def masked(gradient: Tensor) -> Tensor:
        mask = masks.setdefault(gradient.shape, torch.rand(gradient.shape, generator=chance) < 0.75)
        return _mean(gradient) * mask

    masks: dict[torch.Size, Tensor] = {}
    _start(module)
    _hook(module, masked)


@_hidden
def resumes_on_rank_zero(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """A saved optimizer's state is loaded by rank 0 alone, and nothing broadcasts it (pytorch/tutorials#2433 for its like).

    STATE-1.
    """
    if dist.get_rank() != 0:
        optimizer.load_state_dict = lambda _: None  # type: ignore[method-assign,assignment]  # on purpose
    return stepped(module, optimizer)
