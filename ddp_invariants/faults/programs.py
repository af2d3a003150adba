"""The bucketed reference in whole programs: many passes, recomputation, between-steps actions."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from ddp_invariants.faults._start import broadcast
from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference


class FinishesPerResult(_Reference):
    """Every result of a forward queues the callback for the end of backward, instead of one for all
    (no public incident found).

    GRAD-13: divided twice.
    """

    def _backward_begins(self, gradient: Tensor) -> None:
        if self._reducing:
            Variable._execution_engine.queue_callback(self._finish)
        super()._backward_begins(gradient)


class ArmedByForward(_Reference):
    """A forward arms the reduction and a backward disarms it, so a second backward is not reduced
    (pytorch#47260).

    GRAD-13.
    """

    _armed = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._armed = self._no_sync_depth == 0 and torch.is_grad_enabled()
        return super().forward(*args, **kwargs)

    def _backward_begins(self, gradient: Tensor) -> None:
        if self._armed:
            super()._backward_begins(gradient)

    def _finish(self) -> None:
        super()._finish()
        self._armed = False


class DisarmedByNothing(_Reference):
    """A backward in which no parameter got a gradient is taken for one that failed
    (similar: EleutherAI/bergson#334).

    GRAD-13: never reduced.
    """

    _armed = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._armed = True
        return super().forward(*args, **kwargs)

    def _hook(self, output: Tensor) -> None:
        if output.is_leaf:
            super()._hook(output)
        else:  # Without asking whether the pass adds to gradients.
            output.register_hook(self._backward_begins)

    def _backward_begins(self, gradient: Tensor) -> None:
        if self._armed:
            super()._backward_begins(gradient)

    def _finish(self) -> None:
        self._armed = any(len(bucket.waiting) < len(bucket.parameters) for bucket in self._buckets)
        super()._finish()


class CountsForwardsOfLayers(_Reference):
    """A layer whose forward ran twice is expected to get more gradients
    (similar: deepspeedai/DeepSpeed#8224).

    GRAD-13: own local gradient: never reduced.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
    ) -> None:
        super().__init__(module, process_group, bucket_cap_mb)
        self.uses: dict[nn.Module, int] = {}
        for layer in module.modules():
            layer.register_forward_pre_hook(
                lambda layer, _: self.uses.__setitem__(layer, self.uses.get(layer, 0) + 1)
            )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.uses.clear()
        return super().forward(*args, **kwargs)

    def _write_back(self, bucket: Bucket) -> None:
        twice = {
            parameter
            for layer, uses in self.uses.items()
            if uses > 1
            for parameter in layer.parameters(recurse=False)
        }
        kept = {
            parameter: parameter.grad.clone()
            for parameter in bucket.parameters
            if parameter in twice and parameter.grad is not None
        }
        super()._write_back(bucket)
        for parameter, own in kept.items():
            parameter.grad = own


class QueuedByTheFirstGradient(_Reference):
    """The first gradient queues the callback: in a reentrant checkpoint, at the end of the inner
    backward (pytorch#109191).

    GRAD-13: own local gradient: never reduced.
    """

    def _backward_begins(self, gradient: Tensor) -> None:
        del gradient
        self._expected = True

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        if getattr(self, "_expected", False):
            self._expected = False
            super()._backward_begins(torch.zeros(0))
        super()._gradient_ready(parameter)


class TakesAPartForTheWhole(_Reference):
    """A gradient that comes in parts is sent after its first part
    (refused by pytorch: pytorch#109191).

    GRAD-13.
    """

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        if all(
            bucket.work is None or all(parameter is not p for p in bucket.parameters)
            for bucket in self._buckets
        ):
            super()._gradient_ready(parameter)


class EvaluationSwitchesOff(_Reference):
    """An evaluation switches synchronisation off, and nothing switches it on again
    (no public incident found).

    LIVE-5: own local gradient: never reduced.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.training:
            self._no_sync_depth = 1
        return super().forward(*args, **kwargs)


class InferenceSwitchesOff(_Reference):
    """A forward under inference mode takes a quick path without synchronisation, which the wrapper
    never leaves again (no public incident found).

    LIVE-5: own local gradient: never reduced.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled():
            self._no_sync_depth = 1
        return super().forward(*args, **kwargs)


class KeepsAnInferenceTensor(_Reference):
    """A tensor of the wrapper's own is made anew by each forward in evaluation, and under inference
    mode no later forward can write to it (no public incident found).

    LIVE-1.
    """

    _forwards = torch.zeros(())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.training:
            self._forwards.add_(1)
        else:
            self._forwards = torch.zeros(())
        return super().forward(*args, **kwargs)


class EvaluationPassesBy(_Reference):
    """A forward in evaluation mode calls the module alone, also where a backward follows
    (no public incident found).

    PARAM-3: never reduced; or GRAD-1: own local gradient: never reduced.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs) if self.training else self.module(*args, **kwargs)


class HooksRestInEvaluation(_Reference):
    """The hooks do nothing while the wrapper is in evaluation mode, also where its forward was in
    training mode (no public incident found).

    PARAM-3: never reduced; or GRAD-1: own local gradient: never reduced.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._trained = self.training
        return super().forward(*args, **kwargs)

    def _backward_begins(self, gradient: Tensor) -> None:
        if self.training or not self._trained:
            super()._backward_begins(gradient)


class InferencePassesBy(_Reference):
    """Right: a forward under inference mode calls the module alone."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled():
            return self.module(*args, **kwargs)
        return super().forward(*args, **kwargs)


class WaitsForEveryForward(_Reference):
    """The wrapper waits for a backward of each forward; after a forward without one, it reduces
    nothing (no public incident found).

    LIVE-5: own local gradient: never reduced.
    """

    # A backward that raises would have the same effect.
    declares: ClassVar[dict[str, Any]] = {"unsupported": ("backward_error",)}
    _pending = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        self._pending += self._no_sync_depth == 0 and torch.is_grad_enabled()
        return result

    def _backward_begins(self, gradient: Tensor) -> None:
        self._pending = max(self._pending - 1, 0)
        super()._backward_begins(gradient)

    def _write_back(self, bucket: Bucket) -> None:
        if not self._pending:
            super()._write_back(bucket)


class ArmedUntilABackward(_Reference):
    """A forward without a backward leaves the reduction armed for a backward under no_sync
    (torch's DDP).

    GRAD-8: a backward inside no_sync communicates.
    """

    _armed = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        if self._no_sync_depth and self._armed and getattr(result, "requires_grad", False):
            result.register_hook(self._backward_begins)
        self._armed |= self._no_sync_depth == 0 and torch.is_grad_enabled()
        return result

    def _finish(self) -> None:
        super()._finish()
        self._armed = False


class TrainedWhenWrapped(_Reference):
    """Trainable parameters are listed once, so a layer that is unfrozen later is never reduced
    (torch's DDP, as its documentation warns).

    LIVE-5: own local gradient: never reduced.
    """

    def _trainable(self) -> list[nn.Parameter]:
        if not hasattr(self, "_listed"):
            self._listed = super()._trainable()
        return self._listed


class FrozenGetsZero(TrainedWhenWrapped):
    """A layer that is frozen later gets zero gradients, so momentum and weight decay still move it
    (similar: pytorch#28883).

    GRAD-4: a frozen parameter has a gradient.
    """

    def _write_back(self, bucket: Bucket) -> None:
        super()._write_back(bucket)
        for parameter in bucket.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


class PlansOnce(TrainedWhenWrapped):
    """Hooks stay with the tensors of wrapping, so a parameter that is assigned later is never
    reduced (torch's DDP).

    LIVE-5: own local gradient: never reduced.
    """

    declares: ClassVar[dict[str, Any]] = {"unsupported": ("freeze", "unfreeze")}


class MutesItsCopies(_Reference):
    """A copy must not communicate, but the change for it is made to the original's state
    (no public incident found).

    LIVE-5: own local gradient: never reduced.
    """

    def __getstate__(self) -> dict[str, Any]:
        state = vars(self)
        state.update(_no_sync_depth=1, _buckets=[], _hooks=[])
        return state


class HooksTheAccumulators(nn.Module):
    """Hooks sit on autograd's gradient accumulators, which a change of dtype replaces
    (torch's DDP; similar: FSDP1 and Megatron-LM).

    LIVE-5: own local gradient: never reduced.
    """

    declares: ClassVar[dict[str, Any]] = {
        "unsupported": ("unused", "crossed", "unfreeze", "in_parts")
    }

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        broadcast([*module.parameters(), *module.buffers()], process_group)
        self.accumulators = []
        for parameter in module.parameters():
            if parameter.requires_grad:
                accumulator: Any = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]  # it has one
                accumulator.register_hook(partial(self._average, parameter))
                self.accumulators.append(accumulator)

    def _average(self, parameter: nn.Parameter, *_: Any) -> None:
        assert parameter.grad is not None
        total = parameter.grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        parameter.grad.copy_(total / dist.get_world_size(self.group))

    def forward(self, *inputs: Any) -> Any:
        """Run the module."""
        return self.module(*inputs)


class LoadsOnRankZero(_Reference):
    """Only rank 0 loads a saved state, as if it were broadcast afterwards (a well-known mistake).

    STATE-1: changes between saving and loading; or STATE-2: changes when another number of ranks
    loads it.
    """

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        return (
            super().load_state_dict(state_dict, strict, assign)
            if dist.get_rank(self.group) == 0
            else None
        )


class SavesParametersAlone(_Reference):
    """A saved state holds the parameters but not the buffers (no public incident found).

    STATE-1: other names than the module's.
    """

    def state_dict(self, **kwargs: Any) -> Any:
        names = {name for name, _ in self.named_parameters(remove_duplicate=False)}
        return {
            name: value for name, value in super().state_dict(**kwargs).items() if name in names
        }

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        del strict
        return super().load_state_dict(state_dict, strict=False, assign=assign)


class StripsEveryPrefix(_Reference):
    """Loading strips the wrapper's prefix wherever a name has it, and leaves out what the module
    then does not know (names such as layers.0.module.weight; no public incident found).

    STATE-1: changes between saving and loading; or STATE-2: changes when another number of ranks
    loads it.
    """

    def state_dict(self, **kwargs: Any) -> Any:
        names = self.module.state_dict(**kwargs).items()
        return {f"module.{name}": value for name, value in names}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        del strict
        stripped = {name.replace("module.", ""): value for name, value in state_dict.items()}
        return self.module.load_state_dict(stripped, strict=False, assign=assign)


class PrefixesTwice(_Reference):
    """The names in a saved state start with the wrapper's prefix twice
    (module.module., a well-known mistake).

    STATE-1: other names than the module's.
    """

    def state_dict(self, **kwargs: Any) -> Any:
        return {f"module.{name}": value for name, value in super().state_dict(**kwargs).items()}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        own = {name.removeprefix("module."): value for name, value in state_dict.items()}
        return super().load_state_dict(own, strict, assign)


class SavesItsWorldSize(_Reference):
    """A saved state holds the world size, and ranks that load the state divide by that number
    (a well-known mistake).

    STATE-2: the number of ranks that saved the state.
    """

    def get_extra_state(self) -> dict[str, int]:
        """Return the state that is saved beside parameters and buffers."""
        return {"world_size": self.world_size}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Take over the saved world size."""
        self.world_size = state["world_size"]


class LoadsWhereItWasSaved(_Reference):
    """A rank beyond the saved world size finds no state of its own and keeps its values
    (no public incident found).

    STATE-2.
    """

    def get_extra_state(self) -> int:
        """Return the state that is saved beside parameters and buffers."""
        return self.world_size

    def set_extra_state(self, state: int) -> None:
        """Ignore the saved world size."""

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        there = dist.get_rank(self.group) < state_dict["_extra_state"]
        return super().load_state_dict(state_dict, strict, assign) if there else None


class SumsNormsOverRanks(_Reference):
    """The norm for clipping is summed over the ranks, as for shards, although each rank has all
    gradients (a well-known mistake).

    PARAM-3.
    """

    def clip_grad_norm_(self, largest: float) -> None:
        """Scale the gradients down to a largest norm."""
        gradients = [
            parameter.grad for parameter in self.module.parameters() if parameter.grad is not None
        ]
        squares = torch.stack([gradient.double().square().sum() for gradient in gradients]).sum()
        dist.all_reduce(squares, group=self.group)
        for gradient in gradients:
            gradient.mul_(min(1.0, largest / (float(squares) ** 0.5 + 1e-6)))


class ClipsEachByItself(_Reference):
    """Clipping scales each gradient down to the norm separately (no public incident found).

    PARAM-3.
    """

    def clip_grad_norm_(self, largest: float) -> None:
        """Scale the gradients down to a largest norm."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                nn.utils.clip_grad_norm_([parameter], largest)
