"""A case's model as a torch module."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ddp_invariants.cases.case import Loss
from ddp_invariants.cases.layers import Checkpoint, Model
from ddp_invariants.cases.numbers import FloatArray
from ddp_invariants.ranks.training.layer import CPU, Values
from ddp_invariants.ranks.training.layers import built
from ddp_invariants.ranks.training.layers.branches import Branches
from ddp_invariants.ranks.training.layers.dropout import NotedDropout


def entries(gradient: Tensor) -> Tensor:
    """Return the tensors a gradient is kept as the sum of. Shape (n, *its own).

    A sparse gradient has one entry for each row it keeps; any other is its own only entry.
    """
    if not gradient.is_sparse:
        return gradient[None]
    rows, values = gradient._indices()[0], gradient._values()
    apart = values.new_zeros(len(rows), *gradient.shape)
    apart[torch.arange(len(rows), device=rows.device), rows] = values
    return apart


class UserError(Exception):
    """An exception of the user's own code in the middle of a step."""


class UserInterrupt(BaseException):
    """An exception of the user's own that is no `Exception`, as `KeyboardInterrupt` is none."""


def fail(raised: type[BaseException], _gradient: Tensor) -> None:
    """Raise an exception of the user's own from a hook on a gradient."""
    raise raised("the user's backward failed, on purpose")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "none": None,
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
}


