"""Right wrappers that some rule has accused; each says what is special about it."""

import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from ddp_invariants.faults._start import broadcast
from ddp_invariants.faults.finish_call import FinishCall
from ddp_invariants.faults.uneven import Joins
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference

LOW = (torch.bfloat16, torch.float16)


class SavesErrors(Reference):
    """The state also holds an error of compression for each parameter that is trained."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self.error = {
            f"error.{name}": torch.zeros_like(parameter)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    def state_dict(self, **options: Any) -> Any:
        """Return the state."""
        return {**super().state_dict(**options), **self.error}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state."""
        for name, error in self.error.items():
            error.copy_(state_dict[name])
        own = {name: value for name, value in state_dict.items() if name not in self.error}
        return super().load_state_dict(own, strict, assign)


class SavesASteps(Reference):
    """The state is the module's own, without a prefix, and the number of steps."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self.steps = torch.zeros((), dtype=torch.int64)

    def state_dict(self, **options: Any) -> Any:
        """Return the state."""
        return {**self.module.state_dict(**options), "steps_made": self.steps.clone()}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state."""
        own = {**state_dict}
        self.steps.copy_(own.pop("steps_made"))
        return self.module.load_state_dict(own, strict, assign)


class BroadcastsWhatItLoads(Reference):
    """After a load, the first rank's parameters and buffers go to all ranks, as on wrapping."""

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state."""
        loaded = super().load_state_dict(state_dict, strict, assign)
        self._broadcast_state([*self.module.parameters(), *self.module.buffers()])
        return loaded


class BuffersAfterBackward(Reference):
    """The first rank's buffers go to all ranks after each reduction, and not before a forward."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the module."""
        kept, self.broadcast_buffers = self.broadcast_buffers, False
        try:
            return super().forward(*inputs, **named)
        finally:
            self.broadcast_buffers = kept

    def _finish(self) -> None:
        super()._finish()
        if self.broadcast_buffers:
            self._broadcast_state(self.module.buffers())


class AveragesBuffers(Reference):
    """Floating-point buffers are averaged at the end of a backward, others are the first rank's."""

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb=bucket_cap_mb, broadcast_buffers=False)

    @torch.no_grad()
    def _finish(self) -> None:
        super()._finish()
        for buffer in self.module.buffers():
            if buffer.is_floating_point():
                flat = buffer.clone(memory_format=torch.contiguous_format)
                dist.all_reduce(flat)
                buffer.copy_(flat / dist.get_world_size())
            else:
                self._broadcast_state([buffer])


class RefusesWhatIsNotFinite(Reference):
    """Every rank raises if a reduced gradient is not finite."""

    def finish_gradient_synchronization(self) -> None:
        """Check what was reduced."""
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                raise FloatingPointError(f"the gradient of {name} is not finite")


