"""Right wrappers that shard, which some rule has accused; each says what is special about it."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.faults._start import broadcast
from ddp_invariants.faults.sharded import Dealt, Sliced
from ddp_invariants.implementation.adapter import Context
from ddp_invariants.implementation.adapters.fsdp1 import FullyShardedDataParallel
from ddp_invariants.implementation.adapters.fsdp2 import FullyShard
from ddp_invariants.ranks.training.layer import Watched


class LeavesFrozen(FullyShardedDataParallel):
    """torch's FSDP1 lists flat tensors, which hold trained parameters alone."""

    def wrap(self, module: nn.Module, context: Context) -> object:
        """Return the wrapped module."""
        frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
        self._options = {"use_orig_params": False, "ignored_states": frozen}
        return super().wrap(module, context)


class Wide(torch.optim.Optimizer):
    """Updates float32 copies of a rank's shards, and casts them back.

    Args:
        pairs: Each shard with its copy.
        make: Makes the inner optimizer of the copies.
    """

    def __init__(
        self, pairs: Iterable[tuple[Tensor, nn.Parameter]], make: Callable[..., Any]
    ) -> None:
        self.pairs = [*pairs]
        self.inner = make([copy for _, copy in self.pairs])
        super().__init__([shard for shard, _ in self.pairs], {})
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the copies, then the shards."""
        assert closure is None
        for shard, copy in self.pairs:
            gradient = getattr(shard.grad, "_local_tensor", shard.grad)
            copy.grad = None if gradient is None else gradient.float()
        self.inner.step()
        for shard, copy in self.pairs:
            copy.grad = None
            getattr(shard, "_local_tensor", shard).copy_(copy)


class Beside(Wide):
    """The same; the state of a shard holds its moments and its copy."""

    def __init__(
        self, pairs: Iterable[tuple[Tensor, nn.Parameter]], make: Callable[..., Any]
    ) -> None:
        super().__init__(pairs, make)
        shards = [shard for shard, _ in self.pairs]
        self.param_groups = [{**self.inner.param_groups[0], "params": shards}]
        self.state = defaultdict(dict)

    def step(self, closure: Any = None) -> Any:
        """Update the copies, then the shards."""
        super().step(closure)
        for shard, copy in self.pairs:
            self.state[shard] = {**self.inner.state.get(copy, {}), "master_param": copy.detach()}


class Sharded32(FullyShard):
    """torch's FSDP2; the optimizer keeps a float32 copy of each local shard."""

    declares: ClassVar = {**FullyShard.declares, "optimizer": "own", "main": "float32"}

    def make_optimizer(self, wrapped: nn.Module, context: Context) -> Any:
        """Return the optimizer of the local shards."""
        shards: list[Any] = [p for p in wrapped.parameters() if p.requires_grad]
        copies = (nn.Parameter(shard.to_local().detach().float()) for shard in shards)
        return Wide(zip(shards, copies, strict=True), context.optimizer)


class Sliced32(Sliced):
    """Each rank's state holds its share of the moments, and of a float32 copy."""

    declares: ClassVar = {**Sliced.declares, "optimizer": "own", "main": "float32"}

    def make_optimizer(self, _wrapped: nn.Module, context: Context) -> Any:
        """Return the optimizer of this rank's shares."""
        shards = [share.own for share in self.shares]
        copies = (nn.Parameter(shard.detach().float()) for shard in shards)
        return Beside(zip(shards, copies, strict=True), context.optimizer)


class AlwaysMomentum(torch.optim.SGD):
    """Keeps a momentum for each parameter, also a momentum of zero."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Step, and make the momenta that are missing."""
        loss = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if self.state[parameter].get("momentum_buffer") is None:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return loss


class SlicedMomentum(Sliced):
    """Each rank's own SGD keeps its share of the momentum, whatever that is."""

    declares: ClassVar = {**Sliced.declares, "optimizer": "own"}

    def make_optimizer(self, wrapped: nn.Module, context: Context) -> Any:
        """Return the optimizer of this rank's shares."""
        group = super().make_optimizer(wrapped, context).param_groups[0]
        return AlwaysMomentum(group["params"], group["lr"])


class Owned:
    """Each gradient goes to the rank that owns the parameter, and is held and used there alone."""

    declares: ClassVar[dict[str, Any]] = {
        "zero": 2,
        "gradients": "owner",
        "partition": "parameters",
        "accumulation": "none",
    }

    def wrap(self, module: nn.Module, _context: Context) -> nn.Module:
        """Deal the parameters out."""
        self.parameters = list(module.parameters())
        broadcast([*self.parameters, *module.buffers()])
        return module

    def _owned(self) -> list[tuple[int, nn.Parameter]]:
        return [(n % dist.get_world_size(), each) for n, each in enumerate(self.parameters)]

    def make_optimizer(self, _wrapped: nn.Module, context: Context) -> Any:
        """Return the optimizer of this rank's parameters."""
        return context.optimizer([each for rank, each in self._owned() if rank == dist.get_rank()])

    def zero_grad(self, wrapped: nn.Module, _optimizer: Any, set_to_none: bool) -> None:
        """Clear all gradients."""
        wrapped.zero_grad(set_to_none)

    def after_backward(self, _wrapped: nn.Module, _optimizer: Any) -> None:
        """Reduce each gradient that some rank has to its owner."""
        users = torch.tensor([each.grad is not None for each in self.parameters], dtype=torch.int)
        dist.all_reduce(users)
        for used, (owner, parameter) in zip(users.tolist(), self._owned(), strict=True):
            if used:
                own = parameter.grad
                mean = torch.zeros_like(parameter) if own is None else own.clone()
                dist.reduce(mean, owner)
                is_own = owner == dist.get_rank()
                parameter.grad = mean / dist.get_world_size() if is_own else None

    def step(self, _wrapped: nn.Module, optimizer: Any) -> None:
        """Update this rank's parameters, and send them to all ranks."""
        optimizer.step()
        for owner, parameter in self._owned():
            dist.broadcast(parameter.detach(), owner)


class DealsFrozenToo(Dealt):
    """All parameters are dealt to the rank that has least, those without a gradient as well."""

    def _dealt(self, module: nn.Module) -> list[nn.Parameter]:
        """Return all parameters."""
        return list(module.parameters())


class Contiguous(Owned):
    """Neighbouring parameters have one owner; a rank without any has a zero in their place."""

    def _owned(self) -> list[tuple[int, nn.Parameter]]:
        share = -(-len(self.parameters) // dist.get_world_size())
        return [(number // share, each) for number, each in enumerate(self.parameters)]

    def make_optimizer(self, _wrapped: nn.Module, context: Context) -> Any:
        """Return the optimizer of this rank's parameters."""
        own = [each for rank, each in self._owned() if rank == dist.get_rank()]
        return context.optimizer(own or [nn.Parameter(torch.zeros(1))])


class ShowsNoParameter(FullyShard):
    """It replaces the forwards of layers with a bias, and so nobody sees what they compute with."""

    def wrap(self, module: nn.Module, context: Context) -> object:
        """Return the wrapped module."""
        for layer in module.modules():
            if isinstance(layer, Watched) and getattr(layer, "bias", None) is not None:
                kind: Any = type(layer).__mro__[2]
                layer.forward = partial(kind.forward, layer)  # type: ignore[method-assign]  # as patches do
        return super().wrap(module, context)
