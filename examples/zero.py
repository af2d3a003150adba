"""ZeRO: data parallelism in which each rank keeps 1/W of the state that DDP keeps on all ranks.

Idea: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", arXiv:1910.02054.

Claims: The table holds for Ψ parameters of 2 bytes (bfloat16). Adam has an fp32 copy, m and v (12
bytes, `main_dtype=torch.float32`). Memory is that at rest, between steps. Bytes sent are per rank
and step, as in a ring, without the factor (W-1)/W:

         parameters  gradients  optimizer  sent
  DDP        2Ψ          2Ψ       12Ψ      2 * 2Ψ  all-reduce
  Zero1      2Ψ          2Ψ       12Ψ/W    2 * 2Ψ  reduce-scatter gradients, all-gather parameters
  zero2      2Ψ          2Ψ/W     12Ψ/W    2 * 2Ψ  the same, gradients per bucket during backward
  Zero3      2Ψ/W        2Ψ/W     12Ψ/W    3 * 2Ψ  all-gather parameters in forward and in backward

The parameters follow those of DDP. The same gradients are averaged, and the optimizer's arithmetic
on slices is elementwise (SGD and Adam are elementwise; LAMB is not). A parameter without a gradient
counts as if its gradient were zero. As an exception, Zero3 skips a layer that did not run.

Three details add to the table. The owned slice is a copy even if it has the parameters' dtype
(Zero1, zero2). Gradients of an fp32 slice are kept in float32. The send buffers of every rank hold
one bucket more.

Verdict: right. Gradients in `.grad` cannot be compared with those of DDP: Zero1 leaves the local
ones there, zero2 and Zero3 leave none. The parameters of Zero3 are whole only during a forward.

Shapes: W world size, P elements of a shard's parameters, padded to a multiple of W.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

# Renamed in torch 2.13, where the old names warn.
_reduce_scatter: Callable[..., Any] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)
_all_gather: Callable[..., Any] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)


class Shard:
    """Parameters of one dtype laid end to end, of which each rank owns an equal slice.

    Args:
        parameters: The parameters, equal on all ranks.
        group: The ranks; None is the default group.
        main_dtype: The dtype of the owned slice; None is the parameters' own.

    Attributes:
        owned: The slice that the optimizer updates. Shape (P / W,).
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        group: dist.ProcessGroup | None,
        main_dtype: torch.dtype | None = None,
    ) -> None:
        self.parameters, self.group, self.dtype = parameters, group, parameters[0].dtype
        self.shapes, self.sizes = [p.shape for p in parameters], [p.numel() for p in parameters]
        self.world_size = dist.get_world_size(group)
        self.padding = -sum(self.sizes) % self.world_size
        self.owned = nn.Parameter(self._mine().to(main_dtype or self.dtype, copy=True))

    def _mine(self) -> Tensor:
        """Return this rank's slice of the parameters. Shape (P / W,)."""
        flat_P = self._end_to_end([p.detach() for p in self.parameters])
        return flat_P.view(self.world_size, -1)[dist.get_rank(self.group)]

    @torch.no_grad()
    def reload(self, *_: Any) -> None:
        """Take the owned slice from the parameters again, after a state was loaded into them."""
        self.owned.copy_(self._mine())

    def _end_to_end(self, tensors: list[Tensor]) -> Tensor:
        """Return the tensors end to end, with padding. Shape (P,)."""
        return torch.cat(
            [*(t.reshape(-1) for t in tensors), torch.zeros(self.padding, dtype=self.dtype)]
        )

    def split(self, flat_P: Tensor) -> list[Tensor]:
        """Return views in the shapes of the parameters."""
        pieces = flat_P[: sum(self.sizes)].split(self.sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def mean_gradient(self) -> Tensor:
        """Return the owned slice of the gradient's mean over the ranks.

        Returns:
            Shape (P / W,), in the dtype of `owned`.
        """
        gradients = [
            torch.zeros(shape, dtype=self.dtype) if p.grad is None else p.grad
            for p, shape in zip(self.parameters, self.shapes, strict=True)
        ]
        total = torch.empty(self.owned.shape, dtype=self.dtype)
        if total.numel():
            _reduce_scatter(total, self._end_to_end(gradients), group=self.group)
        return total.to(self.owned.dtype) / self.world_size

    def keep_mean_gradient(self) -> None:
        """Add the mean to the gradient of `owned`, and drop the whole gradients."""
        mean = self.mean_gradient()
        self.owned.grad = mean if self.owned.grad is None else self.owned.grad + mean
        for parameter in self.parameters:
            parameter.grad = None

    def gathered(self, mine: Tensor, out_P: Tensor | None = None) -> Tensor:
        """Return all ranks' slices, in the parameters' dtype. Shape (P,)."""
        whole = (
            torch.empty(self.owned.numel() * self.world_size, dtype=self.dtype)
            if out_P is None
            else out_P
        )
        if whole.numel():
            _all_gather(whole, mine.detach().to(self.dtype), group=self.group)
        return whole

    @torch.no_grad()
    def update_parameters(self) -> None:
        """Give the parameters, on all ranks, the values of their owners' slices."""
        for parameter, value in zip(
            self.parameters, self.split(self.gathered(self.owned)), strict=True
        ):
            parameter.copy_(value)


def buckets(parameters: list[nn.Parameter], cap: float = float("inf")) -> list[list[nn.Parameter]]:
    """Return the trainable parameters in order, in lists of one dtype.

    A list has at most `cap` bytes, or a single parameter.
    """
    full: list[list[nn.Parameter]] = []
    filling: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        bucket = filling.get(parameter.dtype)
        if bucket is None or sum(p.nbytes for p in bucket) + parameter.nbytes > cap:
            bucket = filling[parameter.dtype] = []
            full.append(bucket)
        bucket.append(parameter)
    return full


@torch.no_grad()
def broadcast(tensors: list[Tensor], group: dist.ProcessGroup | None) -> None:
    """Give every rank the first rank's values.

    The values travel through contiguous copies, because gloo ignores strides.
    """
    for tensor in tensors:
        whole = tensor.contiguous()
        dist.broadcast(whole, group_src=0, group=group)
        tensor.copy_(whole)


class Zero1(torch.optim.Optimizer):
    """Stage 1: an optimizer that keeps its state, and updates parameters, for 1/W of the elements.

    It averages the gradients itself. A module needs no wrapper, but its buffers are not broadcast.
    Accumulation adds to `.grad`, which stays local.

    Args:
        params: Parameters, or groups of them.
        optimizer_class: The optimizer of the owned slice. Must be elementwise.
        process_group: The ranks to average over; None is the default group.
        main_dtype: The dtype of the owned slice; float32 gives bfloat16 parameters an fp32 copy.
            None is the parameters' own.
        defaults: Arguments of the optimizer class.
    """

    declares: ClassVar[dict[str, Any]] = {
        "gradients": "hidden",
        "zero": 1,
        # A rank updates a copy of its slice, and what a program writes to parameters is lost.
        "unsupported": ["buffers", "weights_written"],
    }

    def __init__(
        self,
        params: Any,
        optimizer_class: type[torch.optim.Optimizer],
        process_group: dist.ProcessGroup | None = None,
        main_dtype: torch.dtype | None = None,
        **defaults: Any,
    ) -> None:
        super().__init__(params, defaults)
        groups = [group["params"] for group in self.param_groups]
        broadcast([p for parameters in groups for p in parameters], process_group)
        self.shards = [
            [Shard(b, process_group, main_dtype) for b in buckets(parameters)]
            for parameters in groups
        ]
        self.inner = optimizer_class(
            [
                {**group, "params": [shard.owned for shard in shards]}
                for group, shards in zip(self.param_groups, self.shards, strict=True)
            ],
            **defaults,
        )
        self.state = self.inner.state
        for outer, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            outer.update({**inner, "params": outer["params"]})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group while the optimizer is made; the owned slices are made once."""
        if hasattr(self, "shards"):
            raise NotImplementedError("give all groups of parameters to the constructor")
        super().add_param_group(param_group)

    def step(self, closure: Any = None) -> Any:
        """Reduce-scatter the gradients, update the owned slices, all-gather the parameters."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        self._pass_settings()
        shards = [shard for of_group in self.shards for shard in of_group]
        for shard in shards:
            shard.owned.grad = shard.mean_gradient()
        self.inner.step()
        for shard in shards:
            shard.owned.grad = None
            shard.update_parameters()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the state, which every rank must save."""
        self._pass_settings()
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from this rank's part, saved with the same W.

        Load the module's state first: the owned slices are taken from the parameters.
        """
        self.inner.load_state_dict(state_dict)
        for shards in self.shards:
            for shard in shards:
                shard.reload()
        self.state = self.inner.state
        for outer, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            outer.update({**inner, "params": outer["params"]})

    def _pass_settings(self) -> None:
        """Give the inner groups the settings of the outer ones, which a scheduler changes."""
        for outer, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update({**outer, "params": inner["params"]})


def zero2(
    module: nn.Module,
    optimizer_class: type[torch.optim.Optimizer],
    process_group: dist.ProcessGroup | None = None,
    bucket_cap_mb: float = 25.0,
    main_dtype: torch.dtype | None = None,
    **optimizer_arguments: Any,
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Set up stage 2: as stage 1, but a rank keeps only its slice of the gradients.

    The other slices of a gradient are given away as soon as its bucket is complete. Every backward
    adds to the gradients of the owned slices, so accumulation needs no `no_sync`. It sends the
    gradients of each micro-batch.

    Args:
        module: The replica; hooked in place.
        optimizer_class: The optimizer of the owned slices. Must be elementwise.
        process_group: The ranks to average over; None is the default group.
        bucket_cap_mb: The most MiB of gradients in a bucket, unless one parameter has more.
        main_dtype: As in `Zero1`.
        optimizer_arguments: Arguments of the optimizer class.

    Returns:
        The module, and the optimizer, whose step also gathers the parameters.
    """
    broadcast([*module.parameters(), *module.buffers()], process_group)
    # Reversed, because backward reaches the last layer first.
    plan = buckets(list(reversed(list(module.parameters()))), bucket_cap_mb * 2**20)
    shards = [Shard(bucket, process_group, main_dtype) for bucket in plan]
    for shard in shards:
        module.register_load_state_dict_post_hook(shard.reload)
    ReduceDuringBackward(module, shards)
    optimizer = optimizer_class([shard.owned for shard in shards], **optimizer_arguments)

    def gather(*_: Any) -> None:
        for shard in shards:
            shard.update_parameters()

    optimizer.register_step_post_hook(gather)
    return module, optimizer


zero2.declares = {  # type: ignore[attr-defined]  # a function may have attributes
    "gradients": "hidden",
    "zero": 2,
    # The collectives begin in a backward that reaches a parameter. A rank updates a copy of its slice.
    "unsupported": ["unreached", "weights_written"],
}


class ReduceDuringBackward:
    """Hooks that reduce-scatter each shard's gradients once they are complete.

    Incomplete shards are reduced after backward. The order is always that of the index, because the
    n-th collective of one rank meets the n-th of the others.
    """

    def __init__(self, module: nn.Module, shards: list[Shard]) -> None:
        self.shards = shards
        self.next = 0
        self.ready: set[Tensor] = set()
        module.register_forward_pre_hook(self._forget)
        for shard in shards:
            for parameter in shard.parameters:
                parameter.register_post_accumulate_grad_hook(self._gradient_ready)

    def _forget(self, *_: Any) -> None:
        """Drop the leftovers of a backward that raised half way.

        Such a backward has no end, and its parts must not count for the next one.
        """
        for parameter in self.ready:
            parameter.grad = None
        self.next = 0
        self.ready.clear()

    def _gradient_ready(self, parameter: Tensor) -> None:
        if not self.ready:
            # torch has no public way to run code at the end of a whole backward.
            Variable._execution_engine.queue_callback(self._finish)
        self.ready.add(parameter)
        while self.next < len(self.shards) and self.ready.issuperset(
            self.shards[self.next].parameters
        ):
            self.shards[self.next].keep_mean_gradient()
            self.next += 1

    def _finish(self) -> None:
        for shard in self.shards[self.next :]:
            shard.keep_mean_gradient()
        self.next = 0
        self.ready.clear()


class Unit(Shard):
    """The shard of one layer, whose whole parameters exist only while the layer computes.

    Freeing empties the *storage*. Autograd keeps views of a parameter from forward to backward, and
    a view keeps its storage. In backward the same storage is filled again, so these views see the
    values.
    """

    def __init__(self, parameters: list[nn.Parameter], group: dist.ProcessGroup | None) -> None:
        super().__init__(parameters, group)
        self.whole = torch.empty(self.owned.numel() * self.world_size, dtype=self.dtype)
        self.ready: set[Tensor] = set()
        self.is_whole = True
        self.free()

    def gather(self) -> None:
        """Make the parameters whole, on all ranks."""
        if self.is_whole:
            return
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        for parameter, value in zip(
            self.parameters, self.split(self.gathered(self.owned, self.whole)), strict=True
        ):
            parameter.data = value
        self.is_whole = True

    def free(self) -> None:
        """Keep only the owned slice.

        The parameters become empty tensors, so that any use of them raises.
        """
        for parameter in self.parameters:
            parameter.data = torch.empty(0, dtype=self.dtype)
        self.whole.untyped_storage().resize_(0)
        self.is_whole = False

    def gradient_ready(self, parameter: Tensor) -> None:
        """Reduce the gradients once all gradients of the layer are there."""
        self.ready.add(parameter)
        if len(self.ready) == len(self.parameters):
            self.reduce()

    def forget(self) -> None:
        """Drop the gradients of a backward that raised before it had all of them."""
        if self.ready:
            self.ready.clear()
            for parameter in self.parameters:
                parameter.grad = None
            self.free()

    def reduce(self) -> None:
        """Keep the owned slice of the mean gradient; free the rest, and the parameters."""
        self.keep_mean_gradient()
        self.ready.clear()
        self.free()


class Zero3:
    """Stage 3: the parameters, too, are whole for one layer at a time, in forward and in backward.

    A layer is a module that has parameters of its own and returns a tensor. Its shards are per
    dtype. A tied parameter belongs to the first layer that has it, and is gathered for each layer
    that uses it. Frozen parameters stay whole on every rank.

    L layers make 2L gathers. Keeping the last layer whole from forward to backward would make 2L -
    1.
    """

    declares: ClassVar[dict[str, Any]] = {
        "gradients": "hidden",
        "zero": 3,
        "supports": ["subgroup"],
        # A saved or loaded state would need the whole parameters.
        "unsupported": ["state"],
    }

    def __init__(self) -> None:
        self.units: list[Unit] = []

    def wrap(self, module: nn.Module, context: Any) -> nn.Module:
        """Broadcast, shard every layer and hook it."""
        self.group = context.group
        broadcast([*module.parameters(), *module.buffers()], self.group)
        unit_of: dict[nn.Parameter, Unit] = {}
        for layer in module.modules():
            own = list(layer.parameters(recurse=False))
            for bucket in buckets([p for p in own if p not in unit_of]):
                unit = Unit(bucket, self.group)
                self.units.append(unit)
                unit_of.update(dict.fromkeys(bucket, unit))
                for parameter in bucket:
                    parameter.register_post_accumulate_grad_hook(unit.gradient_ready)
            # A dict, because the order of a set would differ between ranks.
            used = list(dict.fromkeys(unit_of[p] for p in own if p in unit_of))
            if used:
                layer.register_forward_pre_hook(partial(_before_forward, used))
                layer.register_forward_hook(partial(_after_forward, used))
        return module

    def make_optimizer(self, _wrapped: nn.Module, context: Any) -> torch.optim.Optimizer:
        """Return an optimizer over the owned slices.

        Its step sends nothing, because the next forward gathers.
        """
        optimizer: torch.optim.Optimizer = context.optimizer([unit.owned for unit in self.units])
        return optimizer

    def after_backward(self, _wrapped: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
        """Reduce the layers that ran but have a parameter without a gradient.

        These layers are the same on all ranks. Gathering already requires that all ranks run the
        same layers in the same order.
        """
        for unit in self.units:
            if unit.is_whole:
                unit.reduce()


def _before_forward(units: list[Unit], *_: Any) -> None:
    for unit in units:
        # Recomputation runs a forward inside a backward, whose gradients count.
        if torch._C._current_graph_task_id() == -1:
            unit.forget()
        unit.gather()


def _after_forward(units: list[Unit], _layer: nn.Module, _inputs: Any, output: Tensor) -> None:
    """Free a layer, and gather it again when backward reaches its output."""
    for unit in units:
        unit.free()
        if output.requires_grad:
            output.register_hook(partial(_before_backward, unit))


def _before_backward(unit: Unit, _gradient: Tensor) -> None:
    unit.gather()
