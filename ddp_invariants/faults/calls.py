"""Forwards of other forms: arguments, results, and gradients of the inputs."""

import random
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.faults.several import HooksDieWithTheWrapper
from ddp_invariants.reference import ddp
from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a nested value of the same types with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value):
        rebuilt = copy(value)  # The constructor need not take all fields.
        for one in fields(value):
            setattr(rebuilt, one.name, _mapped(getattr(value, one.name), change))
        return rebuilt
    if isinstance(value, dict):
        of_its_class = copy(value)
        of_its_class.update({key: _mapped(part, change) for key, part in value.items()})
        return of_its_class
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(_mapped(part, change) for part in value)
    return value


class _Same(torch.autograd.Function):
    """An identity that autograd records."""

    @staticmethod
    def forward(_context: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        return gradient


class Rebuilt(_Reference):
    """Right: every tensor that enters or leaves passes an identity, and containers are rebuilt."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = _mapped(args, _Same.apply), _mapped(kwargs, _Same.apply)
        return _mapped(super().forward(*args, **kwargs), _Same.apply)


class CastsItsInputs(_Reference):
    """Floating-point arguments are cast to the dtype of the first parameter, which loses digits of
    wider ones (no public incident found).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        dtype = next(self.module.parameters()).dtype

        def cast(tensor: Tensor) -> Tensor:
            floating = tensor.is_floating_point() and dtype.is_floating_point
            return tensor.to(dtype) if floating else tensor

        return super().forward(*_mapped(args, cast), **_mapped(kwargs, cast))


class DropsNamedArguments(_Reference):
    """Arguments that are given by name do not reach the module (pyg-team/pytorch_geometric#825).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **({"x": kwargs["x"]} if "x" in kwargs else {}))


class DropsNamedNumbers(_Reference):
    """Numbers that are given by name do not reach the module (no public incident found).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        kept = {name: value for name, value in kwargs.items() if not isinstance(value, float)}
        return super().forward(*args, **kept)


class TensorsBecomeNumbers(_Reference):
    """Tensors without dimensions reach the module as numbers, as a program logs them
    (no public incident found).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        numbers = (
            value.item() if isinstance(value, Tensor) and not value.dim() else value
            for value in args
        )
        return super().forward(*numbers, **kwargs)


class FirstTwoArguments(_Reference):
    """The forward takes two arguments and ignores others (no public incident found).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args[:2], **kwargs)


class UnpacksContainers(_Reference):
    """A container of inputs becomes several arguments, without those that are no tensors
    (no public incident found).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], list | tuple):
            args = tuple(part for part in args[0] if isinstance(part, Tensor))
        return super().forward(*args, **kwargs)


class ListOfTensors(_Reference):
    """A dict of results becomes a list of its tensors (no public incident found).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        return list(ddp._tensors(result)) if isinstance(result, dict) else result


class PlainTuples(_Reference):
    """A namedtuple of results becomes a plain tuple (no public incident found).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        return tuple(result) if isinstance(result, tuple) else result


class PlainMappings(_Reference):
    """Mappings among the arguments are rebuilt as plain dicts (no public incident found).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*(dict(x) if isinstance(x, dict) else x for x in args), **kwargs)


class ResultsByTheirFields(_Reference):
    """A dataclass that the module returns is built again from its fields, also those that its
    constructor does not take (no public incident found).

    LIVE-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        if not is_dataclass(result):
            return result
        kind: Any = type(result)
        return kind(**{one.name: getattr(result, one.name) for one in fields(result)})


class OneResultAlone(_Reference):
    """The element is returned if the module returns a tuple or a list of one
    (no public incident found).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        return result[0] if type(result) in (tuple, list) and len(result) == 1 else result


class ContiguousCopies(_Reference):
    """Arguments that are not contiguous are copied without autograd, so gradients end there
    (no public incident found).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        def contiguous(tensor: Tensor) -> Tensor:
            return tensor if tensor.is_contiguous() else tensor.detach().contiguous()

        return super().forward(*_mapped(args, contiguous), **_mapped(kwargs, contiguous))


class ZeroForNone(_Reference):
    """None among the results becomes a zero (no public incident found).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        if isinstance(result, tuple) and any(part is None for part in result):
            return tuple(torch.zeros(1) if part is None else part for part in result)
        return result


class DetachesTheRest(_Reference):
    """Of a pair of results only the first stays in the graph (no public incident found).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        if type(result) is tuple and len(result) == 2 and isinstance(result[1], Tensor):
            return result[0], result[1].detach()
        return result


class _Hooked(_Reference):
    """The reference, which hooks only some of the results' tensors."""

    def _hooked(self, result: Any) -> Iterator[Tensor]:
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        depth = self._no_sync_depth
        syncing = torch.is_grad_enabled() and depth == 0
        if syncing and self.training and self.broadcast_buffers:
            self._broadcast_state(self.module.buffers())
        self._no_sync_depth = 1
        try:
            result = super().forward(*args, **kwargs)
        finally:
            self._no_sync_depth = depth
        for tensor in self._hooked(result) if syncing else ():
            if tensor.requires_grad:
                tensor.register_hook(self._backward_begins)
        return result


class HooksTheFirstTensor(_Hooked):
    """Only the first tensor of the results is hooked, which may not enter the loss
    (no public incident found).

    GRAD-1: never reduced.
    """

    def _hooked(self, result: Any) -> Iterator[Tensor]:
        yield from list(ddp._tensors(result))[:1]


class HooksWhatOccursOnce(_Hooked):
    """A tensor that the results hold twice is taken for a part of a shared state, and not hooked
    (no public incident found).

    GRAD-1: never reduced.
    """

    def _hooked(self, result: Any) -> Iterator[Tensor]:
        tensors = list(ddp._tensors(result))
        yield from (tensor for tensor in tensors if sum(tensor is t for t in tensors) == 1)


