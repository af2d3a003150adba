"""The model of a case, as data. The ranks build a torch module from it, the oracle uses numpy.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from math import prod
from typing import Literal

from ddp_invariants.cases.dtypes import DTYPES, Dtype
from ddp_invariants.cases.fields import Strict, between, one_of, require
from ddp_invariants.cases.kinds import KINDS, ROWS, Kind, LayerKind

__all__ = [
    "BUFFERS",
    "PASSING",
    "ROWS",
    "Checkpoint",
    "Layer",
    "LayerKind",
    "Layout",
    "Model",
    "Naming",
]

Layout = Literal["contiguous", "transposed", "strided", "channels_last"]
Checkpoint = Literal["none", "plain", "reentrant"]
Activation = Literal["none", "relu", "gelu"]
Naming = Literal["numbered", "module", "underscored", "joined", "cased", "rooted"]

LARGEST_WIDTH = 1 << 20
"""The largest width of a layer: a larger number is a typing error."""

MOST_NUMBERS = 1 << 22
"""The most numbers of a model; ranks would record more evidence of a larger one than they may."""


@dataclass(frozen=True)
class Layer(Strict):
    """One layer of the model.

    Attributes:
        kind: `linear` is x @ W.T + b. `scale` multiplies by a 0-d parameter. `empty` adds the sum
            of a parameter without elements. `statistics` has buffers (float, integer, bool) and no
            parameter. `branches` is x @ F.T - x @ S.T; a rank may compute either product first
            (`TrainingCase.crossed`). `embedding` adds a row of a table of `ROWS`; the sample's
            first input chooses the row. `convolution` has a kernel of 2 x 2; its inputs are
            channels of 2 x 2 pixels, padded above and to the left. `norm` is a LayerNorm.
            `attention` has one head and two tokens of half the width, and adds its input to the
            result. `batch_norm` is a BatchNorm2d over channels of 2 x 2 pixels, so that even one
            sample has four numbers a channel; in training it norms by the rank's batch and changes
            a running mean, a running variance and a count in its buffers, in evaluation it norms
            by these. `dropout` multiplies each number by zero or two in training, as torch's
            default generator decides, and passes its input on in evaluation. `terms` adds up the
            products of its input with `outputs` vectors, each with a share of its own (`share`).
            The vectors are named `module.0`, `module.1`, …. `extremes` has buffers of seven dtypes and
            no parameter; `cases.extremes` says which numbers they hold.
            `mixed` is x * gain + shift, with a shift in float64. `summed` is x * (base + delta), and
            autograd hands one tensor on as the gradient of both parameters. `counter` has one buffer, an integer,
            and no parameter. `shared_buffer` is the same, and a child module holds the same buffer.
            `parametrized` is x * (2 * v): a parametrization of torch moves the vector v into a child
            module, and computes 2 * v each time the layer reads its factor.
            `loss_only` has a vector that only the loss uses, as part of a penalty on parameters.
        outputs: Width of the result of a `linear` layer; channels of that of a `convolution`;
            number of vectors of `terms`.
        bias: True if a `linear` layer, a `convolution` or a `batch_norm` adds a vector.
        activation: The function applied to the result: none, max(x, 0), or x times the normal
            distribution's integral.
        layout: The memory layout of a linear weight. `channels_last` is stored as a 4-d tensor and
            needs an input width divisible by 4. A convolution's kernel and its images are
            `contiguous` or `channels_last`. The mask of `statistics` may be `strided`.
        dtype: Of the layer's parameters; the input is cast to it. A `linear` or `scale` layer may
            be complex. It then computes z of x + i reverse(x) and returns Re z + 2 Im z, so that
            the layers around it stay real.
        frozen: True if the parameters have requires_grad = False.
        tied: Index of an earlier linear layer or of the embedding, whose weight this layer uses;
            None for a weight of its own.
        checkpoint: `none`, or the way in which backward computes the layer again
            (torch.utils.checkpoint): within the running backward (`plain`), or in a second
            backward inside it (`reentrant`).
        twice: True if a forward calls a linear layer a second time, on its own result.
        sparse: True if an embedding's gradient is sparse: one entry for each time a row was chosen.
    """

    kind: LayerKind
    outputs: int = 1
    bias: bool = False
    activation: Activation = "none"
    layout: Layout = "contiguous"
    dtype: Dtype = "float32"
    frozen: bool = False
    tied: int | None = None
    checkpoint: Checkpoint = "none"
    sparse: bool = False
    twice: bool = False

    def __post_init__(self) -> None:
        one_of("kind", self.kind, LayerKind)
        one_of("checkpoint", self.checkpoint, Checkpoint)
        one_of("activation", self.activation, Activation)
        one_of("layout", self.layout, Layout)
        one_of("dtype", self.dtype, Dtype)
        between("outputs", self.outputs, 1, LARGEST_WIDTH)
        self._require_computable()
        self._require_kind()

    def _require_computable(self) -> None:
        """Check the fields that make a pass compute the layer more than once."""
        require(
            not self.twice or (self.of_kind.twice and self.checkpoint == "none"),
            "twice",
            self.twice,
            "false if the layer is not linear, or computed again in backward",
        )
        require(
            self.checkpoint == "none" or not self.buffers,
            "checkpoint",
            self.checkpoint,
            f"'none': a {self.kind} layer would update its buffers twice",
        )
        require(
            self.checkpoint == "none" or not self.of_kind.draws,
            "checkpoint",
            self.checkpoint,
            "'none' for dropout: torch, not the wrapper, repeats its random numbers in backward",
        )

    def _require_kind(self) -> None:
        """Check the layout, the dtype and the gradient of the layer against its kind."""
        require(
            not self.of_kind.layouts or self.layout in self.of_kind.layouts,
            "layout",
            self.layout,
            "'contiguous' or 'channels_last' for a convolution",
        )
        require(
            self.of_kind.low or not DTYPES[self.dtype].low,
            "dtype",
            self.dtype,
            f"'float32' or 'float64' for {self.kind}: "
            f"in {self.dtype} its error has no useful bound",
        )
        require(
            not self.complex or self.of_kind.complex,
            "dtype",
            self.dtype,
            f"a real dtype for {self.kind}",
        )
        require(
            not self.sparse or self.of_kind.sparse,
            "sparse",
            self.sparse,
            "false if the layer has no embedding table",
        )

    @property
    def of_kind(self) -> Kind:
        """The row of the layer's kind in the table of kinds."""
        return KINDS[self.kind]

    @property
    def complex(self) -> bool:
        """True if the layer's parameters are complex."""
        return bool(DTYPES[self.dtype].part)

    def dtype_of(self, parameter: str) -> str:
        """Return the dtype of one of the layer's parameters."""
        return self.of_kind.parameter_dtypes.get(parameter, self.dtype)

    @property
    def lowered(self) -> Dtype:
        """The dtype the layer computes in under autocast to bfloat16.

        Autocast casts the operands of products, unless they are float64.
        """
        return "bfloat16" if self.of_kind.product and DTYPES[self.dtype].lowered else self.dtype

    @property
    def buffers(self) -> tuple[str, ...]:
        """The names of the layer's buffers, in the order of registration."""
        return tuple(self.of_kind.buffers(0))

    @property
    def used(self) -> tuple[str, ...]:
        """The names of the parameters of the layer, with a tied weight."""
        return tuple(self._parameters(0))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the layer's own parameters, in the order of registration."""
        return tuple(name for name in self.used if name != "weight" or self.tied is None)

    def _parameters(self, width: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters that the layer computes with, at an input width."""
        shapes = self.of_kind.parameters(self, width)
        return {name: shape for name, shape in shapes.items() if name != "bias" or self.bias}

    def shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all parameters, with a tied weight, and then of all buffers."""
        return self._parameters(width) | self.of_kind.buffers(width)

    def sizes(self, width: int) -> list[int]:
        """Return the number of elements of each own parameter, in the order of registration."""
        return [prod(self.shapes(width)[name]) for name in self.parameters]


PASSING: tuple[LayerKind, ...] = tuple(name for name, kind in KINDS.items() if kind.passing)
"""The kinds that pass their input on in the dtype it has."""

BUFFERS: tuple[LayerKind, ...] = tuple(name for name, kind in KINDS.items() if kind.buffers(0))
"""The kinds with buffers."""


@dataclass(frozen=True)
class Model(Strict):
    """A stack of layers over an input of width `inputs`.

    Attributes:
        inputs: The width of the input.
        layers: The layers, in the order of a forward, in which they are registered, too.
        naming: The names of the layers (`path`). `numbered` is `layers.0`, `layers.1`, …. `module`
            is `module.0`, `module.1`, …, as most wrappers call the module they wrap. `underscored`
            is `block0.layer`, `block0_layer`, `block1.layer`, …: a library that replaces dots by
            underscores gives two of these layers the same name. `joined` is `block0.layer`,
            `block0layer`, `block1.layer`, …, and two layers get the same name without dots. `cased`
            is `layer0`, `Layer0`, `layer1`, …, and two layers get the same name in lower case.
            `rooted` is `numbered`, but the factor of the first real `scale` layer, if there is one,
            is a parameter of the whole module, as a class token is: its name is `factor` alone.
    """

    inputs: int
    layers: tuple[Layer, ...]
    naming: Naming = "numbered"

    def __post_init__(self) -> None:
        between("inputs", self.inputs, 1, LARGEST_WIDTH)
        one_of("naming", self.naming, Naming)
        require(len(self.layers) > 0, "layers", self.layers, "at least one layer")
        widths = self.widths()
        for index, layer in enumerate(self.layers):
            where = f"layers[{index}]"
            require(
                layer.activation == "none" or layer.kind not in PASSING,
                f"{where}.activation",
                layer.activation,
                f"'none': a {layer.kind} layer passes its input on",
            )
            require(
                widths[index] % layer.of_kind.divisor == 0,
                f"{where}.kind",
                layer.kind,
                f"another kind, since the input width {widths[index]} is "
                + ("odd" if layer.of_kind.divisor == 2 else "not divisible by 4"),
            )
            if layer.layout == "channels_last":
                require(
                    widths[index] % 4 == 0,
                    f"{where}.layout",
                    layer.layout,
                    f"another layout, since the input width {widths[index]} is not divisible by 4",
                )
            require(
                not layer.of_kind.first or index == 0,
                f"{where}.kind",
                layer.kind,
                "another kind: an embedding takes the sample itself, so it must be the first layer",
            )
            require(
                not layer.twice or widths[index] == widths[index + 1],
                f"{where}.twice",
                layer.twice,
                "false if the outputs of the layer are not as wide as its inputs",
            )
            if layer.tied is not None:
                self._require_tied(index)
        require(
            self.trains(),
            "layers",
            [layer.kind for layer in self.layers],
            "at least one trainable parameter with elements",
        )
        require(
            self.numbers <= MOST_NUMBERS,
            "layers",
            self.numbers,
            f"parameters and buffers of at most {MOST_NUMBERS:,} numbers",
        )

    def _require_tied(self, index: int) -> None:
        """Check the layer whose weight a layer uses."""
        layer, widths, where = self.layers[index], self.widths(), f"layers[{index}]"
        assert layer.tied is not None
        between(f"{where}.tied", layer.tied, 0, index - 1)
        owner = self.layers[layer.tied]
        require(
            layer.kind == "linear"
            and owner.of_kind.owns
            and owner.tied is None
            and not owner.sparse,
            f"{where}.tied",
            layer.tied,
            "the index of an earlier linear layer that owns its weight, "
            "or of an embedding whose gradient is dense",
        )
        shapes = (
            owner.shapes(widths[layer.tied])["weight"],
            layer.shapes(widths[index])["weight"],
        )
        require(
            shapes[0] == shapes[1] and layer.dtype == owner.dtype,
            f"{where}.tied",
            layer.tied,
            "a layer of the same shape and dtype",
        )

    def path(self, index: int) -> str:
        """Return a layer's name in the module."""
        if self.naming in ("numbered", "rooted"):
            return f"layers.{index}"
        if self.naming == "module":
            return f"module.{index}"
        # A name of its own for every second layer keeps the order of registration.
        block, second = divmod(index, 2)
        if self.naming == "cased":
            return f"{'Layer' if second else 'layer'}{block}"
        between_names = ("_" if self.naming == "underscored" else "") if second else "."
        return f"block{block}{between_names}layer"

    def full(self, index: int, name: str) -> str:
        """Return the full name of a layer's tensor, which begins with the layer's (`path`)."""
        return name if index == self.rooted else f"{self.path(index)}.{name}"

    @property
    def rooted(self) -> int | None:
        """The index of the scale layer whose factor the whole module holds; None for none."""
        if self.naming != "rooted":
            return None
        scales = (
            index
            for index, layer in enumerate(self.layers)
            if layer.kind == "scale" and not layer.complex
        )
        return next(scales, None)

    def index_of(self, name: str) -> int | None:
        """Return the index of the layer that a tensor's full name belongs to; None for no layer."""
        if "." not in name:
            return self.rooted
        indices = range(len(self.layers))
        return next((each for each in indices if name.startswith(f"{self.path(each)}.")), None)

    @property
    def has_buffers(self) -> bool:
        """True if a layer has buffers."""
        return any(layer.buffers for layer in self.layers)

    @property
    def shares_tensors(self) -> bool:
        """True if a parameter or a buffer has two names: assigning to both makes two tensors."""
        return any(layer.tied is not None or layer.kind == "shared_buffer" for layer in self.layers)

    def has(self, kind: LayerKind) -> bool:
        """Return whether a layer is of a kind."""
        return any(layer.kind == kind for layer in self.layers)

    @property
    def norms_batches(self) -> bool:
        """True if a sample's result depends on the other samples of its rank's batch."""
        return any(layer.of_kind.norms_batches for layer in self.layers)

    def trains(self, passed_by: frozenset[int] = frozenset()) -> bool:
        """Return whether a forward that passes some layers by trains a parameter with elements."""
        return any(
            index not in passed_by and self.trains_layer(index) for index in range(len(self.layers))
        )

    def trains_layer(self, index: int) -> bool:
        """Return whether a layer trains a parameter with elements, its own or a tied one."""
        layer = self.layers[index]
        owner = layer if layer.tied is None else self.layers[layer.tied]
        return not owner.frozen and layer.of_kind.trains

    @property
    def draws(self) -> tuple[int, ...]:
        """The indices of the layers that draw random numbers."""
        return tuple(index for index, layer in enumerate(self.layers) if layer.of_kind.draws)

    @property
    def numbers(self) -> int:
        """The count of the model's initial numbers; a complex element takes two."""
        return sum(
            prod(shape) * (1 + layer.complex)
            for layer, width in zip(self.layers, self.widths(), strict=False)
            for shape in layer.shapes(width).values()
        )

    @property
    def unsaved(self) -> frozenset[str]:
        """The names of the buffers that a saved state leaves out."""
        return frozenset(
            self.full(index, name)
            for index, layer in enumerate(self.layers)
            for name in layer.of_kind.unsaved
        )

    def used(self, passed_by: frozenset[int]) -> frozenset[str]:
        """Return the names of the parameters that training uses if a forward passes some layers by."""
        return frozenset(
            self.full(index if layer.tied is None or name == "bias" else layer.tied, name)
            for index, layer in enumerate(self.layers)
            if index not in passed_by
            for name in layer.used
        )

    def widths(self) -> list[int]:
        """Return the input width of every layer, then the width of the result."""
        widths = [self.inputs]
        for layer in self.layers:
            widths.append(layer.of_kind.width(layer, widths[-1]))
        return widths
