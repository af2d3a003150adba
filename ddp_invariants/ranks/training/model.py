"""A case's model as a torch module, one class a layer, all a page long."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ddp_invariants.cases.case import Loss
from ddp_invariants.cases.layers import ROWS, Checkpoint, Dtype, Layer, Model

_CPU = torch.device("cpu")


class Values:
    """Initial numbers, dealt out to tensors in order, on a device."""

    def __init__(self, values_P: NDArray[np.float64], device: torch.device = _CPU) -> None:
        self.values_P, self.taken, self.device = values_P, 0, device

    def take(self, *shape: int) -> Tensor:
        """The next numbers as a float64 tensor of that shape."""
        count = int(np.prod(shape, dtype=int))
        piece = self.values_P[self.taken : self.taken + count]
        self.taken += count
        return torch.from_numpy(piece.copy()).to(self.device).reshape(shape)

    def of(self, dtype: Dtype, *shape: int) -> Tensor:
        """The next numbers as a tensor of that dtype and shape; a complex element takes two."""
        kind: torch.dtype = getattr(torch, dtype)
        return (
            torch.view_as_complex(self.take(*shape, 2)) if kind.is_complex else self.take(*shape)
        ).to(kind)


def _entering(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A layer's input in its dtype: with its own reverse as the imaginary part where that is complex. Shape (B, D)."""
    if not dtype.is_complex:
        return x.to(dtype)
    x = x.to(
        dtype.to_real()
    )  # Once: what two casts pass back would be rounded before it is added up.
    return torch.complex(x, x.flip(1))


def _leaving(result: Tensor) -> Tensor:
    """A layer's result as a real one, in which neither part counts as the other does."""
    return result.real + 2 * result.imag if result.is_complex() else result


def _laid_out(values: Tensor, layer: Layer) -> Tensor:
    """A (out, in) weight in the layer's memory layout."""
    rows, columns = values.shape
    if layer.layout == "transposed":
        return values.t().contiguous().t()
    if layer.layout == "strided":
        return torch.stack([values, torch.zeros_like(values)], dim=2).reshape(rows, 2 * columns)[
            :, ::2
        ]
    if layer.layout == "channels_last":
        return values.reshape(rows, columns // 4, 2, 2).contiguous(
            memory_format=torch.channels_last
        )
    return values


class _Layer(nn.Module):
    """What all layers share.

    Attributes:
        at_forward: Called with the layer first thing in its forward, when whoever shards parameters
            must have them whole.
    """

    at_forward: Callable[[nn.Module], None] | None = None

    def begin(self) -> None:
        """To be called first in every forward."""
        if self.at_forward is not None:
            self.at_forward(self)


