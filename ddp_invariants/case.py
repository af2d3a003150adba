"""The situation on trial: everything that fixes a run, and nothing else.

A case is frozen data with one JSON form. The controller draws it, the ranks
build their world from it, the oracle recomputes it, a file of it repeats it.
Two kinds exist: a `TrainingCase` needs a process group, a `ShardCase` asks a
sampler alone.

Standard library only: the rank side imports this module under any interpreter.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, fields, replace
from math import prod
from typing import Any, ClassVar, Literal, get_args

Dtype = Literal["float32", "float64", "bfloat16", "complex64"]
Layout = Literal["contiguous", "transposed", "strided", "channels_last"]
LayerKind = Literal["linear", "scale", "empty", "statistics", "branches", "embedding", "convolution", "norm", "attention"]
OptimizerKind = Literal["sgd", "adamw", "adam"]
Way = Literal["default", "foreach", "fused"]
ZeroGrad = Literal["set_to_none", "zero", "never"]
Values = Literal["integer", "real"]
PoisonKind = Literal["nan", "inf", "-inf"]
NoSync = Literal["plain", "nested", "error"]
Passes = Literal["alternate", "joint", "retained"]
Checkpoint = Literal["none", "plain", "reentrant"]
InterludeKind = Literal["evaluation", "evaluation with gradients", "forward only", "learning rate", "decay", "freeze",
                        "unfreeze", "cast", "copy", "assign", "reload"]
Init = Literal["distinct", "equal"]
Activation = Literal["none", "relu", "gelu"]
Loss = Literal["tagged", "mse"]
PerturbationKind = Literal["none", "withheld", "delays", "late"]
Sentinel = Literal["finite", "nan"]
MishapKind = Literal["forward error", "backward error", "death"]

LARGEST_WORLD_SIZE = 64
"""More ranks than this on one machine is a typing error, not a case."""


SENTINEL = 12345.0
"""What a buffer holds while its result is withheld, unless the case asks for NaN. Finite, since a NaN survives a division."""


class CaseError(ValueError):
    """A case that cannot be run: the message names the field, what it holds and what it may hold."""


def _require(condition: object, field: str, got: object, expected: str) -> None:
    if not condition:
        raise CaseError(f"{field} is {got!r}, expected {expected}")


def _one_of(field: str, got: object, choices: object) -> None:
    allowed = get_args(choices)
    _require(got in allowed, field, got, "one of " + ", ".join(map(repr, allowed)))


def _between(field: str, got: int, low: int, high: int) -> None:
    _require(low <= got <= high, field, got, f"an integer from {low} to {high}")


STRICT = {"extra": "forbid", "strict": True}
"""How a case file is read (pydantic's configuration; plain data, so that nothing is imported here)."""


@dataclass(frozen=True)
class Layer:
    """One layer of the model, as data: the ranks build a torch module from it, the oracle plain numpy.

    Attributes:
        kind: `linear` is x @ W.T + b; `scale` multiplies by a 0-d parameter; `empty` adds the sum of a
            zero-element parameter; `statistics` has buffers (float, integer, bool) and no parameter; `branches` is
            x @ F.T - x @ S.T, of which a rank may compute either first (`TrainingCase.crossed`); `embedding` adds a row of a
            table of `ROWS`, chosen by the sample's first input, so that it stands first; `convolution` takes a quarter of its
            inputs as channels of 2 x 2 pixels, pads them above and to the left, and has a kernel of 2 x 2; `norm` is a
            LayerNorm; `attention` adds to its input what two tokens of half the width each attend to, under one head.
        outputs: Width of the result of a `linear` layer; channels of that of a `convolution`.
        bias: Whether a `linear` layer or a `convolution` adds a vector.
        activation: What the result passes through: nothing, max(x, 0), or x times the normal distribution's integral.
        layout: How a linear weight lies in memory. `channels_last` is stored as a 4-d tensor and needs an
            input width divisible by 4. Of a convolution's kernel and its images, `contiguous` or `channels_last`.
        dtype: Of the layer's parameters; the input is cast to it. A `linear` or `scale` layer may be complex: it takes its
            input with the same in reverse order as the imaginary part, and gives the real part of what it makes of that with
            twice the imaginary part added, so that those around it are real.
        frozen: Whether the parameters have requires_grad = False.
        tied: Index of an earlier linear layer whose weight this one uses, None for its own.
        checkpoint: Whether backward computes the layer again (torch.utils.checkpoint), within the backward that is running
            (`plain`) or in one of its own inside it (`reentrant`).
        twice: Whether a forward calls a linear layer a second time, on what it made of its input.
        sparse: Whether an embedding's gradient is sparse: of the rows that were chosen, each as often as it was.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

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
        _require(not self.twice or (self.kind == "linear" and self.checkpoint == "none"), "twice", self.twice,
                 "false where the layer is not linear, or computed again in backward")
        _one_of("checkpoint", self.checkpoint, Checkpoint)
        _require(self.checkpoint == "none" or self.kind != "statistics", "checkpoint", self.checkpoint,
                 "'none': a statistics layer would count everything twice")
        _one_of("kind", self.kind, LayerKind)
        _one_of("activation", self.activation, Activation)
        _one_of("layout", self.layout, Layout)
        _one_of("dtype", self.dtype, Dtype)
        _between("outputs", self.outputs, 1, 4096)
        _require(self.kind != "convolution" or self.layout in ("contiguous", "channels_last"), "layout", self.layout,
                 "'contiguous' or 'channels_last' for a convolution")
        _require(self.kind not in ("norm", "attention") or self.dtype != "bfloat16", "dtype", self.dtype,
                 f"'float32' or 'float64' for {self.kind}: nothing of what bfloat16 leaves of it could be judged")
        _require(not self.complex or self.kind in ("linear", "scale"), "dtype", self.dtype, f"a real one for {self.kind}")
        _require(not self.sparse or self.kind == "embedding", "sparse", self.sparse, "false where the layer has no table")

    @property
    def complex(self) -> bool:
        """Whether its parameters are complex."""
        return self.dtype == "complex64"

    @property
    def parameters(self) -> tuple[str, ...]:
        """What its own parameters are called, in the order of registration."""
        return tuple(name for name in PARAMETERS[self.kind] if (name != "bias" or self.bias)
                     and (name != "weight" or self.tied is None))

    def shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """What it has, in order, at an input width: parameters, a tied weight too, and buffers."""
        found: dict[LayerKind, dict[str, tuple[int, ...]]] = {
            "linear": {"weight": (self.outputs, width)} | ({"bias": (self.outputs,)} if self.bias else {}),
            "scale": {"factor": ()}, "empty": {"nothing": (0, width)},
            "statistics": {"running": (width,), "count": (), "seen": (width,)},
            "branches": {"first": (width, width), "second": (width, width)}, "embedding": {"weight": (ROWS, width)},
            "convolution": {"kernel": (self.outputs, width // 4, 2, 2)} | ({"bias": (self.outputs,)} if self.bias else {}),
            "norm": {"gain": (width,), "shift": (width,)},
            "attention": dict.fromkeys(PARAMETERS["attention"], (width // 2, width // 2))}
        return found[self.kind]

    def sizes(self, width: int) -> list[int]:
        """Elements of each of its own parameters at an input width, in the order of registration."""
        return [prod(self.shapes(width)[name]) for name in self.parameters]


ROWS = 4
"""Of an embedding's table: few enough that samples share them, enough that a batch leaves some out."""


PARAMETERS: dict[LayerKind, tuple[str, ...]] = {
    "linear": ("weight", "bias"), "scale": ("factor",), "empty": ("nothing",), "statistics": (),
    "branches": ("first", "second"), "embedding": ("weight",), "convolution": ("kernel", "bias"), "norm": ("gain", "shift"),
    "attention": ("query", "key", "value")}
"""What the parameters of a kind of layer are called, in the order of registration."""


@dataclass(frozen=True)
class Model:
    """A stack of layers over an input of width `inputs`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    inputs: int
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        _between("inputs", self.inputs, 1, 4096)
        _require(len(self.layers) > 0, "layers", self.layers, "at least one layer")
        widths = self.widths()
        for index, layer in enumerate(self.layers):
            where = f"layers[{index}]"
            _require(layer.activation == "none" or layer.kind != "statistics", f"{where}.activation", layer.activation,
                     "'none': a statistics layer passes its input on")
            _require(layer.kind != "convolution" or widths[index] % 4 == 0, f"{where}.kind", layer.kind,
                     f"another kind, since the input width {widths[index]} is not divisible by 4")
            if layer.layout == "channels_last":
                _require(widths[index] % 4 == 0, f"{where}.layout", layer.layout,
                         f"another layout, since the input width {widths[index]} is not divisible by 4")
            _require(layer.kind != "attention" or widths[index] % 2 == 0, f"{where}.kind", layer.kind,
                     f"another kind, since the input width {widths[index]} is odd")
            _require(layer.kind != "embedding" or index == 0, f"{where}.kind", layer.kind,
                     "another kind: the sample chooses the row, so an embedding stands first")
            _require(not layer.twice or widths[index] == widths[index + 1], f"{where}.twice", layer.twice,
                     "false where the layer is not as wide out as in")
            if layer.tied is not None:
                _between(f"{where}.tied", layer.tied, 0, index - 1)
                owner = self.layers[layer.tied]
                _require(owner.kind == layer.kind == "linear" and owner.tied is None, f"{where}.tied", layer.tied,
                         "the index of an earlier linear layer that owns its weight")
                _require((widths[index], layer.outputs, layer.dtype) == (widths[layer.tied], owner.outputs, owner.dtype),
                         f"{where}.tied", layer.tied, "a layer of the same shape and dtype")
        _require(self.trains(), "layers", [layer.kind for layer in self.layers],
                 "at least one trainable parameter with elements")

    def trains(self, passed_by: frozenset[int] = frozenset()) -> bool:
        """Whether a forward that passes some layers by trains a weight or factor."""
        return any(index not in passed_by and not (layer if layer.tied is None else self.layers[layer.tied]).frozen
                   and layer.kind not in ("empty", "statistics") for index, layer in enumerate(self.layers))

    @property
    def numbers(self) -> int:
        """How many initial numbers it takes: of each layer's shapes in order, a complex element two."""
        return sum(prod(shape) * (1 + layer.complex) for layer, width in zip(self.layers, self.widths(), strict=False)
                   for shape in layer.shapes(width).values())

    def used(self, passed_by: frozenset[int]) -> frozenset[str]:
        """Names of the parameters, frozen ones too, that a forward computes with which passes some layers by."""
        return frozenset(f"layers.{index if layer.tied is None or name == 'bias' else layer.tied}.{name}"
                         for index, layer in enumerate(self.layers) if index not in passed_by
                         for name in PARAMETERS[layer.kind] if name != "bias" or layer.bias)

    def widths(self) -> list[int]:
        """The input width of every layer, then the width of the result."""
        widths = [self.inputs]
        for layer in self.layers:
            widths.append({"linear": layer.outputs, "convolution": 4 * layer.outputs}.get(layer.kind, widths[-1]))
        return widths


@dataclass(frozen=True)
class Data:
    """The dataset and how a sampler deals it out. Sample i is fixed by (case seed, i) alone.

    Attributes:
        samples: Dataset length N.
        batch_size: Samples per rank and step, B.
        shuffle: Whether the sampler permutes by (seed, epoch).
        drop_last: Whether the sampler drops the tail instead of padding it.
        seed: The sampler's seed.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    samples: int = 2
    batch_size: int = 1
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        _between("samples", self.samples, 0, 1_000_000)
        _between("batch_size", self.batch_size, 1, 4096)
        _between("seed", self.seed, 0, 2**31 - 1)


@dataclass(frozen=True)
class Optimizer:
    """The optimizer of every rank and of the oracle. `lr` is a power of two, 2**log2_lr, so that steps can be exact.

    Attributes:
        kind: `adam` adds weight decay to the gradient, `adamw` takes it off the parameter.
        log2_lr: Binary logarithm of the learning rate.
        momentum: Of SGD alone.
        weight_decay: As torch takes it.
        nesterov: Whether SGD looks ahead by its momentum.
        way: Which of torch's implementations steps: a loop over parameters, one over operations (`foreach`), or one kernel
            (`fused`), which on CPU takes contiguous parameters that all have a gradient (`TrainingCase.fusible`).
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    kind: OptimizerKind = "sgd"
    log2_lr: int = -6
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    way: Way = "default"

    def __post_init__(self) -> None:
        _one_of("kind", self.kind, OptimizerKind)
        _one_of("way", self.way, Way)
        _require(not self.nesterov or (self.kind == "sgd" and self.momentum > 0), "nesterov", self.nesterov,
                 "false where there is no momentum of SGD")
        _between("log2_lr", self.log2_lr, -30, 0)
        _require(0 <= self.momentum < 1, "momentum", self.momentum, "a number in [0, 1)")
        _require(0 <= self.weight_decay < 1, "weight_decay", self.weight_decay, "a number in [0, 1)")

    @property
    def lr(self) -> float:
        """The learning rate."""
        return float(2.0**self.log2_lr)

    @property
    def arguments(self) -> dict[str, Any]:
        """What torch's optimizer is given beside parameters."""
        named: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay}
        named |= {"momentum": self.momentum} if self.kind == "sgd" else {}
        named |= {"nesterov": True} if self.nesterov else {}
        return named | ({} if self.way == "default" else {self.way: True})


