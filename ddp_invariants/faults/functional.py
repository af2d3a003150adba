"""Data parallelism without a wrapper: hooks on a module or an optimizer, or a loop of its own.

These implementations know only the default process group.
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
"""Every rank must have every gradient: in one order, whole, of the parameters at the start."""


def _hidden(function: _Function) -> _Function:
    """Mark a function whose gradients stay local until the optimizer steps."""
    function.declares = {  # type: ignore[attr-defined]  # a function may have attributes
        "gradients": "hidden",
        # A hook runs before the step calls a closure, and each rank averages what it has.
        "unsupported": ("closure", "unused"),
    }
    return function


def _hidden_and_filled(function: _Function) -> _Function:
    """Mark such a function that averages zeros in place of gradients that a rank lacks."""
    function.declares = {"gradients": "hidden", "unsupported": ("closure",)}  # type: ignore[attr-defined]  # as above
    return function


def _as_they_come(function: _Function) -> _Function:
    """Mark a function that reduces each gradient as soon as it is ready.

    All ranks must then have all gradients, in the same order.
    """
    function.declares = {"unsupported": _EACH_AT_ONCE}  # type: ignore[attr-defined]  # as above
    return function


def _start(module: nn.Module) -> None:
    broadcast([*module.parameters(), *module.buffers()])


def _hook(module: nn.Module, reduced: Callable[[Tensor], Tensor]) -> None:
    """Replace each gradient by a function of it, once autograd has added to the gradient.

    The function gets a contiguous copy.
    """

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
    """Right: a hook averages the gradients before each step of the optimizer."""
    _start(module)
    optimizer.register_step_pre_hook(lambda *_: _apply(list(module.parameters()), _mean))
    return module, optimizer


def _of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _average(parameters: list[Tensor]) -> None:
    """Average the gradients of parameters, with zeros for those that a rank lacks."""
    for parameter in parameters:
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    _apply(parameters, _mean)


@_hidden_and_filled
def averages_all(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Right: a hook averages the gradients of all groups, with zeros for those that a rank lacks."""
    _start(module)
    optimizer.register_step_pre_hook(lambda *_: _average(_of(optimizer)))
    return module, optimizer


class Loop:
    """Right: a whole step written out, over a list of parameters."""

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
    """Each sum goes to a copy that nobody reads (NVIDIA/Megatron-LM#5337).

    GRAD-1: never reduced.
    """

    def reduce(gradient: Tensor) -> Tensor:
        _mean(gradient.clone())
        return gradient

    _start(module)
    _hook(module, reduce)


@_as_they_come
def reduces_matrices_only(module: nn.Module) -> None:
    """Vectors and scalars are left out, as parameters often are from weight decay
    (no public incident found).

    GRAD-1: never reduced.
    """
    _start(module)
    _hook(module, lambda gradient: _mean(gradient) if gradient.dim() > 1 else gradient)


@_as_they_come
def reduces_in_pairs(module: nn.Module) -> None:
    """Gradients are reduced only over groups of two neighbouring ranks, as of one machine
    (found by reading picotron's train.py).

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
    """All ranks get rank 0's gradient by a broadcast, as they got its parameters
    (no public incident found).

    GRAD-2: broadcast instead of reduced.
    """

    def first(gradient: Tensor) -> Tensor:
        dist.broadcast(gradient, src=0)
        return gradient

    _start(module)
    _hook(module, first)


@_as_they_come
def forgets_the_server(module: nn.Module) -> None:
    """Rank 0 sums the gradients that the other ranks send, but not its own
    (no public incident found).

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
    """Each sum is divided by W + 1, as if there were a separate server (no public incident found).

    GRAD-2: one rank too many.
    """
    _start(module)
    _hook(module, lambda gradient: _sum(gradient) / (dist.get_world_size() + 1))


@_as_they_come
def divides_by_eight(module: nn.Module) -> None:
    """Each sum is divided by 8, the number of devices of the author's machine
    (ShallowSpeed's script).

    GRAD-2: the sum was divided by 8, not by.
    """
    _start(module)
    _hook(module, lambda gradient: _sum(gradient) / 8)