class KnowsExactTypes(_Hooked):
    """Results are found in tensors, tuples, lists and dicts, but in no class of the user
    (huggingface/transformers#25357).

    GRAD-1: never reduced.
    """

    def _hooked(self, result: Any) -> Iterator[Tensor]:
        if type(result) is Tensor:
            yield result
        elif type(result) in (tuple, list, dict):
            for part in result.values() if isinstance(result, dict) else result:
                yield from self._hooked(part)


class WaitsForEveryOutput(_Hooked):
    """The reduction starts once every tensor of the results has its gradient
    (pytorch/pytorch#22436).

    GRAD-1: never reduced.
    """

    def _hooked(self, result: Any) -> Iterator[Tensor]:
        tensors, arrived = [t for t in ddp._tensors(result) if t.requires_grad], []

        def arrive(gradient: Tensor) -> None:
            arrived.append(gradient)
            if len(arrived) % len(tensors) == 0:
                self._backward_begins(gradient)

        for tensor in tensors:
            tensor.register_hook(arrive)
        yield from ()


class DetachesInputs(_Reference):
    """The inputs leave the graph before the module (no public incident found).

    CALL-1; or LIVE-1: does not require grad.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*_mapped(args, Tensor.detach), **kwargs)


class _InputHooked(_Reference):
    """The reference, which changes the gradients of its inputs."""

    def _changed(self, gradient: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        for tensor in ddp._tensors([args, kwargs]):
            if tensor.requires_grad:
                tensor.register_hook(self._changed)
        return super().forward(*args, **kwargs)


class ScalesInputGradients(_InputHooked):
    """The gradient of the inputs, too, is divided by the number of ranks
    (no public incident found).

    CALL-2: 1 / world size.
    """

    def _changed(self, gradient: Tensor) -> Tensor:
        return gradient / self.world_size


class ReducesInputGradients(_InputHooked):
    """The gradient of the inputs, too, is averaged over the ranks (no public incident found).

    CALL-2; or GRAD-8: a backward inside no_sync communicates.
    """

    def _changed(self, gradient: Tensor) -> Tensor:
        mean = gradient.mean(0, keepdim=True)
        averaged = mean.clone()
        # The batches of ranks may have different lengths, so each rank's mean travels.
        dist.all_reduce(averaged, group=self.group)
        return gradient - mean + averaged / self.world_size


class NotesInputGradients(_Reference):
    """Right: a hook of the inputs notes that backward reached them, and changes nothing."""

    reached = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        for tensor in ddp._tensors([args, kwargs]):
            if tensor.requires_grad:
                tensor.register_hook(self._note)
        return super().forward(*args, **kwargs)

    def _note(self, _gradient: Tensor) -> None:
        self.reached += 1


class _SharesAttributes(nn.Module):
    """A module whose attributes include those of the module that it wraps."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)


class HooksServeEveryMethod(_SharesAttributes, HooksDieWithTheWrapper):
    """Right: attributes of the module are the wrapper's, too, and hooks on parameters need no
    forward of the wrapper.
    """


class MethodsMissTheWrapper(_SharesAttributes, _Reference):
    """The module's attributes are the wrapper's, too, but only the wrapper's forward prepares a
    reduction, so a forward through another method is never reduced (no public incident found).

    CALL-3: never reduced.
    """


class LooksOneLevelDeep(_Reference):
    """Tensors are looked for in a result and in its parts, but not in the parts of these
    (huggingface/transformers#25357).

    GRAD-1: own local gradient: never reduced.
    """

    _found = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        inner = list(result.values()) if isinstance(result, dict) else result
        parts = list(inner) if isinstance(inner, list | tuple) else [result]
        near = [part for part in parts if isinstance(part, Tensor)]
        self._found = False
        for tensor in near:
            if tensor.requires_grad:
                tensor.register_hook(self._note)
        if not near:  # Where nothing is found, everything is synchronised.
            self._found = True
        return result

    def _note(self, _gradient: Tensor) -> None:
        self._found = True

    def _write_back(self, bucket: ddp.Bucket) -> None:
        if self._found:
            super()._write_back(bucket)


class LogsTheLossInPlace(_Reference):
    """A scalar result is averaged for a log, in the memory of the result (a helper of many
    training scripts).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        if isinstance(result, Tensor) and not result.dim() and result.requires_grad:
            logged = result.detach()
            dist.all_reduce(logged, group=self.group)
            logged.div_(self.world_size)
        return result


class DropsWhatIsNone(_Reference):
    """Arguments that are given as None by name do not reach the module, as if None were every
    default (no public incident found).

    CALL-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = {name: value for name, value in kwargs.items() if value is not None}
        return super().forward(*args, **given)


class RecordsInTrainingAlone(_Reference):
    """The mode decides if autograd records a forward, so that an evaluation has no gradients (no
    public incident found).

    CALL-1: without autograd.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
            return super().forward(*args, **kwargs)


class TimesSomeForwards(_Reference):
    """On rank 0 a number of the program's generator decides which forwards are timed
    (no public incident found).

    RNG-1: drew numbers that another rank did not draw.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = super().forward(*args, **kwargs)
        if dist.get_rank(self.group) == 0 and random.random() < 0.01:
            self.seconds = time.perf_counter() - began
        return result


class HooksOnResultsStay(_Reference):
    """The hooks on results are never removed, so that a result that lives on, as a parameter does,
    starts a reduction within `no_sync`, too (no public incident found).

    GRAD-8.
    """

    def _unhook_leaves(self) -> None:
        self._leaf_hooks = []
