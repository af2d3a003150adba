"""What a training program is made of beside its model: data, optimizer, and all that happens between, in and to its steps.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.fields import STRICT, between, one_of, require

OptimizerKind = Literal["sgd", "adamw", "adam"]
Kernels = Literal["default", "foreach", "fused"]
PoisonKind = Literal["nan", "inf", "-inf"]
BetweenStepsKind = Literal[
    "evaluation",
    "evaluation with gradients",
    "forward only",
    "learning rate",
    "decay",
    "freeze",
    "unfreeze",
    "cast",
    "copy",
    "assign",
    "reload",
    "buffers",
]
PerturbationKind = Literal[
    "none", "withheld", "delays", "late", "slow communication", "slow computation"
]
Sentinel = Literal["finite", "nan"]
InjectedFailureKind = Literal["forward error", "backward error", "death"]
SENTINEL = 12345.0
"""What a buffer holds while its result is withheld, unless the case asks for NaN. Finite, since a NaN survives a division."""


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
        between("samples", self.samples, 0, 1_000_000)
        between("batch_size", self.batch_size, 1, 4096)
        between("seed", self.seed, 0, 2**31 - 1)


@dataclass(frozen=True)
class Optimizer:
    """The optimizer of every rank and of the oracle. `lr` is a power of two, 2**log2_lr, so that steps can be exact.

    Attributes:
        kind: `adam` adds weight decay to the gradient, `adamw` takes it off the parameter.
        log2_lr: Binary logarithm of the learning rate.
        momentum: Of SGD alone.
        weight_decay: As torch takes it.
        nesterov: Whether SGD looks ahead by its momentum.
        kernels: Which of torch's implementations steps: a loop over parameters, one over operations
            (`foreach`), or one kernel (`fused`), which on CPU takes contiguous parameters that all
            have a gradient (`TrainingCase.fusible`).
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    kind: OptimizerKind = "sgd"
    log2_lr: int = -6
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    kernels: Kernels = "default"

    def __post_init__(self) -> None:
        one_of("kind", self.kind, OptimizerKind)
        one_of("way", self.kernels, Kernels)
        require(
            not self.nesterov or (self.kind == "sgd" and self.momentum > 0),
            "nesterov",
            self.nesterov,
            "false where there is no momentum of SGD",
        )
        between("log2_lr", self.log2_lr, -30, 0)
        require(0 <= self.momentum < 1, "momentum", self.momentum, "a number in [0, 1)")
        require(0 <= self.weight_decay < 1, "weight_decay", self.weight_decay, "a number in [0, 1)")

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
        return named | ({} if self.kernels == "default" else {self.kernels: True})