class Linear(_Layer):
    """x @ W.T + b."""

    def __init__(self, layer: Layer, inputs: int, values: Values, owner: "Linear | None") -> None:
        super().__init__()
        trainable = not layer.frozen
        drawn = values.of(layer.dtype, layer.outputs, inputs)
        self.weight: nn.Parameter = (
            nn.Parameter(_laid_out(drawn, layer), trainable) if owner is None else owner.weight
        )
        self.bias = (
            nn.Parameter(values.of(layer.dtype, layer.outputs), trainable) if layer.bias else None
        )
        self.outputs = layer.outputs

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, in) to (B, out)."""
        self.begin()
        weight = self.weight if self.weight.dim() == 2 else self.weight.reshape(self.outputs, -1)
        return _leaving(nn.functional.linear(_entering(x, weight.dtype), weight, self.bias))


class Scale(_Layer):
    """x times a 0-d parameter."""

    def __init__(self, layer: Layer, values: Values) -> None:
        super().__init__()
        self.factor = nn.Parameter(values.of(layer.dtype), not layer.frozen)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        self.begin()
        return _leaving(_entering(x, self.factor.dtype) * self.factor)


class Empty(_Layer):
    """x plus the sum of a parameter without elements, which is zero."""

    def __init__(self, layer: Layer, inputs: int, values: Values) -> None:
        super().__init__()
        self.nothing = nn.Parameter(values.of(layer.dtype, 0, inputs), not layer.frozen)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        self.begin()
        return x.to(self.nothing.dtype) + self.nothing.sum()


class Branches(_Layer):
    """The difference of two products, of which autograd first gets to the one computed last.

    Attributes:
        crossed: Whether the first is.
    """

    def __init__(self, layer: Layer, inputs: int, values: Values) -> None:
        super().__init__()
        dtype, trainable = getattr(torch, layer.dtype), not layer.frozen
        self.first = nn.Parameter(values.take(inputs, inputs).to(dtype), trainable)
        self.second = nn.Parameter(values.take(inputs, inputs).to(dtype), trainable)
        self.crossed = False

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        self.begin()
        x = x.to(self.first.dtype)
        if self.crossed:
            second = nn.functional.linear(x, self.second)
            return nn.functional.linear(x, self.first) - second
        return nn.functional.linear(x, self.first) - nn.functional.linear(x, self.second)


class Embedding(_Layer, nn.Embedding):
    """x plus a row of a table, by the sign and the magnitude of the sample's first input.

    It is an nn.Embedding, since torch's DDP asks by type who has sparse gradients.
    """

    def __init__(self, layer: Layer, inputs: int, values: Values) -> None:
        drawn = values.take(ROWS, inputs).to(getattr(torch, layer.dtype))
        nn.Embedding.__init__(
            self, ROWS, inputs, sparse=layer.sparse, _weight=drawn, _freeze=layer.frozen
        )

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        self.begin()
        # Whether the exponent is odd is the same in every format that holds the input, and changes
        # with its magnitude.
        first = x.detach()[:, 0].double()
        rows = 2 * (first < 0) + (torch.frexp(first).exponent & 1)
        return x.to(self.weight.dtype) + nn.Embedding.forward(self, rows)


class Convolution(_Layer):
    """A kernel of 2 x 2 over images of 2 x 2 that are padded above and to the left."""

    def __init__(self, layer: Layer, inputs: int, values: Values) -> None:
        super().__init__()
        dtype, trainable = getattr(torch, layer.dtype), not layer.frozen
        channels_last = layer.layout == "channels_last"
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        kernel = (
            values.take(layer.outputs, inputs // 4, 2, 2)
            .to(dtype)
            .contiguous(memory_format=self.format)
        )
        self.kernel = nn.Parameter(kernel, trainable)
        self.bias = (
            nn.Parameter(values.take(layer.outputs).to(dtype), trainable) if layer.bias else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, 4 C) to (B, 4 O)."""
        self.begin()
        images = (
            x.to(self.kernel.dtype).reshape(len(x), -1, 2, 2).contiguous(memory_format=self.format)
        )
        return nn.functional.conv2d(
            nn.functional.pad(images, (1, 0, 1, 0)), self.kernel, self.bias
        ).reshape(len(x), -1)


class Norm(_Layer):
    """A LayerNorm over all of a sample."""

    def __init__(self, layer: Layer, inputs: int, values: Values) -> None:
        super().__init__()
        dtype, trainable = getattr(torch, layer.dtype), not layer.frozen
        self.gain = nn.Parameter(values.take(inputs).to(dtype), trainable)
        self.shift = nn.Parameter(values.take(inputs).to(dtype), trainable)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        self.begin()
        return nn.functional.layer_norm(
            x.to(self.gain.dtype), self.gain.shape, self.gain, self.shift
        )