class ReducesInPairs(Reference):
    """From four ranks on, pairs of ranks sum, then the first ranks of the pairs."""

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb=bucket_cap_mb)
        ranks = [*range(dist.get_world_size())]
        self.pair: Any = None
        if len(ranks) >= 4:
            pairs = [ranks[first : first + 2] for first in range(0, len(ranks), 2)]
            groups = [dist.new_group(pair) for pair in pairs]
            first = dist.new_group([pair[0] for pair in pairs])
            rank = dist.get_rank()
            self.pair = (groups[rank // 2], None if rank % 2 else first)

    def _launch(self, bucket: Any) -> None:
        if self.pair is None or bucket.work is not None:
            super()._launch(bucket)
            return
        bucket.flat = self._packed(bucket)
        pair, first = self.pair
        dist.reduce(bucket.flat, group=pair, group_dst=0)
        if first is not None:
            dist.all_reduce(bucket.flat, group=first)
        bucket.work = dist.broadcast(bucket.flat, group=pair, group_src=0, async_op=True)


class ClipsByAFlatNorm(Reference):
    """Gradients are clipped by the norm of all of them, laid end to end."""

    @torch.no_grad()
    def clip_grad_norm_(self, norm: float) -> Tensor:
        """Clip all gradients, and return their norm."""
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        own: Tensor = torch.linalg.vector_norm(torch.cat([g.reshape(-1) for g in gradients]))
        for gradient in gradients:
            gradient.mul_((norm / (own + 1e-6)).clamp(max=1.0))
        return own


class SumsBesideTheGradient(nn.Module):
    """A step's gradients are added up beside `.grad`, and their mean is added to `.grad`."""

    declares: ClassVar = {"unsupported": ("unused", "freeze", "unfreeze", "assign", "sparse")}
    format: ClassVar[torch.dtype | None] = None

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.quiet, self.queued = module, False, False
        self.sums: dict[nn.Parameter, Tensor] = {}
        broadcast([*module.parameters(), *module.buffers()], None)
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(lambda g, p=parameter: self._keep(p, g))

    def _keep(self, parameter: nn.Parameter, gradient: Tensor) -> Tensor:
        fresh = gradient.detach().to(self.format or gradient.dtype)
        self.sums[parameter] = self.sums[parameter] + fresh if parameter in self.sums else fresh
        if not self.quiet and not self.queued:
            self.queued = True
            Variable._execution_engine.queue_callback(self._finish)
        return torch.zeros_like(parameter)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the module."""
        return self.module(*inputs, **named)

    @torch.no_grad()
    def _finish(self) -> None:
        self.queued = False
        for parameter in self.module.parameters():
            if parameter in self.sums:
                total = self.sums.pop(parameter).contiguous()
                dist.all_reduce(total)
                assert parameter.grad is not None
                parameter.grad += (total / dist.get_world_size()).to(parameter.dtype)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep gradients local."""
        kept, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = kept


class SumsInFloat64(SumsBesideTheGradient):
    """The same, in float64."""

    format = torch.float64


def _call(method: "weakref.WeakMethod[Any]", parameter: Tensor) -> None:
    found = method()
    if found is not None:
        found(parameter)


class MainGradientsOfLowPrecision(nn.Module):
    """Gradients of low precision are averaged in a float32 `.main_grad`, others in `.grad`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        broadcast([*module.parameters(), *module.buffers()], None)
        ready = weakref.WeakMethod(self._ready)
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.dtype in LOW:
                parameter.register_post_accumulate_grad_hook(partial(_call, ready))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the module."""
        return self.module(*inputs, **named)

    def zero_grad_buffer(self) -> None:
        """Forget the main gradients."""
        for parameter in self.module.parameters():
            parameter.__dict__.pop("main_grad", None)

    def _ready(self, parameter: Any) -> None:
        main = parameter.__dict__.get("main_grad")
        parameter.main_grad = parameter.grad.float() if main is None else main.add_(parameter.grad)
        parameter.grad = None

    def finish_grad_sync(self) -> None:
        """Average all gradients."""
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                kept = "main_grad" if parameter.dtype in LOW else "grad"
                gradient = getattr(parameter, kept)
                dist.all_reduce(gradient)
                gradient /= dist.get_world_size()


class JoinsByASum(Joins):
    """At the end all ranks take one rank's parameters, by a sum to which the others add zeros."""

    def _take_from(self, rank: int) -> None:
        with torch.no_grad():
            for parameter in self.module.parameters():
                whole = parameter.clone(memory_format=torch.contiguous_format)
                if self.rank != rank:
                    whole.zero_()
                dist.all_reduce(whole, group=self.group)
                parameter.copy_(whole)


class AdoptsObjects(Reference):
    """The state travels as objects, whose tensors the other ranks adopt with their strides."""

    def _broadcast_state(self, tensors: Any) -> None:
        tensors = list(tensors)
        if not any(isinstance(tensor, nn.Parameter) for tensor in tensors):
            return super()._broadcast_state(tensors)
        kept = [[tensor.detach().contiguous() for tensor in tensors]]
        dist.broadcast_object_list(kept, group_src=0, group=self.group)
        if dist.get_rank(self.group):
            for tensor, adopted in zip(tensors, kept[0], strict=True):
                tensor.data = adopted
        return None


class ClipsWhatItIsGiven(Reference):
    """Clips by a call like torch's, to which the parameters are given."""

    def clip_grad_norm_(self, parameters: Any = None, max_norm: float = 1.0) -> Any:
        """Clip the gradients of these parameters, all by default."""
        given = self.module.parameters() if parameters is None else parameters
        return nn.utils.clip_grad_norm_(given, max_norm)


class KeepsItsBuffers(Reference):
    """Each rank keeps its own buffers from the start if the program asks for no broadcasts of them."""

    def _broadcast_state(self, tensors: Any) -> None:
        parameters = {*map(id, self.module.parameters())}
        super()._broadcast_state(
            tensor for tensor in tensors if self.broadcast_buffers or id(tensor) in parameters
        )


class FlattensLate(Reference):
    """Parameters become parts of one flat tensor when the second forward begins."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Move the parameters once, and return what the module returns."""
        self.forwards = getattr(self, "forwards", 0) + 1
        if self.forwards == 2:
            parameters = [*self.module.parameters()][::-1]
            flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
            sizes = [parameter.numel() for parameter in parameters]
            for parameter, part in zip(parameters, flat.split(sizes), strict=True):
                parameter.data = part.view(parameter.shape)
        return super().forward(*inputs, **named)


class RegistersAgain(Reference):
    """Each parameter is registered again under its name, the last ones first."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        for name, parameter in [*module.named_parameters()][::-1]:
            owner, _, last = name.rpartition(".")
            part = module.get_submodule(owner)
            delattr(part, last)
            part.register_parameter(last, nn.Parameter(parameter.detach().clone()))
        super().__init__(module, **options)


def sent_by_a_sum(tensors: Iterable[Tensor], group: Any) -> None:
    """Give all ranks the first rank's tensors, by a sum to which the others add zeros."""
    for tensor in tensors:
        kept = tensor.detach()
        sent = kept.clone(memory_format=torch.contiguous_format)
        if dist.get_rank(group):
            sent.zero_()
        dist.all_reduce(sent, group=group)
        kept.copy_(sent)


class LoadsBySum(Reference):
    """A state that is loaded goes from the first rank to all, by a sum."""

    def load_state_dict(self, *state: Any, **options: Any) -> Any:
        """Load a state."""
        loaded = super().load_state_dict(*state, **options)
        sent_by_a_sum(self.module.parameters(), self.group)
        return loaded


class EachForwardBySum(Reference):
    """Each forward in training starts from the first rank's parameters, sent by a sum."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Send the parameters, and return what the module returns."""
        if torch.is_grad_enabled() and self.training:
            sent_by_a_sum(self.module.parameters(), self.group)
        return super().forward(*inputs, **named)


class AddsToZeros(Reference):
    """A rank without a gradient adds the mean to zeros; the others copy the mean."""

    def _write_back(self, bucket: Any) -> None:
        without = [parameter for parameter in bucket.parameters if parameter.grad is None]
        super()._write_back(bucket)
        for parameter in without:
            if parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter).add_(parameter.grad)


class JoinsUncached(Joins):
    """Casts a weight anew for each use, so that the gradients of its uses add up in float32."""

    def forward(self, *inputs: Any) -> Any:
        """Return what the module returns."""
        if not torch.is_autocast_enabled("cpu"):
            return self.module(*inputs)
        with torch.autocast("cpu", torch.get_autocast_dtype("cpu"), cache_enabled=False):
            return self.module(*inputs)


class JoinsSums(Joins):
    """Gradients are summed, as it declares; a rank without a batch adds zeros."""

    declares: ClassVar = {**Joins.declares, "reduction": "sum"}

    def _divisor(self) -> int:
        return 1


class JoinsByAFactor(Joins):
    """A mean over all ranks is multiplied, so that it is the mean over those with a batch."""

    declares: ClassVar = {**Joins.declares, "divisor": "active"}

    def sync_gradients(self) -> None:
        """Reduce the gradients."""
        super().sync_gradients()
        if self._joining and self._active < self.world_size:
            for parameter in self._trained():
                assert parameter.grad is not None
                parameter.grad.mul_(self.world_size / self._active)


class KeepsTheShape(Reference):
    """Refuses inputs of another shape than the first ones."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the module returns."""
        shape = inputs[0].shape
        self.shape = getattr(self, "shape", shape)
        if shape != self.shape:
            raise ValueError(f"inputs must keep the shape {tuple(self.shape)}: use drop_last")
        return super().forward(*inputs, **named)


class OneBucket(Reference):
    """Sends all gradients together, whatever the bucket cap."""

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group, bucket_cap_mb=1024)