@dataclass(frozen=True)
class Poison:
    """A value that is not finite, put into the first input of one rank's batch at one step."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    rank: int
    step: int
    value: PoisonKind = "nan"

    def __post_init__(self) -> None:
        one_of("value", self.value, PoisonKind)


@dataclass(frozen=True)
class LossScale:
    """A loss scaler (`torch.amp.GradScaler`) on every rank, each rank's of its own.

    All its factors are powers of two, so that scaling and unscaling round nothing that is not too
    small to be a normal number.

    Attributes:
        log2_scale: Binary logarithm of what the first step's loss is multiplied by.
        interval: After so many steps in a row that were made, the scale grows.
        log2_growth: Binary logarithm of what it is multiplied by then.
        log2_backoff: Binary logarithm of what it is divided by when a step is skipped.
        unscaled: Whether the program unscales gradients itself before the step, as it must where
            they are clipped.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    log2_scale: int
    interval: int = 2
    log2_growth: int = 1
    log2_backoff: int = 1
    unscaled: bool = False

    def __post_init__(self) -> None:
        between("log2_scale", self.log2_scale, -30, 126)
        between("interval", self.interval, 1, 1000)
        between("log2_growth", self.log2_growth, 1, 60)
        between("log2_backoff", self.log2_backoff, 1, 120)

    def most(self, steps: int) -> int:
        """Binary logarithm of the largest scale in so many steps."""
        return self.log2_scale + self.log2_growth * (steps // self.interval)


@dataclass(frozen=True)
class Perturbation:
    """What happens to the timing of collectives. A right program cannot tell: it gives the same bits under each.

    Attributes:
        kind: `none`; `withheld` hands a result over only when somebody waits for it, and until then
            the buffer holds a sentinel; `delays` starts every collective of every rank after a time
            of its own, fixed by the case's seed; `late` starts those of one rank late; `slow
            communication` and `slow computation` keep a device busy with nothing before each
            collective, or each gradient, on the stream that it is queued on.
        sentinel: What a withheld buffer holds: a number, or NaN.
        rank: The late one.
        milliseconds: The late rank's delay, the longest of the others, or for how long a device is
            kept busy.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    kind: PerturbationKind = "none"
    sentinel: Sentinel = "finite"
    rank: int = 0
    milliseconds: int = 1

    def __post_init__(self) -> None:
        one_of("kind", self.kind, PerturbationKind)
        one_of("sentinel", self.sentinel, Sentinel)
        between("milliseconds", self.milliseconds, 1, 1000)

    @property
    def words(self) -> str:
        """What is done, as the end of "only when …"; empty where nothing is."""
        if self.kind == "withheld":
            return "results are withheld until they are waited for" + (
                ", NaN meanwhile" if self.sentinel == "nan" else ""
            )
        if self.kind == "delays":
            return f"collectives start up to {self.milliseconds} ms late, each rank's at times of its own"
        if self.on_device:
            what = "collective" if self.kind == "slow communication" else "gradient"
            return f"the device does nothing for {self.milliseconds} ms before each {what}"
        return (
            f"rank {self.rank} starts its collectives {self.milliseconds} ms late"
            if self.kind == "late"
            else ""
        )

    @property
    def on_device(self) -> bool:
        """Whether it is of what is queued on a device, and none elsewhere."""
        return self.kind.startswith("slow")


@dataclass(frozen=True)
class InjectedFailure:
    """What goes wrong at one step.

    Attributes:
        kind: An exception of the user's own in the middle of the module's forward, or of its
            backward, on every rank; it is caught, gradients are cleared, and the step is run again.
            Or the `death` of one rank's process as the step's forward
            starts, from the second on: what is set up in the first may wait for everybody as long
                as it likes.
        step: When.
        rank: Who dies.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    kind: InjectedFailureKind
    step: int = 0
    rank: int = 0

    def __post_init__(self) -> None:
        one_of("kind", self.kind, InjectedFailureKind)


@dataclass(frozen=True)
class Unused:
    """A layer that forwards pass by, so that its parameters get no gradient there.

    Attributes:
        layer: Its index. As wide out as in, since its input is handed on as it is, the activation
            left out too.
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
class BetweenSteps:
    """What the program does on every rank before a step, besides training.

    Attributes:
        kind: An `evaluation` of the step's batch without gradients, or `evaluation with gradients`
            that nobody asks for; `forward only`, in training, of which nothing comes; from now on a
            quarter of the `learning rate`, or half of the momentum and of the weight `decay`; a
            layer is frozen (`freeze`), its gradients cleared, or trained from now on (`unfreeze`);
            gradients are cleared, and parameters `cast` to float64 and back; a deep `copy` of what
            is trained is taken and kept; what is trained is given its own saved values as new
            tensors (`assign`), and its optimizer is made anew; it and its optimizer are saved and
            loaded into ones made anew, of other values (`reload`); or `buffers` are written to in
            place, the same on every rank, as who resets running statistics does.
        step: Before which step, from the second on.
        layer: The one that is frozen or trained from now on.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    kind: BetweenStepsKind
    step: int = 1
    layer: int = 0

    def __post_init__(self) -> None:
        one_of("kind", self.kind, BetweenStepsKind)

    @property
    def clears(self) -> bool:
        """Whether gradients that were left in place do not outlive it."""
        return self.kind in ("freeze", "cast", "assign", "reload")

    @property
    def freezes(self) -> bool:
        """Whether it changes what is trained."""
        return self.kind in ("freeze", "unfreeze")