class BatchNorm(_Layer, nn.BatchNorm2d):
    """Each channel of 2 x 2 pixels by the mean and variance of a rank's batch; in evaluation, by running ones.

    It is an nn.BatchNorm2d, since wrappers ask by type who keeps statistics.
    """

    def __init__(self, layer: Layer, inputs: int, values: Values) -> None:
        dtype, trainable = getattr(torch, layer.dtype), not layer.frozen
        nn.BatchNorm2d.__init__(self, inputs // 4)
        self.weight = nn.Parameter(values.take(inputs // 4).to(dtype), trainable)
        bias = nn.Parameter(values.take(inputs // 4).to(dtype), trainable) if layer.bias else None
        self.bias = bias  # type: ignore[assignment]  # torch types it as always there
        self.running_mean = values.take(inputs // 4).to(dtype)
        self.running_var = values.take(inputs // 4).abs().to(dtype)
        self.num_batches_tracked = values.take().abs().mul(8).long()

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, 4 C) to (B, 4 C); updates the buffers in training."""
        self.begin()
        return nn.BatchNorm2d.forward(
            self, x.to(self.weight.dtype).reshape(len(x), -1, 2, 2)
        ).reshape(len(x), -1)


class Attention(_Layer):
    """What two tokens attend to under one head, added to them."""

    def __init__(self, layer: Layer, inputs: int, values: Values) -> None:
        super().__init__()
        dtype, trainable, width = getattr(torch, layer.dtype), not layer.frozen, inputs // 2
        self.query = nn.Parameter(values.take(width, width).to(dtype), trainable)
        self.key = nn.Parameter(values.take(width, width).to(dtype), trainable)
        self.value = nn.Parameter(values.take(width, width).to(dtype), trainable)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        self.begin()
        tokens = x.to(self.query.dtype).reshape(len(x), 2, -1)
        queries, keys, values = (
            nn.functional.linear(tokens, weight) for weight in (self.query, self.key, self.value)
        )
        shares = torch.softmax(queries @ keys.transpose(1, 2) * tokens.shape[2] ** -0.5, 2)
        return (tokens + shares @ values).reshape(len(x), -1)


def entries(gradient: Tensor) -> Tensor:
    """What a gradient is kept as the sum of: shape (n, *its own), of a sparse one a row each, of another itself alone."""
    if not gradient.is_sparse:
        return gradient[None]
    rows, values = gradient._indices()[0], gradient._values()
    apart = values.new_zeros(len(rows), *gradient.shape)
    apart[torch.arange(len(rows), device=rows.device), rows] = values
    return apart


class Statistics(_Layer):
    """Passes x on and keeps a running mean, a count of what was positive and a mask in buffers.

    The mean is assigned anew, as modules may: who keeps a list of buffers keeps the old one.
    """

    def __init__(self, inputs: int, values: Values) -> None:
        super().__init__()
        self.running: Tensor
        self.count: Tensor
        self.seen: Tensor
        self.register_buffer("running", values.take(inputs).float())
        self.register_buffer("count", values.take().mul(8).long())
        self.register_buffer("seen", values.take(inputs) > 0)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to the same (B, D); updates the buffers in training."""
        self.begin()
        if self.training:
            with torch.no_grad():
                mean = x.float().mean(0)
                self.running = 0.5 * self.running + 0.5 * mean
                self.count.add_((x > 0).sum())
                self.seen.logical_or_(mean > 0)
        return x


class Dropout(_Layer):
    """Makes each number of its input zero or twice itself: both exact, so that nothing of it is rounding.

    By torch.rand, which takes a number of the generator for each that it gives: how many random
    bits torch's own dropout spends on a mask is the affair of its build, and what all ranks draw
    alike is to be told from chance by them.

    Attributes:
        given: What it multiplies by in the next forwards, instead of what it draws: what another
            drew. 0, 1 and 2.
        at_draw: Called in every forward that draws by itself with what it multiplies by, float32 in
            the shape of its input.
    """

    given: Tensor | None = None
    at_draw: Callable[[Tensor], None] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D), of the same dtype."""
        self.begin()
        if self.given is not None:
            return x * self.given.to(x)
        factors = (
            (torch.rand(x.shape, device=x.device) < 0.5).float() * 2
            if self.training
            else torch.ones_like(x).float()
        )
        if self.at_draw is not None:
            self.at_draw(factors)
        return x * factors.to(x.dtype)


class UserError(Exception):
    """An exception of the user's own code in the middle of a step."""


def _fail(_gradient: Tensor) -> None:
    raise UserError("the user's backward failed, on purpose")


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
        device: Where it is.

    Attributes:
        at_forward: Called first thing in every forward: the one moment no wrapper can delay.
        passed_by: Indices of layers that forwards pass by.
        failing: Where the next pass raises `UserError`: in the middle of its `forward` or
            `backward`; empty for nowhere.
    """

    def __init__(
        self, model: Model, values_P: NDArray[np.float64], device: torch.device = _CPU
    ) -> None:
        super().__init__()
        self.at_forward: Callable[[], None] | None = None
        self.passed_by: frozenset[int] = frozenset()
        self.failing = ""
        self.layers: Any = nn.ModuleList()
        self._activations = [ACTIVATIONS[layer.activation] for layer in model.layers]
        self._calls = [1 + layer.twice for layer in model.layers]
        self._checkpoints: list[Checkpoint] = [layer.checkpoint for layer in model.layers]
        values, widths = Values(values_P, device), model.widths()
        for index, layer in enumerate(model.layers):
            self.layers.append(self._build(layer, widths[index], values))

    def _build(self, layer: Layer, inputs: int, values: Values) -> nn.Module:
        if layer.kind == "linear":
            owner: Any = None if layer.tied is None else self.layers[layer.tied]
            return Linear(layer, inputs, values, owner)
        if layer.kind == "scale":
            return Scale(layer, values)
        if layer.kind == "branches":
            return Branches(layer, inputs, values)
        if layer.kind == "empty":
            return Empty(layer, inputs, values)
        kinds: dict[str, Callable[[Layer, int, Values], nn.Module]] = {
            "embedding": Embedding,
            "convolution": Convolution,
            "norm": Norm,
            "attention": Attention,
            "batch_norm": BatchNorm,
            "dropout": lambda *_: Dropout(),
        }
        if layer.kind in kinds:
            return kinds[layer.kind](layer, inputs, values)
        return Statistics(inputs, values)

    @property
    def drawing(self) -> list[Dropout]:
        """The layers that draw random numbers."""
        return [layer for layer in self.layers if isinstance(layer, Dropout)]

    def cross(self) -> None:
        """Compute branches in the other order from now on."""
        for layer in self.layers:
            layer.crossed = True

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D in), float32, to (B, D out) in the last layer's dtype."""
        if self.at_forward is not None:
            self.at_forward()
        for index, (layer, activation) in enumerate(
            zip(self.layers, self._activations, strict=True)
        ):
            if index not in self.passed_by:
                for _ in range(self._calls[index]):
                    x = (
                        layer(x)
                        if self._checkpoints[index] == "none"
                        else self._checkpointed(index, layer, x)
                    )
                    if activation is not None:
                        x = activation(x)
            if self.failing and layer is self.layers[(len(self.layers) - 1) // 2]:
                self._fail_here(x)
        return x

    def _checkpointed(self, index: int, layer: nn.Module, x: Tensor) -> Tensor:
        """A layer whose forward backward runs again. Shape (B, in) to (B, out)."""
        reentrant = self._checkpoints[index] == "reentrant"
        if (
            reentrant and not x.requires_grad
        ):  # Or nothing within would get a gradient: whoever uses it knows.
            x = x.detach().requires_grad_()
        result: Tensor = checkpoint(layer, x, use_reentrant=reentrant)
        return result

    def freeze(self, index: int, *, frozen: bool) -> None:
        """Train a layer from now on, or freeze it and clear its gradients."""
        for parameter in self.layers[index].parameters():
            parameter.requires_grad_(not frozen)
            if frozen:
                parameter.grad = None

    def _fail_here(self, x: Tensor) -> None:
        """Raise now, or when backward gets here; further down where nothing before this is trained."""
        if self.failing == "forward" or not x.requires_grad:
            raise UserError("the user's forward failed, on purpose")
        x.register_hook(_fail)


def loss_of(kind: Loss, outputs: Tensor, targets: Tensor, tags: Tensor) -> Tensor:
    """The case's loss (`TrainingCase.loss`). Shape (B, D), (B, D), (B,) to 0-d, float64.

    In float64, so that the tags (draws.Dataset) survive beside large errors and the mean adds no
    rounding of its own.
    """
    if kind == "mse":
        return (outputs.double() - targets).square().mean()
    return ((outputs.double() - targets).square().sum(1) + tags).mean()
