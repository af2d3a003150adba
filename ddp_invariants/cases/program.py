"""The parts of a training program besides its model: data, optimizer, and the events of its steps.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import Any, Literal

from ddp_invariants.cases.fields import Strict, between, one_of, require

OptimizerKind = Literal["sgd", "adamw", "adam"]
Kernels = Literal["default", "foreach", "fused"]
PoisonKind = Literal["nan", "inf", "-inf"]
BetweenStepsKind = Literal[
    "evaluation",
    "evaluation with gradients",
    "inference",
    "forward only",
    "learning rate",
    "decay",
    "freeze",
    "unfreeze",
    "cast",
    "copy",
    "assign",
    "reload",
    "save",
    "buffers",
    "weights",
    "prune",
]
EVALUATIONS: tuple[BetweenStepsKind, ...] = (
    "evaluation",
    "evaluation with gradients",
    "inference",
)
"""The actions between steps that are a forward in evaluation mode."""
PerturbationKind = Literal[
    "none", "withheld", "delays", "late", "slow communication", "slow computation"
]
Sentinel = Literal["finite", "nan"]
InjectedFailureKind = Literal["forward error", "backward error", "death"]
SENTINEL = 12345.0
"""The value in a buffer while its result is withheld, unless the case asks for NaN.

The value is finite, because a NaN stays a NaN after a division.
"""


@dataclass(frozen=True)
class Data(Strict):
    """The dataset and the arguments of its sampler. The case's seed and i alone fix sample i.

    Attributes:
        samples: Dataset length N.
        batch_size: Samples per rank and step, B.
        shuffle: True if the sampler permutes the dataset by (seed, epoch).
        drop_last: True if the sampler drops the tail instead of padding it.
        seed: The sampler's seed. Only a sampler that is asked alone gets a negative or a large one.
    """

    samples: int = 2
    batch_size: int = 1
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        between("samples", self.samples, 0, 1_000_000)
        between("batch_size", self.batch_size, 1, 4096)
        between("seed", self.seed, -(2**63), 2**63 - 1)

    def of_a_rank(self, world_size: int) -> int:
        """Return the number of samples in each rank's shard."""
        return self.samples // world_size if self.drop_last else -(-self.samples // world_size)


_CONSTANTS = ("beta_1", "beta_2", "epsilon")


@dataclass(frozen=True)
class Optimizer(Strict):
    """The optimizer of every rank and of the oracle.

    The learning rate is a power of two, 2**log2_lr, so that steps can be exact.

    Attributes:
        kind: `adam` adds weight decay to the gradient, `adamw` subtracts it from the parameter.
        log2_lr: Binary logarithm of the learning rate.
        momentum: The momentum; of SGD only.
        weight_decay: The weight decay, as torch's optimizers define it.
        nesterov: True if SGD uses Nesterov momentum.
        beta_1: The decay of Adam's first moment.
        beta_2: The decay of Adam's second moment.
        epsilon: The number that Adam adds to its denominator.
        amsgrad: True if Adam divides by the root of the largest second moment so far.
        maximize: True if a step climbs the gradient.
        kernels: The implementation of torch that makes a step: a loop over parameters, a loop over
            operations (`foreach`), or one kernel (`fused`). On CPU the kernel needs contiguous
            parameters that all have a gradient (`TrainingCase.fusible`).
    """

    kind: OptimizerKind = "sgd"
    log2_lr: int = -6
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    amsgrad: bool = False
    maximize: bool = False
    kernels: Kernels = "default"

    def __post_init__(self) -> None:
        one_of("kind", self.kind, OptimizerKind)
        one_of("kernels", self.kernels, Kernels)
        require(
            not self.nesterov or (self.kind == "sgd" and self.momentum > 0),
            "nesterov",
            self.nesterov,
            "false without SGD's momentum",
        )
        between("log2_lr", self.log2_lr, -30, 0)
        require(0 <= self.momentum < 1, "momentum", self.momentum, "a number in [0, 1)")
        require(0 <= self.weight_decay < 1, "weight_decay", self.weight_decay, "a number in [0, 1)")
        require(0 <= self.beta_1 < 1, "beta_1", self.beta_1, "a number in [0, 1)")
        require(0 <= self.beta_2 < 1, "beta_2", self.beta_2, "a number in [0, 1)")
        require(0 < self.epsilon < 1, "epsilon", self.epsilon, "a number in (0, 1)")
        of_adam = (*self.differing_constants, *(["amsgrad"] if self.amsgrad else []))
        require(
            self.kind != "sgd" or not of_adam,
            "kind",
            self.kind,
            f"adam or adamw with {', '.join(of_adam)}",
        )

    @property
    def differing_constants(self) -> tuple[str, ...]:
        """The names of Adam's constants that are not torch's defaults."""
        return tuple(
            name for name in _CONSTANTS if getattr(self, name) != getattr(type(self), name)
        )

    @property
    def stateful(self) -> bool:
        """True if the optimizer keeps tensors of its own from step to step."""
        return self.kind != "sgd" or self.momentum > 0

    @property
    def overwrites(self) -> bool:
        """True if a step may overwrite the gradients, as torch's loop over operations does.

        torch.optim.sgd._multi_tensor_sgd adds the momentum to the gradients in place, unless weight
        decay has copied them. On a GPU that loop is the default.
        """
        return self.nesterov and self.kernels != "fused"

    @property
    def lr(self) -> float:
        """The learning rate."""
        return float(2.0**self.log2_lr)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of torch's optimizer besides the parameters."""
        usual = {"betas", "eps"} if not self.differing_constants else set[str]()
        return {
            name: value
            for name, value in self.settings.items()
            if name not in usual and value is not False
        }

    @property
    def settings(self) -> dict[str, Any]:
        """The same, with every other setting that cases vary."""
        of_kind: dict[str, Any] = (
            {"momentum": self.momentum, "nesterov": self.nesterov}
            if self.kind == "sgd"
            else {
                "betas": (self.beta_1, self.beta_2),
                "eps": self.epsilon,
                "amsgrad": self.amsgrad,
            }
        )
        common = {"lr": self.lr, "weight_decay": self.weight_decay, "maximize": self.maximize}
        return common | of_kind | ({} if self.kernels == "default" else {self.kernels: True})