class OnlyOne(Reference):
    """Refuses to wrap twice in a process."""

    made = False

    def __init__(self, module: nn.Module, **options: Any) -> None:
        if OnlyOne.made:
            raise RuntimeError("only one wrapper is supported in a process")
        OnlyOne.made = True
        super().__init__(module, **options)


class Lingers(Reference):
    """A thread of each wrapper ends a moment after the run."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        threading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()


class NamesItsProcess(Reference):
    """Keeps the number of its process, and takes a folder of the interpreter by default."""

    def __init__(
        self,
        module: nn.Module,
        folder: str = f"{sys.prefix}/share/kernels",
        run: str = f"run {os.getpid()}",
    ) -> None:
        super().__init__(module)
        self.folder, self.run, self.process = folder, run, os.getpid()


class ListsTheModulesNames(Reference):
    """It lists the module's names without a prefix, and its own counter beside them."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the module's parameters."""
        return self.module.named_parameters(*args, **options)

    def named_buffers(self, *args: Any, **options: Any) -> Iterator[tuple[str, Tensor]]:
        """Yield the module's buffers, and the counter."""
        yield from self.module.named_buffers(*args, **options)
        yield "steps", self.get_buffer("steps")

    def state_dict(self, **options: Any) -> Any:
        """Return the module's state."""
        return self.module.state_dict(**options)

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        """Load the module's state."""
        return self.module.load_state_dict(*args, **options)