class Replica(nn.Module):
    """One rank's copy of the model.

    Args:
        model: The plan.
        values_P: Initial numbers of all parameters and buffers; `model.numbers` of them or more.
        device: The device it is on.

    Attributes:
        at_forward: Called as every forward begins; no wrapper can delay this moment.
        passed_by: Indices of layers that forwards pass by.
        calls_layers: False if forwards run the `forward` of layers without calling them.
        failing: The pass that raises in its middle, `forward` or `backward`; empty for none.
        raised: The class of the exception that it raises.
    """

    factor: nn.Parameter
    """The factor of the layer that `Model.rooted` names."""

    def __init__(self, model: Model, values_P: FloatArray, device: torch.device = CPU) -> None:
        super().__init__()
        self.at_forward: Callable[[], None] | None = None
        self.passed_by: frozenset[int] = frozenset()
        self.calls_layers = True
        self.failing = ""
        self.raised: type[BaseException] = UserError
        self._paths = [model.path(index) for index in range(len(model.layers))]
        self._activations = [ACTIVATIONS[layer.activation] for layer in model.layers]
        self._calls = [1 + layer.twice for layer in model.layers]
        self._checkpoints: list[Checkpoint] = [layer.checkpoint for layer in model.layers]
        self._rooted = model.rooted
        values, widths = Values(values_P, device), model.widths()
        for index, layer in enumerate(model.layers):
            owner: Any = None if layer.tied is None else self.get_submodule(self._paths[layer.tied])
            if index == self._rooted:
                owner = self
            self._register(self._paths[index], built(layer, widths[index], values, owner))
        lists = (name for name, each in self._modules.items() if isinstance(each, nn.ModuleList))
        self._list = next(lists, "")

    def _register(self, path: str, layer: nn.Module) -> None:
        """Put a layer where its path says, in a container if the path has a dot."""
        container, dot, name = path.rpartition(".")
        if dot and container not in self._modules:
            numbered = name.isdigit()
            self.add_module(container, nn.ModuleList() if numbered else nn.ModuleDict())
        self.get_submodule(container).add_module(name, layer)

    @property
    def stack(self) -> Any:
        """The layers in the order of a forward, as they are now: a wrapper may replace a module."""
        if self._list:
            return getattr(self, self._list)
        return [self.get_submodule(path) for path in self._paths]

    def named_modules(
        self,
        memo: set[nn.Module] | None = None,
        prefix: str = "",
        remove_duplicate: bool = True,  # noqa: FBT001, FBT002 - torch's
    ) -> Iterator[tuple[str, nn.Module]]:
        """Return this module and all within, as torch does, without a generator for each.

        Every look at parameters or buffers begins here, some tens of times in a step.
        """
        modules: list[tuple[str, nn.Module]] = []
        _add_modules(self, set() if memo is None else memo, prefix, remove_duplicate, modules)
        return iter(modules)

    def held(self, index: int) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters that a layer computes with, each with its name in the layer."""
        if index == self._rooted:
            return list(self.named_parameters(recurse=False))
        return list(self.stack[index].named_parameters())

    @property
    def drawing(self) -> list[NotedDropout]:
        """The layers that draw random numbers."""
        return [layer for layer in self.modules() if isinstance(layer, NotedDropout)]

    def cross(self) -> None:
        """Compute branches in the other order from now on."""
        for layer in self.modules():
            if isinstance(layer, Branches):
                layer.crossed = True

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D in), float32, to (B, D out) in the last layer's dtype."""
        return self.encode(x)

    def encode(self, x: Tensor) -> Tensor:
        """Compute as a forward does, for programs that call another method of the module."""
        if self.at_forward is not None:
            self.at_forward()
        if self.passed_by:
            x = x.view_as(x)  # No result is the input itself, which others use after this forward.
        layers = self.stack
        for index, (layer, activation) in enumerate(zip(layers, self._activations, strict=True)):
            if index not in self.passed_by:
                run = layer if self.calls_layers else layer.forward
                for _ in range(self._calls[index]):
                    x = (
                        run(x)
                        if self._checkpoints[index] == "none"
                        else self._checkpointed(index, layer, x)
                    )
                    if activation is not None:
                        x = activation(x)
            if self.failing and index == (len(layers) - 1) // 2:
                self._fail_here(x)
        return x

    def _checkpointed(self, index: int, layer: nn.Module, x: Tensor) -> Tensor:
        """Run a layer's forward, which backward runs again. Shape (B, in) to (B, out)."""
        reentrant = self._checkpoints[index] == "reentrant"
        # Without an input that requires a gradient, no parameter inside would get one.
        if reentrant and not x.requires_grad:
            x = x.detach().requires_grad_()
        result: Tensor = checkpoint(layer, x, use_reentrant=reentrant)
        return result

    def freeze(self, index: int, *, frozen: bool, clears: bool = True) -> None:
        """Train a layer from now on, or freeze it.

        Args:
            index: The layer.
            frozen: True to freeze it.
            clears: True to clear its gradients, too, if the program does not set them to None
                before the next update.
        """
        for _, parameter in self.held(index):
            parameter.requires_grad_(not frozen)
            if frozen and clears:
                parameter.grad = None

    def _fail_here(self, x: Tensor) -> None:
        """Raise now, or when backward gets here; now, too, if no layer before this is trained."""
        if self.failing == "forward" or not x.requires_grad:
            raise self.raised("the user's forward failed, on purpose")
        x.register_hook(partial(fail, self.raised))


def _add_modules(
    module: nn.Module,
    memo: set[nn.Module],
    prefix: str,
    once: bool,  # noqa: FBT001 - torch's `remove_duplicate`
    modules: list[tuple[str, nn.Module]],
) -> None:
    """Add a module and all within to a list, with their names."""
    if module in memo:
        return
    if once:
        memo.add(module)
    modules.append((prefix, module))
    for name, child in module._modules.items():
        if child is None:
            continue
        where = f"{prefix}.{name}" if prefix else name
        if type(child).named_modules is nn.Module.named_modules:
            _add_modules(child, memo, where, once, modules)
        else:
            modules += child.named_modules(memo, where, once)


def loss_of(kind: Loss, outputs: Tensor, targets: Tensor, tags: Tensor) -> Tensor:
    """Return the case's loss (`TrainingCase.loss`). Shape (B, D), (B, D), (B,) to 0-d, float64.

    In float64 the tags (numbers.Dataset) survive beside large errors, and the mean adds no rounding
    of its own.
    """
    if kind == "mse":
        return (outputs.double() - targets).square().mean()
    return ((outputs.double() - targets).square().sum(1) + tags).mean()
