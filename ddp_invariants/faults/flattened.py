"""All gradients of one dtype in one buffer, which is reduced once at the end of backward."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from ddp_invariants.faults._hooks import weakly
from ddp_invariants.faults._start import broadcast


class Flattened(nn.Module):
    """Right: a callback at the end of backward packs the gradients of each dtype, averages them and
    hands them back.
    """

    # Every rank must have every gradient: whole, and of the parameters at the start.
    declares: ClassVar[dict[str, Any]] = {
        "unsupported": ("unused", "assign", "unfreeze", "in_parts")
    }

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        self.world_size = dist.get_world_size(process_group)
        self.syncing, self._queued = True, False
        self._prepare()
        broadcast([*module.parameters(), *module.buffers()], process_group)
        # Later layers first, as backward reaches them.
        self.parameters_of = self._by_dtype(
            [p for p in reversed(list(module.parameters())) if p.requires_grad]
        )
        for parameters in self.parameters_of.values():
            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(weakly(self._ready))

    def _prepare(self) -> None:
        """Do nothing; a fault changes the module here."""

    def _by_dtype(self, parameters: list[nn.Parameter]) -> dict[torch.dtype, list[nn.Parameter]]:
        return {
            dtype: [p for p in parameters if p.dtype == dtype]
            for dtype in dict.fromkeys(p.dtype for p in parameters)
        }

    def forward(self, *inputs: Any) -> Any:
        self._queued = False  # A backward that raised never reached its callback.
        return self.module(*inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.syncing = self.syncing, False
        try:
            yield
        finally:
            self.syncing = before

    def _ready(self, _parameter: Tensor) -> None:
        if self.syncing and not self._queued:
            self._queued = True
            Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        self._queued = False
        for parameters in self.parameters_of.values():
            used = [p for p in parameters if p.grad is not None]
            if used:
                flat = self._flatten([p.grad for p in used if p.grad is not None])
                self._average(flat)
                self._unflatten(flat, used)

    def _flatten(self, gradients: list[Tensor]) -> Tensor:
        return torch.cat([gradient.reshape(-1) for gradient in gradients])

    def _average(self, flat: Tensor) -> None:
        dist.all_reduce(flat, group=self.group)
        flat /= self.world_size

    def _unflatten(self, flat: Tensor, parameters: list[nn.Parameter]) -> None:
        for parameter, piece in zip(
            parameters, flat.split([p.numel() for p in parameters]), strict=True
        ):
            assert parameter.grad is not None
            parameter.grad.copy_(piece.view(parameter.shape))


class FirstDtypeForAll(Flattened):
    """One buffer holds all gradients in the dtype of the first one, whatever their own
    (facebookresearch/fairscale#583).

    GRAD-2: rounded to bfloat16; or GRAD-2: rounded to float32.
    """

    def _by_dtype(self, parameters: list[nn.Parameter]) -> dict[torch.dtype, list[nn.Parameter]]:
        return {parameters[0].dtype: parameters}

    def _flatten(self, gradients: list[Tensor]) -> Tensor:
        return torch.cat([gradient.reshape(-1).to(gradients[0].dtype) for gradient in gradients])


class FirstDtypeOnly(Flattened):
    """Only the buffer of the first dtype is reduced (no public incident found).

    GRAD-1: never reduced.
    """

    def _by_dtype(self, parameters: list[nn.Parameter]) -> dict[torch.dtype, list[nn.Parameter]]:
        return {parameters[0].dtype: [p for p in parameters if p.dtype == parameters[0].dtype]}


class InStorageOrder(Flattened):
    """Gradients are packed in memory order and unpacked in index order
    (pytorch's test_grad_layout_* guard against it).

    GRAD-2: elements in.
    """

    def _flatten(self, gradients: list[Tensor]) -> Tensor:
        return torch.cat([gradient.as_strided((gradient.numel(),), (1,)) for gradient in gradients])


class CountFirst(Flattened):
    """A count of ranks is sent in front of the gradients and read back as their first element
    (no public incident found).

    GRAD-2.
    """

    def _flatten(self, gradients: list[Tensor]) -> Tensor:
        return torch.cat([gradients[0].new_ones(1), super()._flatten(gradients)])

    def _unflatten(self, flat: Tensor, parameters: list[nn.Parameter]) -> None:
        super()._unflatten(flat[:-1], parameters)


class AddsToTheBuffer(Flattened):
    """The buffer is kept for the next step, and gradients are added to its old content
    (NVIDIA/Megatron-LM#4609).

    GRAD-5: not cleared.
    """

    def _flatten(self, gradients: list[Tensor]) -> Tensor:
        if not hasattr(self, "_kept"):
            self._kept: dict[torch.dtype, Tensor] = {}
        flat = super()._flatten(gradients)
        if flat.dtype in self._kept:
            flat += self._kept[flat.dtype]
        self._kept[flat.dtype] = flat
        return flat


class ReducesItsOwnViews(Flattened):
    """Gradients are views of the buffer, until zero_grad puts None in their place
    (facebookresearch/fairscale#354).

    GRAD-1: never reduced.
    """

    def _finish(self) -> None:
        for flat in self._buffers_of.values():
            self._average(flat)

    def forward(self, *inputs: Any) -> Any:
        if not hasattr(self, "_buffers_of"):
            self._buffers_of = {
                dtype: torch.zeros(sum(p.numel() for p in parameters), dtype=dtype)
                for dtype, parameters in self.parameters_of.items()
            }
            for dtype, parameters in self.parameters_of.items():
                for p, piece in zip(
                    parameters,
                    self._buffers_of[dtype].split([p.numel() for p in parameters]),
                    strict=True,
                ):
                    p.grad = piece.view(p.shape)
        return super().forward(*inputs)


class HandsBackViews(Flattened):
    """Right: gradients are views of the buffer from the first step on, and those that are not are
    copied into the buffer before it is reduced.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group)
        self.pieces: dict[Tensor, Tensor] = {}
        self.buffers_of: dict[torch.dtype, Tensor] = {}
        for dtype, parameters in self.parameters_of.items():
            sizes = [p.numel() for p in parameters]
            self.buffers_of[dtype] = torch.zeros(
                sum(sizes), dtype=dtype, device=parameters[0].device
            )
            pieces = self.buffers_of[dtype].split(sizes)
            self.pieces |= dict(zip(parameters, pieces, strict=True))
        self.views = {p: piece.view(p.shape) for p, piece in self.pieces.items()}

    def _finish(self) -> None:
        self._queued = False
        for dtype, parameters in self.parameters_of.items():
            used = [p for p in parameters if p.grad is not None]
            for p in used:
                if self._moved(p, used):
                    self.views[p] = self.pieces[p].view(p.shape)
                    self.views[p].copy_(p.grad)  # type: ignore[arg-type]  # it has one
            if used:
                self._average(self.buffers_of[dtype])
            for p in used:
                p.grad = self.views[p]

    def _moved(self, parameter: Tensor, _used: list[nn.Parameter]) -> bool:
        # A cast of the module puts other memory into the same gradient.
        return parameter.grad.data_ptr() != self.pieces[parameter].data_ptr()  # type: ignore[union-attr]


class AsksTheLastParameter(HandsBackViews):
    """Gradients count as views of the buffer if the last parameter's gradient is one
    (similar: pytorch/pytorch#44798).

    GRAD-5: the gradient was lost.
    """

    def _moved(self, _parameter: Tensor, used: list[nn.Parameter]) -> bool:
        return super()._moved(used[-1], used)


class TrustsItsOwnViews(HandsBackViews):
    """A gradient counts as a view of the buffer as long as it is the same object, although a cast of
    the module gives it other memory (no public incident found).

    LIVE-5: never reduced.
    """

    def _moved(self, parameter: Tensor, _used: list[nn.Parameter]) -> bool:
        return parameter.grad is not self.views[parameter]


class ReadsBeforeWaiting(Flattened):
    """The sum is started, divided and handed back before it is waited for
    (a late wait: meta-pytorch/torchrec#4421).

    COMM-2: it changes when results are withheld.
    """

    def _average(self, flat: Tensor) -> None:
        self._work = dist.all_reduce(flat, group=self.group, async_op=True)

    def _unflatten(self, flat: Tensor, parameters: list[nn.Parameter]) -> None:
        super()._unflatten(flat / self.world_size, parameters)
        self._work.wait()


class Counts(Flattened):
    """The wrapper counts gradients, and a backward that raises does not reset the count
    (picotron after an exception).

    LIVE-2: never reduced; or LIVE-5: never reduced.
    """

    _count = 0

    def _ready(self, _parameter: Tensor) -> None:
        self._count += self.syncing
        if self._count == sum(map(len, self.parameters_of.values())):
            self._count = 0
            self._finish()


class PartsTiedParameters(Flattened):
    """Each name gets a new parameter, so parameters that were tied no longer are
    (no public incident found).

    INIT-3: tied to.
    """

    def _prepare(self) -> None:
        for layer in self.module.modules():
            for name, parameter in list(layer.named_parameters(recurse=False)):
                setattr(
                    layer, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                )