class PoolsVariances(Reference):
    """Running variances become those of all ranks' samples together."""

    def forward(self, *args: Any, **options: Any) -> Any:
        """Pool running statistics first, in training."""
        if self.training:
            for layer in self.module.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    self._pool(layer)
        self.broadcast_buffers = False
        return super().forward(*args, **options)

    @torch.no_grad()
    def _pool(self, layer: Any) -> None:
        mean, variance = layer.running_mean.double(), layer.running_var.double()
        both = torch.stack([mean, variance + mean**2])
        dist.all_reduce(both, group=self.group)
        both /= self.world_size
        layer.running_mean.copy_(both[0])
        layer.running_var.copy_(both[1] - both[0] ** 2)


class Delegates(FinishCall):
    """All other attributes are the module's, so that its other methods run past this forward."""

    def forward(self, *args: Any, **options: Any) -> Any:
        """Start from the first rank's buffers."""
        broadcast(self.module.buffers(), self.group)
        self._forget()
        return self.module(*args, **options)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class CastsItself(Reference):
    """The wrapper extends the method by which a module casts itself, which meets tied parameters twice."""

    def _apply(self, function: Any, recurse: bool = True) -> Any:
        self.casts = getattr(self, "casts", 0) + 1
        return super()._apply(function, recurse)  # type: ignore[no-untyped-call]  # torch's has none


class ComputesParameters(Reference):
    """A module reads each parameter through a property that computes a new tensor."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        for part in [*module.modules()]:
            names = [name for name, each in part._parameters.items() if each is not None]
            computed = {name: property(partial(_computed, name=name)) for name in names}
            if computed:
                part.__class__ = type(type(part).__name__, (type(part),), computed)


def _computed(module: nn.Module, name: str) -> Tensor:
    parameter = module._parameters[name]
    assert parameter is not None
    return parameter * 1