@_as_they_come
def averages_buffers(module: nn.Module) -> None:
    """Floating-point buffers start from their mean over the ranks
    (buffers that differ: pytorch#111138).

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
    """Forward results are divided by the world size, so that gradients need only be summed
    (no public incident found).

    LOSS-1.
    """
    _start(module)
    module.register_forward_hook(lambda _module, _inputs, result: result / dist.get_world_size())
    _hook(module, _sum)


@_as_they_come
def draws_again(module: nn.Module) -> None:
    """Parameters are drawn once more, from generators whose states differ between ranks
    (bigscience-workshop/Megatron-DeepSpeed#276).

    INIT-4: parameters differ from rank 0's.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter))
    _hook(module, _mean)


draws_again.declares = {  # type: ignore[attr-defined]  # as above
    "init": "seed",
    "unsupported": _EACH_AT_ONCE,
}


@_hidden
def sums_at_every_backward(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Every backward sums the whole accumulated gradient over the ranks, but the step divides only
    once (course solutions).

    PARAM-3.
    """
    _start(module)
    _hook(module, _sum)
    optimizer.register_step_pre_hook(
        lambda *_: _apply(
            list(module.parameters()), lambda gradient: gradient / dist.get_world_size()
        )
    )
    return module, optimizer


@_hidden_and_filled
def averages_what_it_has(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Each rank averages the gradients that it has, and other ranks may have other ones
    (horovod/horovod#597).

    LIVE-1; or COMM-1.
    """
    _start(module)
    optimizer.register_step_pre_hook(lambda *_: _apply(_of(optimizer), _mean))
    return module, optimizer


@_hidden_and_filled
def averages_its_first_groups(
    module: nn.Module, optimizer: Optimizer
) -> tuple[nn.Module, Optimizer]:
    """Parameters are listed at wrapping, so the gradients of a later group stay local
    (similar: horovod/horovod#2154).

    PARAM-1: own local gradient.
    """
    _start(module)
    first = _of(optimizer)
    optimizer.register_step_pre_hook(lambda *_: _average(first))
    return module, optimizer


@_hidden
def averages_parameters(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Ranks step with their local gradients and then average parameters, so their momentum differs
    (no public incident found).

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
    """Gradients are averaged after the forward, before backward has computed them
    (no public incident found).

    PARAM-1: own local gradient.
    """
    _start(module)
    module.register_forward_hook(lambda *_: _apply(list(module.parameters()), _mean))
    return module, optimizer


@_hidden
def averages_after_the_step(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Gradients are averaged only after the optimizer has used them (no public incident found).

    PARAM-1: own local gradient.
    """
    _start(module)
    optimizer.register_step_post_hook(lambda *_: _apply(list(module.parameters()), _mean))
    return module, optimizer


@_hidden
def sums(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Each optimizer step uses the sum over the ranks instead of the mean (goodfire-ai/spd#658).

    PARAM-3: summed, never divided.
    """
    _start(module)
    optimizer.register_step_pre_hook(lambda *_: _apply(list(module.parameters()), _sum))
    return module, optimizer


@_hidden
def steps_one_late(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Each step waits for the sums of the step before and uses them instead of its own
    (no public incident found).

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
    """Each rank warms up its learning rate by the data that it has seen, which differ between ranks
    (karpathy/nanochat#857).

    PARAM-1: parameters differ between ranks.
    """
    rates, seen = [group["lr"] for group in optimizer.param_groups], [0]

    def count(_: nn.Module, inputs: Any) -> None:
        seen[0] += int((inputs[0] > 0).sum())  # Like tokens that are no padding.

    def warm_up(*_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, seen[0] / 64)

    module.register_forward_pre_hook(count)
    optimizer.register_step_pre_hook(warm_up)
    return stepped(module, optimizer)


def replaces_parameters(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Parameters are replaced by new ones, but the optimizer keeps updating the old ones
    (huggingface/accelerate#2665).

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
    """The loop never clears gradients, so every step uses the sum of all gradients so far
    (no public incident found).

    PARAM-3.
    """

    def _clear(self) -> None:
        pass


@_as_they_come
def masks_by_chance(module: nn.Module) -> None:
    """Each rank draws a pruning mask of its own and applies it to the averaged gradients
    (neuralmagic/sparseml#429).

    GRAD-1.
    """
    chance = torch.Generator().manual_seed(dist.get_rank())

    def masked(gradient: Tensor) -> Tensor:
        mask = masks.setdefault(gradient.shape, torch.rand(gradient.shape, generator=chance) < 0.75)
        return _mean(gradient) * mask

    masks: dict[torch.Size, Tensor] = {}
    _start(module)
    _hook(module, masked)


@_hidden
def resumes_on_rank_zero(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Only rank 0 loads a saved optimizer state, and nothing broadcasts it
    (similar: pytorch/tutorials#2433).

    STATE-1.
    """
    if dist.get_rank() != 0:
        optimizer.load_state_dict = lambda _: None  # type: ignore[method-assign,assignment] # fault
    return stepped(module, optimizer)