@dataclass(frozen=True)
class Poison:
    """A value that is not finite, put into the first input of one rank's batch at one step."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    rank: int
    step: int
    value: PoisonKind = "nan"

    def __post_init__(self) -> None:
        _one_of("value", self.value, PoisonKind)


@dataclass(frozen=True)
class LossScale:
    """A loss scaler (`torch.amp.GradScaler`) on every rank, each rank's of its own.

    All its factors are powers of two, so that scaling and unscaling round nothing that is not too small to be a normal number.

    Attributes:
        log2_scale: Binary logarithm of what the first step's loss is multiplied by.
        interval: After so many steps in a row that were made, the scale grows.
        log2_growth: Binary logarithm of what it is multiplied by then.
        log2_backoff: Binary logarithm of what it is divided by when a step is skipped.
        unscaled: Whether the program unscales gradients itself before the step, as it must where they are clipped.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    log2_scale: int
    interval: int = 2
    log2_growth: int = 1
    log2_backoff: int = 1
    unscaled: bool = False

    def __post_init__(self) -> None:
        _between("log2_scale", self.log2_scale, -30, 126)
        _between("interval", self.interval, 1, 1000)
        _between("log2_growth", self.log2_growth, 1, 60)
        _between("log2_backoff", self.log2_backoff, 1, 120)

    def most(self, steps: int) -> int:
        """Binary logarithm of the largest scale in so many steps."""
        return self.log2_scale + self.log2_growth * (steps // self.interval)


@dataclass(frozen=True)
class Perturbation:
    """What happens to the timing of collectives. A right program cannot tell: it gives the same bits under each.

    Attributes:
        kind: `none`; `withheld` hands a result over only when somebody waits for it, and until then the buffer holds a
            sentinel; `delays` starts every collective of every rank after a time of its own, fixed by the case's seed; `late`
            starts those of one rank late.
        sentinel: What a withheld buffer holds: a number, or NaN.
        rank: The late one.
        milliseconds: The late rank's delay, or the longest of the others.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    kind: PerturbationKind = "none"
    sentinel: Sentinel = "finite"
    rank: int = 0
    milliseconds: int = 1

    def __post_init__(self) -> None:
        _one_of("kind", self.kind, PerturbationKind)
        _one_of("sentinel", self.sentinel, Sentinel)
        _between("milliseconds", self.milliseconds, 1, 1000)

    @property
    def words(self) -> str:
        """What is done, as the end of "only when …"; empty where nothing is."""
        if self.kind == "withheld":
            return "results are withheld until they are waited for" + (", NaN meanwhile" if self.sentinel == "nan" else "")
        if self.kind == "delays":
            return f"collectives start up to {self.milliseconds} ms late, each rank's at times of its own"
        return f"rank {self.rank} starts its collectives {self.milliseconds} ms late" if self.kind == "late" else ""


@dataclass(frozen=True)
class Mishap:
    """What goes wrong at one step.

    Attributes:
        kind: An exception of the user's own in the middle of the module's forward, or of its backward, on every rank; it is
            caught, gradients are cleared, and the step is run again. Or the `death` of one rank's process as the step's forward
            starts, from the second on: what is set up in the first may wait for everybody as long as it likes.
        step: When.
        rank: Who dies.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    kind: MishapKind
    step: int = 0
    rank: int = 0

    def __post_init__(self) -> None:
        _one_of("kind", self.kind, MishapKind)


@dataclass(frozen=True)
class Unused:
    """A layer that forwards pass by, so that its parameters get no gradient there.

    Attributes:
        layer: Its index. As wide out as in, since its input is handed on as it is, the activation left out too.
        rank: On which rank; None for all.
        step: At which step; None for every one.
        micro_step: In which of a step's micro-steps, counted from 0; None for all.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    layer: int
    rank: int | None = None
    step: int | None = None
    micro_step: int | None = None


@dataclass(frozen=True)
class Exhausted:
    """A rank that runs out of batches before others do.

    Attributes:
        rank: Which.
        steps: For how many steps it has batches.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    rank: int
    steps: int = 1


@dataclass(frozen=True)
class Interlude:
    """What the program does on every rank before a step, besides training.

    Attributes:
        kind: An `evaluation` of the step's batch without gradients, or `evaluation with gradients` that nobody asks for;
            `forward only`, in training, of which nothing comes; from now on a quarter of the `learning rate`, or half of the
            momentum and of the weight `decay`; a layer is frozen (`freeze`), its gradients cleared, or trained from now on
            (`unfreeze`); gradients are cleared, and parameters `cast` to float64 and back; a deep `copy` of what is trained is
            taken and kept; what is trained is given its own saved values as new tensors (`assign`), and its optimizer is made
            anew; or it and its optimizer are saved and loaded into ones made anew, of other values (`reload`).
        step: Before which step, from the second on.
        layer: The one that is frozen or trained from now on.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    kind: InterludeKind
    step: int = 1
    layer: int = 0

    def __post_init__(self) -> None:
        _one_of("kind", self.kind, InterludeKind)

    @property
    def clears(self) -> bool:
        """Whether gradients that were left in place do not outlive it."""
        return self.kind in ("freeze", "cast", "assign", "reload")

    @property
    def freezes(self) -> bool:
        """Whether it changes what is trained."""
        return self.kind in ("freeze", "unfreeze")


@dataclass(frozen=True)
class TrainingCase:
    """A whole data-parallel training run of a few steps.

    Attributes:
        world_size: Ranks in the data-parallel group, W.
        outside: Ranks before them in the default group which train nothing; above 0 the implementation is handed
            a subgroup that does not contain rank 0.
        steps: Optimizer updates.
        accumulation: Backwards per step, K, each on a batch of its own (micro-steps); the loss is divided by K, so that
            a step is one on a global batch of K * W * B samples.
        loss: `tagged` adds each sample's tag to its squared error, summed over outputs; `mse` is the mean of squared errors
            over samples and outputs, as a whole training step computes it by itself.
        bucket_cap: Bucket capacity in bytes; None leaves the implementation's default.
        init: Whether the ranks start from different parameters (`distinct`) or from equal ones.
        values: `integer` draws small integers, so that most arithmetic is exact; `real` draws fractions.
        log2_scale: Inputs are multiplied by 2**log2_scale (large magnitudes).
        zero_grad: What happens to gradients before each backward.
        poison: A value that is not finite, or None.
        perturbation: Of the timing of collectives.
        mishap: What goes wrong on purpose, or None.
        no_sync: How the micro-steps but the last go without communication: each in a `plain` no_sync, or with a `nested` one
            entered and left before its backward; or an `error` of the user's own leaves a no_sync before the last one.
        unused: Layers that some forwards pass by; something with elements is trained in every one.
        crossed: The rank whose `branches` are computed in the other order, so that their gradients, of equal shape, become
            ready in another order than on the other ranks; None for none. No number changes.
        passes: How the forwards and backwards of a step's micro-steps follow one another: in turn (`alternate`), all forwards
            and one backward of their summed losses (`joint`), or one forward on the first batch, through which every backward
            goes again (`retained`). The latter two know no `no_sync`.
        interludes: What the program does between steps, in this order before one and the same.
        exhausted: Ranks that have batches for some of the steps only. They train under the implementation's own way to bear it,
            which they are the first to leave; the others go on.
        saved_by: How many ranks, the first of all processes, trained before and saved what is trained: it is loaded, with its
            optimizer, by the ranks of this run before their first step. None where nobody did.
        clip: Largest norm of all gradients together that a step is made with: they are scaled down to it once they are
            synchronised. None for any.
        scaler: What scales the loss of every step, and skips a step whose gradients overflow; None for nothing.
        rounds: How often the whole run is repeated in the same processes; the evidence is the last one's.
        seed: Of parameters, samples and targets.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    model: Model
    world_size: int = 2
    outside: int = 0
    data: Data = Data()
    steps: int = 1
    accumulation: int = 1
    loss: Loss = "tagged"
    optimizer: Optimizer = Optimizer()
    bucket_cap: int | None = None
    init: Init = "distinct"
    values: Values = "integer"
    log2_scale: int = 0
    zero_grad: ZeroGrad = "set_to_none"
    poison: Poison | None = None
    perturbation: Perturbation = Perturbation()
    mishap: Mishap | None = None
    no_sync: NoSync = "plain"
    unused: tuple[Unused, ...] = ()
    crossed: int | None = None
    passes: Passes = "alternate"
    interludes: tuple[Interlude, ...] = ()
    exhausted: tuple[Exhausted, ...] = ()
    saved_by: int | None = None
    clip: float | None = None
    scaler: LossScale | None = None
    rounds: int = 1
    seed: int = 0
    kind: Literal["training"] = "training"

    def __post_init__(self) -> None:
        _between("world_size", self.world_size, 1, LARGEST_WORLD_SIZE)
        _between("outside", self.outside, 0, 8)
        _between("steps", self.steps, 1, 1000)
        _between("accumulation", self.accumulation, 1, 64)
        _one_of("loss", self.loss, Loss)
        _require(self.poison is None or self.accumulation == 1, "accumulation", self.accumulation, "1 where there is poison")
        _between("log2_scale", self.log2_scale, -30, 30)
        _between("seed", self.seed, 0, 2**31 - 1)
        _require(self.bucket_cap is None or self.bucket_cap >= 1, "bucket_cap", self.bucket_cap, "null or bytes from 1")
        _one_of("init", self.init, Init)
        _one_of("values", self.values, Values)
        _one_of("zero_grad", self.zero_grad, ZeroGrad)
        _one_of("no_sync", self.no_sync, NoSync)
        _require(self.no_sync == "plain" or self.accumulation > 1, "no_sync", self.no_sync,
                 "'plain' where a step has one backward")
        least = self.world_size if self.data.drop_last else 1
        _require(self.data.samples >= least, "data.samples", self.data.samples, f"at least {least}: no rank has a batch")
        if self.poison is not None:
            _between("poison.rank", self.poison.rank, 0, self.world_size - 1)
            _between("poison.step", self.poison.step, 0, self.steps - 1)
            _require(not any(layer.complex for layer in self.model.layers), "poison", self.poison,
                     "null where a layer is complex: which part is no number then, nothing fixes")
        _between("rounds", self.rounds, 1, 100)
        _between("perturbation.rank", self.perturbation.rank, 0, self.world_size - 1)
        if self.mishap is not None:
            _between("mishap.rank", self.mishap.rank, 0, self.world_size - 1)
            _between("mishap.step", self.mishap.step, 0, self.steps - 1)
            _require(self.mishap.kind == "death" or self.zero_grad != "never", "zero_grad", self.zero_grad,
                     "another where a step is run again: what the first attempt left must be cleared")
            _require(self.mishap.kind != "death" or self.perturbation.kind == "none", "perturbation.kind",
                     self.perturbation.kind, "'none' where a rank dies: what is withheld then is the harness's own trouble")
            _require(self.mishap.kind != "death" or self.mishap.step > 0, "mishap.step", self.mishap.step,
                     "from 1 where a rank dies")
            _require(self.mishap.kind != "death" or self.rounds == 1, "rounds", self.rounds, "1 where a rank dies")
        if self.crossed is not None:
            _between("crossed", self.crossed, 0, self.world_size - 1)
        for index, one in enumerate(self.unused):
            self._require_unused(f"unused[{index}]", one)
        _one_of("passes", self.passes, Passes)
        _require(self.passes == "alternate" or self.accumulation > 1, "passes", self.passes,
                 "'alternate' where a step has one backward")
        _require(self.passes == "alternate" or self.no_sync == "plain", "no_sync", self.no_sync,
                 "'plain' where backwards do not alternate with forwards")
        for index, interlude in enumerate(self.interludes):
            self._require_interlude(f"interludes[{index}]", interlude)
        _require(self.clip is None or 0 < self.clip < math.inf, "clip", self.clip, "null or a number above 0")
        _require(self.clip is None or self.zero_grad != "never", "zero_grad", self.zero_grad,
                 "another where gradients are clipped: what is left of them is not what was reduced")
        _require(self.clip is None or not self.sparse, "clip", self.clip, "null where a gradient is sparse")
        if self.scaler is not None:
            self._require_scaler(self.scaler)
        if self.exhausted:
            self._require_exhausted()
        if self.saved_by is not None:
            self._require_saved()
        if any(one.freezes for one in self.interludes):
            for step in range(self.steps):
                self.at(step)  # Something is trained in every one.

        _require(self.optimizer.way != "fused" or self.fusible, "optimizer.way", self.optimizer.way,
                 "another where parameters are not contiguous, of bfloat16, complex, or sometimes without a gradient")
        plain = replace(self.optimizer, log2_lr=Optimizer().log2_lr) == Optimizer()
        _require(not self.sparse or plain, "optimizer", self.optimizer,
                 "plain SGD where a gradient is sparse: neither momentum nor weight decay takes it")
        _require(not self.sparse or self.zero_grad != "never", "zero_grad", self.zero_grad,
                 "another where a gradient is sparse: what it was the sum of is not known of what was left")


    def _require_exhausted(self) -> None:
        ranks = [one.rank for one in self.exhausted]
        for index, one in enumerate(self.exhausted):
            _between(f"exhausted[{index}].rank", one.rank, 0, self.world_size - 1)
            _between(f"exhausted[{index}].steps", one.steps, 1, self.steps - 1)
        _require(len(set(ranks)) == len(ranks) < self.world_size, "exhausted", ranks, "ranks that differ, and not all of them")
        _require(self.zero_grad != "never", "zero_grad", self.zero_grad, "another where a rank runs out of batches")
        self._require_plain("where a rank runs out of batches", accumulation=1, interludes=())
        _require(not self.sparse, "exhausted", ranks, "none where a gradient is sparse: who has none cannot know its indices")

    def _require_saved(self) -> None:
        assert self.saved_by is not None
        _between("saved_by", self.saved_by, 1, self.ranks_needed)
        _require(not self.data.drop_last or self.data.samples >= self.saved_by, "data.samples", self.data.samples,
                 f"at least {self.saved_by}: a rank that saves has no batch")
        self._require_plain("where a state is loaded that others saved", interludes=(), exhausted=())

    def _require_scaler(self, plan: LossScale) -> None:
        least = plan.log2_scale - plan.log2_backoff * self.steps
        _require(plan.most(self.steps) <= 126 and least >= -126, "scaler", plan,
                 "one whose scale stays between 2**-126 and 2**126, whatever overflows")
        _require(self.zero_grad != "never", "zero_grad", self.zero_grad,
                 "another where a loss is scaled: what is left of a step was unscaled")
        _require(self.scalable, "scaler", plan, "null where a gradient is sparse or complex, or SGD's fused kernels have "
                 "momentum: where the first step is skipped, torch goes on with a momentum that nothing was written to")
        _require(self.exhausted == () and self.saved_by is None, "scaler", plan,
                 "null where a rank runs out of batches, or a state is loaded that others saved")

    @property
    def scalable(self) -> bool:
        """Whether torch's loss scaler can do with its gradients and its optimizer."""
        real = all(layer.dtype in ("float32", "float64", "bfloat16") for layer in self.model.layers)
        return real and not self.sparse and not (self.optimizer.way == "fused" and self.optimizer.momentum > 0)

    def _require_plain(self, where: str, **plain: object) -> None:
        """Insist that little else happens in a case."""
        for name, expected in {"poison": None, "mishap": None, "unused": (), "rounds": 1, **plain}.items():
            _require(getattr(self, name) == expected, name, getattr(self, name), f"{expected!r} {where}")

    @property
    def sparse(self) -> bool:
        """Whether a gradient is sparse."""
        return self.model.layers[0].sparse

    @property
    def fusible(self) -> bool:
        """Whether torch's fused kernels can do the steps.

        On CPU they take a tensor's memory from its first element on for its elements in order, whatever its strides; that of
        SGD loses every whole vector of bfloat16 (16 elements), and refuses a parameter that gets its first momentum late. They
        refuse what is complex.
        """
        plain = all(layer.layout == "contiguous" and layer.dtype in ("float32", "float64") for layer in self.model.layers)
        return plain and not self.unused and not any(one.freezes for one in self.interludes)

    def _require_interlude(self, where: str, one: Interlude) -> None:
        layers = self.model.layers
        _between(f"{where}.step", one.step, 1, self.steps - 1)
        _between(f"{where}.layer", one.layer, 0, len(layers) - 1)
        _require(not one.clears or self.zero_grad != "never", "zero_grad", self.zero_grad,
                 f"another where gradients do not outlive a {one.kind}")
        _require(one.kind != "assign" or all(layer.tied is None for layer in layers), f"{where}.kind", one.kind,
                 "another where layers are tied: what is assigned to two names is two tensors")
        _require(one.kind != "copy" or not self.outside, "outside", self.outside,
                 "0 where a copy is taken: process groups have none")
        _require(not one.freezes or (layers[one.layer].kind != "statistics" and layers[one.layer].tied is None
                                     and all(layer.tied != one.layer for layer in layers)), f"{where}.layer", one.layer,
                 "the index of a layer with parameters of its own, which is tied to none")

    def _require_unused(self, where: str, one: Unused) -> None:
        layers, widths = self.model.layers, self.model.widths()
        _between(f"{where}.layer", one.layer, 0, len(layers) - 1)
        _require(layers[one.layer].kind != "statistics" and widths[one.layer] == widths[one.layer + 1]
                 and not layers[one.layer].sparse, f"{where}.layer",
                 one.layer, "the index of a layer with parameters, none of sparse gradient, that is as wide out as in")
        if one.rank is not None:
            _between(f"{where}.rank", one.rank, 0, self.world_size - 1)
        if one.step is not None:
            _between(f"{where}.step", one.step, 0, self.steps - 1)
        if one.micro_step is not None:
            _between(f"{where}.micro_step", one.micro_step, 0, self.accumulation - 1)
            _require(self.passes != "retained", f"{where}.micro_step", one.micro_step,
                     "null where a step has one forward")
        for rank in range(self.world_size) if one.rank is None else (one.rank,):
            for step in range(self.steps) if one.step is None else (one.step,):
                for micro_step in range(self.accumulation) if one.micro_step is None else (one.micro_step,):
                    _require(self.model.trains(self.passed_by(rank, step, micro_step)), f"{where}.layer", one.layer,
                             f"another, so that rank {rank} trains a parameter with elements at step {step}")

    def at(self, step: int) -> "TrainingCase":
        """The case with the model and the optimizer as they are at a step, after the interludes up to it."""
        past = [one for one in self.interludes if one.step <= step]
        if not past:
            return replace(self, interludes=()) if self.interludes else self
        layers, optimizer = list(self.model.layers), self.optimizer
        for one in past:
            if one.freezes:
                layers[one.layer] = replace(layers[one.layer], frozen=one.kind == "freeze")
            if one.kind == "learning rate":
                optimizer = replace(optimizer, log2_lr=max(optimizer.log2_lr - 2, -30))
            if one.kind == "decay":
                optimizer = replace(optimizer, momentum=optimizer.momentum / 2, weight_decay=optimizer.weight_decay / 2)
        return replace(self, model=replace(self.model, layers=tuple(layers)), optimizer=optimizer, interludes=())

    @property
    def sometimes_frozen(self) -> frozenset[str]:
        """Names of the parameters that are trained at some steps and frozen at others."""
        frozen = [self.frozen(step) for step in range(self.steps)] if any(one.freezes for one in self.interludes) else []
        return frozenset.union(*frozen) - frozenset.intersection(*frozen) if frozen else frozenset()

    def frozen(self, step: int) -> frozenset[str]:
        """Names of the parameters that are frozen at a step."""
        layers = self.at(step).model.layers
        return frozenset(f"layers.{index}.{name}" for index, layer in enumerate(layers) if layer.frozen
                         for name in layer.parameters)

    def passed_by(self, rank: int, step: int, micro_step: int) -> frozenset[int]:
        """The indices of the layers that a rank's forward of a micro-step passes by."""
        return frozenset(one.layer for one in self.unused if one.rank in (None, rank) and one.step in (None, step)
                         and one.micro_step in (None, micro_step))

    def never_used(self, rank: int, step: int) -> frozenset[int]:
        """The indices of the layers that all of a rank's forwards of a step pass by."""
        return frozenset.intersection(*(self.passed_by(rank, step, micro_step) for micro_step in range(self.accumulation)))

    def steps_of(self, rank: int) -> int:
        """For how many steps a rank has batches."""
        return next((one.steps for one in self.exhausted if one.rank == rank), self.steps)

    @property
    def before(self) -> "TrainingCase":
        """The run of those that trained before and saved what is loaded."""
        assert self.saved_by is not None
        return replace(self, world_size=self.saved_by, outside=0, saved_by=None, crossed=None, perturbation=Perturbation())

    @property
    def kills(self) -> bool:
        """Whether a rank is killed on purpose."""
        return self.mishap is not None and self.mishap.kind == "death"

    @property
    def ranks_needed(self) -> int:
        """Processes this case occupies."""
        return self.world_size + self.outside


@dataclass(frozen=True)
class ShardCase:
    """One sampler asked for the shards of every rank over a few epochs.

    Attributes:
        world_size: Ranks the dataset is dealt to, W.
        data: Dataset length, per-rank batch size and the sampler's arguments.
        epochs: Epochs asked for, in this order, by `set_epoch`.
        loader: Whether a torch DataLoader is run over the sampler as well, to count its batches.
        saved_after: Batches each rank takes of the last epoch before its sampler's state is saved, to be loaded into another
            one; None where nothing is saved.
        resumed_by: World size of the ranks that load it, rank 0's state on all of them; None for the rank that saved it alone.
        workers: Workers of a DataLoader that iterate the last epoch, each a copy of its rank's sampler; 0 for none.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    world_size: int = 2
    data: Data = Data()
    epochs: tuple[int, ...] = (0,)
    loader: bool = False
    saved_after: int | None = None
    resumed_by: int | None = None
    workers: int = 0
    kind: Literal["shard"] = "shard"

    def __post_init__(self) -> None:
        _between("world_size", self.world_size, 1, 4096)
        _require(len(self.epochs) > 0, "epochs", self.epochs, "at least one epoch")
        for index, epoch in enumerate(self.epochs):
            _between(f"epochs[{index}]", epoch, 0, 2**31 - 1)
        _between("workers", self.workers, 0, 16)
        _require(self.resumed_by is None or self.saved_after is not None, "resumed_by", self.resumed_by,
                 "null where nothing is saved")
        _between("resumed_by", self.resumed_by or 1, 1, 4096)
        _require(self.saved_after is None or self.saved_after >= 1, "saved_after", self.saved_after, "null or batches from 1")


Case = TrainingCase | ShardCase


def to_json(case: Case) -> str:
    """The one JSON form of a case: a single line, fields in the order of declaration."""
    return json.dumps(case, default=vars)


def case_id(case: Case, implementation: str = "") -> str:
    """Six hexadecimal digits naming a case (and the implementation it was found with)."""
    return hashlib.blake2b(f"{implementation}\n{to_json(case)}".encode(), digest_size=3).hexdigest()


def from_plain(plain: dict[str, Any]) -> Case:
    """Build a case from what `to_json` wrote, without checking types; for frames between our own processes.

    Raises:
        CaseError: A field holds a value outside its range.
    """
    if plain["kind"] == "shard":
        return ShardCase(**{**plain, "data": Data(**plain["data"]), "epochs": tuple(plain["epochs"])})
    model = Model(plain["model"]["inputs"], tuple(Layer(**layer) for layer in plain["model"]["layers"]))
    poison = plain["poison"] and Poison(**plain["poison"])
    mishap = plain["mishap"] and Mishap(**plain["mishap"])
    scaler = plain["scaler"] and LossScale(**plain["scaler"])
    return TrainingCase(**{**plain, "model": model, "data": Data(**plain["data"]),
                           "unused": tuple(Unused(**one) for one in plain["unused"]),
                           "interludes": tuple(Interlude(**one) for one in plain["interludes"]),
                           "exhausted": tuple(Exhausted(**one) for one in plain["exhausted"]),
                           "optimizer": Optimizer(**plain["optimizer"]), "poison": poison, "mishap": mishap, "scaler": scaler,
                           "perturbation": Perturbation(**plain["perturbation"])})


def describe(case: Case) -> str:
    """The case in one line: only what differs from the defaults, after the world size."""
    parts = [f"world_size={case.world_size}"]
    for field in fields(case):
        value = getattr(case, field.name)
        if field.name in ("kind", "world_size") or value == field.default:
            continue
        parts.append(f"{field.name}={_brief(value)}")
    return " ".join(parts)


def _brief(value: object) -> str:
    if isinstance(value, Model):
        return f"{value.inputs}->" + ",".join(_brief(layer) for layer in value.layers)
    if isinstance(value, Layer):
        differing = [f"{k}={v}" for k, v in asdict(value).items() if k != "kind" and v != getattr(Layer, k)]
        return value.kind + (f"({','.join(differing)})" if differing else "")
    if isinstance(value, tuple) and value and isinstance(value[0], Unused | Interlude | Exhausted):
        return "+".join(_brief(one) for one in value)
    if isinstance(value, Data | Optimizer | Poison | LossScale | Perturbation | Mishap | Unused | Interlude | Exhausted):
        differing = [f"{k}={v}" for k, v in asdict(value).items() if v != getattr(type(value), k, None)]
        return f"({','.join(differing)})"
    return str(value)
