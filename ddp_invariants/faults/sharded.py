"""ZeRO stage 1: every rank holds all parameters, but the optimizer state of its share only.

Source: Rajbhandari et al. 2020, arXiv:1910.02054. The entries are adapters, because the optimizer
is made over shares. They know only the default process group.

Suffixes: W ranks, P elements of the trained parameters of one dtype.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_invariants.faults._start import broadcast


class _Share:
    """Parameters of one dtype laid end to end, of which this rank updates one of W equal slices.

    Attributes:
        size: Elements of a slice.
        own: This rank's slice. Shape (size,).
        slices: All ranks' slices, filled by a gather. Shape (W, size).
    """

    def __init__(self, parameters: list[nn.Parameter], size: int) -> None:
        self.parameters, self.size = parameters, size
        self.own = nn.Parameter(self.owned(self.flat([p.detach() for p in parameters])))
        self.slices = self.own.detach().new_zeros(dist.get_world_size(), size)

    def flat(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the tensors end to end. Shape (P,)."""
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def owned(self, flat_P: Tensor) -> Tensor:
        """Return this rank's slice, filled with zeros beyond the end."""
        mine = flat_P[dist.get_rank() * self.size :][: self.size]
        return torch.cat([mine, mine.new_zeros(self.size - mine.numel())])

    @torch.no_grad()
    def hand_out(self) -> None:
        """Copy the gathered slices into the parameters."""
        flat_P, gathered = (
            self.flat(self.parameters),
            self.slices.view(-1)[: sum(p.numel() for p in self.parameters)],
        )
        flat_P[: gathered.numel()] = gathered
        for parameter, piece in zip(
            self.parameters, flat_P.split([p.numel() for p in self.parameters]), strict=True
        ):
            parameter.copy_(piece.view(parameter.shape))


@torch.no_grad()
def _mean(gradient: Tensor) -> Tensor:
    total = gradient.contiguous()
    dist.all_reduce(total)
    return total / dist.get_world_size()