@dataclass(frozen=True)
class Poison(Strict):
    """A value that is not finite, put into the first input of one rank's batch at one step."""

    rank: int
    step: int
    value: PoisonKind = "nan"

    def __post_init__(self) -> None:
        one_of("value", self.value, PoisonKind)


@dataclass(frozen=True)
class LossScale(Strict):
    """The plan of a loss scaler (`torch.amp.GradScaler`); every rank has its own scaler.

    All factors are powers of two, so that scaling and unscaling round only numbers that are too
    small to be normal.

    Attributes:
        log2_scale: Binary logarithm of the scale of the first step's loss.
        interval: The number of consecutive steps without a skipped one after which the scale
            grows.
        log2_growth: Binary logarithm of the factor by which the scale grows.
        log2_backoff: Binary logarithm of the divisor of the scale when a step is skipped.
        unscaled: True if the program itself unscales gradients before the step, as it must if
            they are clipped.
    """

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
        """Return the binary logarithm of the largest scale in a number of steps."""
        return self.log2_scale + self.log2_growth * (steps // self.interval)


@dataclass(frozen=True)
class Perturbation(Strict):
    """A change of the timing of collectives. A correct program gives the same bits under each.

    Attributes:
        kind: `none` changes nothing. `withheld` delivers a result only when the program waits for
            it; until then the buffer holds a sentinel. `delays` starts each collective of each
            rank after its own delay, which the case's seed fixes. `late` starts the collectives
            of one rank late. After half a second of delays in a group, each takes a millisecond at
            most. `slow communication` makes a device wait before each collective, and `slow
            computation` before each gradient, on the stream that runs it.
        sentinel: The value in a withheld buffer: a number, or NaN.
        rank: The rank whose collectives start late.
        milliseconds: The delay of the late rank, the longest of all `delays`, or the time for
            which a device waits.
    """

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
        """The change as the end of "only when …"; empty if nothing changes."""
        if self.kind == "withheld":
            return "results are withheld until they are waited for" + (
                ", NaN meanwhile" if self.sentinel == "nan" else ""
            )
        if self.kind == "delays":
            return (
                f"collectives start up to {self.milliseconds} ms late, "
                "each rank's at times of its own"
            )
        if self.on_device:
            operation = "collective" if self.kind == "slow communication" else "gradient"
            return f"the device does nothing for {self.milliseconds} ms before each {operation}"
        return (
            f"rank {self.rank} starts its collectives {self.milliseconds} ms late"
            if self.kind == "late"
            else ""
        )

    @property
    def on_device(self) -> bool:
        """True if the change delays a device's streams; it changes nothing on CPU."""
        return self.kind.startswith("slow")


@dataclass(frozen=True)
class InjectedFailure(Strict):
    """A failure that the user's program has at one step.

    Attributes:
        kind: A `forward error` or a `backward error` is an exception of the user's own, raised on
            every rank in the middle of the module's forward or backward. The failing attempt has
            other targets than the step. The program catches the exception, clears the gradients and
            makes the step. The `death` of one rank's process comes as the step's forward starts,
            from the second step on: an implementation may still set something up in the first step,
            and wait for all ranks without a limit.
        step: The step that fails.
        rank: The rank that dies.
        parameter: The trained parameter whose gradient's hook raises the `backward error`, in the
            order of registration. A number beyond the last parameter starts from the first again.
            None if a hook on the result of the middle layer raises.
        interrupts: True if the exception is no `Exception`, as `KeyboardInterrupt` is none.
    """

    kind: InjectedFailureKind
    step: int = 0
    rank: int = 0
    parameter: int | None = None
    interrupts: bool = False

    def __post_init__(self) -> None:
        one_of("kind", self.kind, InjectedFailureKind)
        if self.parameter is not None:
            between("parameter", self.parameter, 0, 1000)
            require(
                self.kind == "backward error",
                "parameter",
                self.parameter,
                "null unless a backward raises",
            )
        require(
            not self.interrupts or self.kind != "death",
            "interrupts",
            self.interrupts,
            "false if a rank dies",
        )


@dataclass(frozen=True)
class Unused(Strict):
    """A layer that forwards pass by, so that its parameters get no gradient there.

    Attributes:
        layer: The index of the layer. Its result must be as wide as its input, because the forward
            passes the input on unchanged, without the activation.
        rank: The rank whose forwards pass the layer by; None for all ranks.
        step: The step at which they do so; None for all steps.
        micro_step: The micro-step of a step, counted from 0; None for all micro-steps.
    """

    layer: int
    rank: int | None = None
    step: int | None = None
    micro_step: int | None = None


@dataclass(frozen=True)
class Exhausted(Strict):
    """A rank that runs out of batches before the other ranks do.

    Attributes:
        rank: The rank.
        steps: The number of steps for which the rank has batches.
    """

    rank: int
    steps: int = 1


@dataclass(frozen=True)
class BetweenSteps(Strict):
    """An action of the program on every rank before a step, besides training.

    Attributes:
        kind: `evaluation` evaluates the step's batch without gradients, and `evaluation with
            gradients` with autograd on, but without a backward; `inference` evaluates it under
            `torch.inference_mode`. `forward only` runs a forward in
            training mode and no backward. `learning rate` divides the learning rate by four from
            now on; `decay` halves the momentum (Adam's `beta_1`) and the weight decay. `freeze` freezes a layer and
            clears its gradients; `unfreeze` trains a layer from now on. `cast` casts the
            parameters to float64 and back, and clears gradients before (see `keeps`). `copy` takes
            a deep copy of the wrapped model and keeps it. `assign` gives the model its own saved
            values as new tensors, and makes a new optimizer. `reload` saves the model and its
            optimizer, and loads both into new ones that start from other values; `save` only saves
            them. `buffers` writes to the buffers in place, the same on every rank, as a program
            does that resets running statistics. `weights` halves the trained parameters in place, as a
            program does that clips them.
        step: The step that follows the action, from the second step on. An evaluation may come
            before the first step, too.
        layer: The layer that is frozen or trained from now on.
        keeps: True if a `cast` clears no gradients, but casts them, too, as `module.double()` does.
    """

    kind: BetweenStepsKind
    step: int = 1
    layer: int = 0
    keeps: bool = False

    def __post_init__(self) -> None:
        one_of("kind", self.kind, BetweenStepsKind)
        require(not self.keeps or self.kind == "cast", "keeps", self.keeps, "false for no cast")

    @property
    def evaluates(self) -> bool:
        """True if the action is a forward without a backward."""
        return self.kind in (*EVALUATIONS, "forward only")

    @property
    def clears(self) -> bool:
        """True if the action removes gradients that were left in place."""
        return self.kind in ("freeze", "cast", "assign", "reload") and not self.keeps

    @property
    def freezes(self) -> bool:
        """True if the action changes which layers are trained."""
        return self.kind in ("freeze", "unfreeze")