class Sliced:
    """Right: gradients are averaged, each rank updates one slice of the flattened parameters, and
    all slices are gathered.
    """

    # Slices are copies of the parameters.
    declares: ClassVar[dict[str, Any]] = {
        "zero": 1,
        "gradients": "hidden",
        "unsupported": ("state", "assign", "weights_written"),
    }

    def wrap(self, module: nn.Module, context: Any) -> nn.Module:
        self.context = context
        broadcast([*module.parameters(), *module.buffers()])
        trained = self._trained(module)
        alike = [
            [p for p in trained if p.dtype == dtype]
            for dtype in dict.fromkeys(p.dtype for p in trained)
        ]
        self.shares = [
            _Share(parameters, self._size(sum(p.numel() for p in parameters)))
            for parameters in alike
        ]
        return module

    def _trained(self, module: nn.Module) -> list[nn.Parameter]:
        return [p for p in module.parameters() if p.requires_grad]

    def _size(self, elements: int) -> int:
        return -(-elements // dist.get_world_size())

    def make_optimizer(self, wrapped: nn.Module, context: Any) -> Any:
        del wrapped
        return context.optimizer([share.own for share in self.shares])

    def zero_grad(self, wrapped: nn.Module, optimizer: Optimizer, set_to_none: bool) -> None:
        del optimizer
        wrapped.zero_grad(set_to_none)

    def step(self, wrapped: nn.Module, optimizer: Optimizer) -> None:
        del wrapped
        for share in self.shares:
            share.own.grad = self._gradient(share)
        optimizer.step()
        self._hand_out()

    def _gradient(self, share: _Share) -> Tensor:
        return share.owned(
            _mean(
                share.flat(
                    [torch.zeros_like(p) if p.grad is None else p.grad for p in share.parameters]
                )
            )
        )

    def _hand_out(self) -> None:
        for share in self.shares:
            if share.size:
                self._gather(share)
            share.hand_out()

    def _gather(self, share: _Share) -> None:
        dist.all_gather(list(share.slices.unbind()), share.own.detach())


class KeepsItsRate(Sliced):
    """Steps use another optimizer than the one handed out, so a schedule does not change their
    learning rate (no public incident found).

    LIVE-5: the learning rate of the first step; or PARAM-3: the learning rate of the first step.
    """

    def make_optimizer(self, wrapped: nn.Module, context: Any) -> Any:
        self.within = super().make_optimizer(wrapped, context)
        return super().make_optimizer(wrapped, context)

    def step(self, wrapped: nn.Module, optimizer: Optimizer) -> None:
        del optimizer
        super().step(wrapped, self.within)


class OnlyLowersItsRate(KeepsItsRate):
    """The inner optimizer takes over a lower learning rate and no higher one, so it misses each
    restart of a cyclic schedule (no public incident found).

    PARAM-3: the learning rate of the first step.
    """

    def step(self, wrapped: nn.Module, optimizer: Optimizer) -> None:
        for inner, outer in zip(self.within.param_groups, optimizer.param_groups, strict=True):
            settings = {name: value for name, value in outer.items() if name != "params"}
            inner.update(settings | {"lr": min(inner["lr"], outer["lr"])})
        super().step(wrapped, optimizer)


class _MadeAnew(Sliced):
    """The inner optimizer is made anew with some of its options, if it is of a kind."""

    kind: ClassVar[type[Optimizer]]
    kept: ClassVar[tuple[str, ...]]
    becomes: ClassVar[type[Optimizer] | None] = None

    def make_optimizer(self, wrapped: nn.Module, context: Any) -> Any:
        made = super().make_optimizer(wrapped, context)
        if not isinstance(made, self.kind):
            return made
        group = made.param_groups[0]
        options: dict[str, Any] = {name: group[name] for name in self.kept}
        return (self.becomes or type(made))(group["params"], **options)


class BecomesAdam(_MadeAnew):
    """The inner optimizer is made anew as Adam for every class derived from Adam, AdamW too
    (no public incident found).

    PARAM-3: was added to the gradient.
    """

    kind = becomes = torch.optim.Adam
    kept = ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize")


class LosesNesterov(_MadeAnew):
    """The inner optimizer is made anew with only the learning rate, momentum and weight decay of
    SGD (no public incident found).

    PARAM-3.
    """

    kind = torch.optim.SGD
    kept = ("lr", "momentum", "weight_decay")


class LosesTheConstants(_MadeAnew):
    """The inner optimizer is an Adam made anew with its options except the betas, epsilon and
    AMSGrad (no public incident found).

    PARAM-3.
    """

    kind = torch.optim.Adam
    kept = ("lr", "weight_decay", "maximize")


class AlwaysDescends(_MadeAnew):
    """The inner optimizer is SGD made anew with all its options except `maximize`
    (no public incident found).

    PARAM-3: the update has the wrong sign.
    """

    kind = torch.optim.SGD
    kept = ("lr", "momentum", "weight_decay", "nesterov")


class ForgetsTheLargest(Sliced):
    """Slices are cut anew at every step, and AMSGrad's largest second moment is lost
    (no public incident found).

    PARAM-3.
    """

    def step(self, wrapped: nn.Module, optimizer: Optimizer) -> None:
        for state in optimizer.state.values():
            if "max_exp_avg_sq" in state:
                state["max_exp_avg_sq"].zero_()
        super().step(wrapped, optimizer)


class Dealt:
    """Right: each parameter goes to the rank that has least; its owner updates it by the mean
    gradient and broadcasts it.
    """

    declares: ClassVar[dict[str, Any]] = {
        "zero": 1,
        "gradients": "hidden",
        "partition": "parameters",
        # A rank sends the gradients that it has.
        "unsupported": ("assign", "unused"),
    }

    def wrap(self, module: nn.Module, context: Any) -> nn.Module:
        del context
        self.trained = [p for p in module.parameters() if p.requires_grad]
        held = [0] * dist.get_world_size()
        self.owners = {}
        for parameter in self._dealt(module):
            self.owners[parameter] = rank = held.index(min(held))
            held[rank] += parameter.numel()
        self._start(module)
        return module

    def _dealt(self, module: nn.Module) -> list[nn.Parameter]:
        """Return the parameters that get an owner."""
        del module
        return self.trained

    def _start(self, module: nn.Module) -> None:
        broadcast([*module.parameters(), *module.buffers()])

    def make_optimizer(self, wrapped: nn.Module, context: Any) -> Any:
        del wrapped
        # An optimizer needs a parameter, even if there are more ranks than parameters.
        return context.optimizer(
            [p for p in self.trained if self.owners[p] == dist.get_rank()]
            or [nn.Parameter(torch.zeros(0))]
        )

    def zero_grad(self, wrapped: nn.Module, optimizer: Optimizer, set_to_none: bool) -> None:
        del optimizer
        wrapped.zero_grad(set_to_none)

    def step(self, wrapped: nn.Module, optimizer: Optimizer) -> None:
        del wrapped
        kept = {p: p.grad for p in self.trained}
        for parameter, gradient in kept.items():
            parameter.grad = None if gradient is None else self._gradient(gradient)
        optimizer.step()
        for parameter, gradient in kept.items():
            # If the loop does not clear gradients, backward adds to the local ones.
            parameter.grad = gradient
            self._hand_out(parameter)

    def _gradient(self, gradient: Tensor) -> Tensor:
        return _mean(gradient.clone(memory_format=torch.contiguous_format)).view_as(gradient)

    def _hand_out(self, parameter: nn.Parameter) -> None:
        whole = parameter.detach().contiguous()
        dist.broadcast(whole, src=self.owners[parameter])
        parameter.data.copy_(whole)


class LosesTheRemainder(Sliced):
    """Slices have P // W elements, and no rank updates the remainder (NVIDIA/Megatron-LM#561).

    PARAM-3.
    """

    def _size(self, elements: int) -> int:
        return elements // dist.get_world_size()


class GathersFirst(Sliced):
    """Slices are gathered before they are updated (no public incident found).

    PARAM-3: no update was made.
    """

    def step(self, wrapped: nn.Module, optimizer: Optimizer) -> None:
        del wrapped
        for share in self.shares:
            share.own.grad = self._gradient(share)
        self._hand_out()
        optimizer.step()


class GathersWithoutWaiting(Sliced):
    """The slices are gathered asynchronously and handed out at once
    (similar: meta-pytorch/torchrec#4421).

    COMM-3: a wait is missing.
    """

    def _gather(self, share: _Share) -> None:
        self._work = dist.all_gather(list(share.slices.unbind()), share.own.detach(), async_op=True)


class LosesItsMomentum(Sliced):
    """Slices are cut anew at every step, and their momentum is lost (no public incident found).

    PARAM-3: the optimizer's state of the steps before was lost.
    """

    def step(self, wrapped: nn.Module, optimizer: Optimizer) -> None:
        for state in optimizer.state.values():
            state.pop("momentum_buffer", None)
        super().step(wrapped, optimizer)


class DecaysTwice(Sliced):
    """Weight decay is added to the slice's gradient, and the optimizer adds it again
    (no public incident found).

    PARAM-3: was applied twice.
    """

    def _gradient(self, share: _Share) -> Tensor:
        decay: float = self.context.optimizer_arguments["weight_decay"]
        return super()._gradient(share) + decay * share.own.detach()


class SharesTheFrozen(Sliced):
    """Frozen parameters lie among the others with a gradient of zero, so weight decay moves them
    (for unused parameters: pytorch#28883).

    PARAM-5: a frozen parameter moved.
    """

    def _trained(self, module: nn.Module) -> list[nn.Parameter]:
        return list(module.parameters())


class KeepsAllState(Sliced):
    """The optimizer updates all parameters on each rank, and then all but the rank's slice is
    overwritten (no public incident found).

    MEM-1: a rank holds more.
    """

    def make_optimizer(self, wrapped: nn.Module, context: Any) -> Any:
        del wrapped
        self.wholes = [
            nn.Parameter(share.flat([p.detach() for p in share.parameters]))
            for share in self.shares
        ]
        return context.optimizer(self.wholes)

    def step(self, wrapped: nn.Module, optimizer: Optimizer) -> None:
        del wrapped
        for share, whole in zip(self.shares, self.wholes, strict=True):
            gradients = [
                torch.zeros_like(p) if p.grad is None else p.grad for p in share.parameters
            ]
            whole.grad = _mean(share.flat(gradients))
        optimizer.step()
        for share, whole in zip(self.shares, self.wholes, strict=True):
            share.own.data.copy_(share.owned(whole.detach()))
        self._hand_out()


class UpdatesByItsOwn(Dealt):
    """An owner updates by its local gradient instead of the mean (deepmodeling/deepmd-kit#1104).

    PARAM-3: it was updated with rank 0's own local gradient.
    """

    def _gradient(self, gradient: Tensor) -> Tensor:
        return gradient


class AveragesTwice(Dealt):
    """Gradients are averaged, and the owners divide them once more (verl-project/verl-SpeCo#29).

    PARAM-3: divided twice.
    """

    def _gradient(self, gradient: Tensor) -> Tensor:
        return super()._gradient(gradient) / dist.get_world_size()


class AsksTheNeighbour(Dealt):
    """The rank after the owner broadcasts the parameter, and it has the old value
    (no public incident found).

    PARAM-3: no update was made.
    """

    def _hand_out(self, parameter: nn.Parameter) -> None:
        whole = parameter.detach().contiguous()
        dist.broadcast(whole, src=(self.owners[parameter] + 1) % dist.get_world_size())
        parameter.data.copy_(whole)


class ForgetsTheLastOwner(Dealt):
    """No rank broadcasts the last rank's parameters, because the loop over ranks is one short
    (no public incident found).

    PARAM-1: parameters differ between ranks.
    """

    def _hand_out(self, parameter: nn.Parameter) -> None:
        if self.owners[parameter] < dist.get_world_size() - 1 or dist.get_world_size() == 1:
            super()._hand_out(parameter)


class OwnersStart(Dealt):
    """At the start, too, each parameter is broadcast by its owner instead of rank 0
    (similar: pytorch#53793).

    INIT-1: the broadcast's source is rank 1.
    """

    def _start(self, module: nn.Module) -> None:
        broadcast(module.buffers())
        broadcast(p for p in module.parameters() if p not in self.owners)
        for parameter in self.owners:
            self._hand_out(parameter)
