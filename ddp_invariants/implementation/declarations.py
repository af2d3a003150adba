"""Declarations of an implementation: how it does what it must, and what it does not do at all.

A declaration can change how a rule is judged. It can also exclude a rule, which is then not claimed
(GRAD-2 with `exactness = "lossy"`), or a capability (`unsupported`). The report lists what is
excluded. Declarations stand in a `declares` attribute of the implementation or its adapter, or in a
TOML file (`--declare FILE`, or the file written by `discover --pin FILE`), under `[ddp]` and
`[sampler]`.

Standard library only: the rank side imports this module under any interpreter.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from ddp_invariants.cases.dtypes import LOW_PRECISION
from ddp_invariants.errors import DeclarationError
from ddp_invariants.situations import SITUATIONS
from ddp_invariants.situations.asking import WAYS

Init = Literal["wrap", "first_forward", "seed"]
Reduction = Literal["mean", "sum"]
Gradients = Literal["all", "owner", "hidden"]
Exactness = Literal["bitwise", "float16", "bfloat16", "lossy"]
Accumulation = Literal["", "no_sync", "each", "none"]
Partition = Literal["elements", "rows", "parameters", "flat"]
OptimizerOwner = Literal["replicated", "own"]
Main = Literal["", "float32"]
Update = Literal["", "sgd", "adam", "adamw", "own"]
Buckets = Literal["", "within", "reach"]
Loss = Literal["tagged", "mse"]
Activation = Literal["none", "relu", "gelu"]
Divisor = Literal["initial", "active"]
Padding = Literal["wrap", "batch", "none", "endless", "own"]
ShardLayout = Literal["", "strided", "contiguous", "scatter"]
Saves = Literal["epoch", "place"]


MOST_LAYERS = 64
SHARDED = 3
"""The sharding stage from which on parameters are whole only while a layer computes."""


@dataclass(frozen=True)
class Stack:
    """The only model that a whole training step computes: linear layers without bias, all float32.

    Attributes:
        layers: The number of layers; 0 for any number.
        activation: Between the layers.
        last: After the last one.
    """

    layers: int = 0
    activation: Activation = "none"
    last: Activation = "none"

    def __post_init__(self) -> None:
        _check(self, {"activation": Activation, "last": Activation})
        if not isinstance(self.layers, int) or not 0 <= self.layers <= MOST_LAYERS:
            raise DeclarationError(f"layers = {self.layers!r}: expected 0 to {MOST_LAYERS}")


@dataclass(frozen=True)
class Declarations:
    """The declarations of a DDP.

    Attributes:
        init: When the ranks become equal: in `wrap`, at the latest in `first_forward`, or never,
            because they are built equal (`seed`).
        reduction: The operation on a gradient over the ranks.
        gradients: The holders of the reduced gradient: `all` ranks, only the `owner` of each
            parameter, or none (`hidden`: then the parameters are the proof).
        exactness: The allowed distance of a reduced gradient from the mean. `bitwise`: rounding in
            its own dtype, and ranks agree to the bit. A lower dtype: rounding to that dtype.
            `lossy`: any distance, so that only agreement is judged.
        accumulation: How several backwards per step are run: all but the last under `no_sync`,
            `each` synchronised, or not at all (`none`). Empty: discovered by looking for `no_sync`.
        zero: Stage of sharding: 1 optimizer state, 2 gradients too, 3 parameters too; 0 none.
        partition: The unit of a shard: equal numbers of `elements`, of `rows` (the first
            dimension), or whole `parameters`, whose sizes differ. `flat`: elements of tensors into
            which parameters are joined, frozen ones too. A wrapped module may list these tensors
            in place of its parameters.
        replicas: The number of equal copies of each shard, as with hybrid sharding. If it does not
            divide the world size, there is one copy.
        optimizer: `replicated` if every rank keeps the whole optimizer state, `own` if the
            implementation manages it, as with `--opt`.
        update: The only update that the optimizer makes, as torch's SGD, Adam or AdamW. `own`:
            another one, which follows from the mean gradients alone. Parameters after a step are
            then compared between ranks, and between runs whose ranks exchange batches. Empty: it
            makes that of the case.
        main: Dtype of the copy that an optimizer updates if parameters have a lower one. The copy
            lasts from step to step, and is saved. Empty: it updates the parameters themselves.
        buckets: How buckets are filled: closed before they would exceed their capacity (`within`),
            or once they have reached it (`reach`). Empty: discovered.
        divisor: The divisor of a sum over the ranks after some have run out of batches. `initial`:
            the initial number of ranks, so that these count as zero. `active`: the number of ranks
            that still have a batch.
        loss: Of a whole training step: the suite's own (`tagged`), or the mean of squared errors
            (`mse`).
        stack: Of a whole training step: the model it computes; None if it takes any module.
        supports: Claimed capabilities: each must be met and not refused.
        unsupported: Capabilities not claimed: their results are printed and are no violation.
    """

    init: Init = "wrap"
    reduction: Reduction = "mean"
    gradients: Gradients = "all"
    exactness: Exactness = "bitwise"
    accumulation: Accumulation = ""
    zero: int = 0
    partition: Partition = "elements"
    replicas: int = 1
    optimizer: OptimizerOwner = "replicated"
    update: Update = ""
    main: Main = ""
    buckets: Buckets = ""
    divisor: Divisor = "initial"
    loss: Loss = "tagged"
    stack: Stack | None = None
    supports: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(
            self,
            {
                "init": Init,
                "reduction": Reduction,
                "gradients": Gradients,
                "exactness": Exactness,
                "accumulation": Accumulation,
                "partition": Partition,
                "optimizer": OptimizerOwner,
                "update": Update,
                "main": Main,
                "buckets": Buckets,
                "divisor": Divisor,
                "loss": Loss,
            },
        )
        if self.zero not in (0, 1, 2, 3):
            raise DeclarationError(f"zero = {self.zero!r}: expected 0, 1, 2 or 3")
        if not isinstance(self.replicas, int) or self.replicas < 1:
            raise DeclarationError(f"replicas = {self.replicas!r}: expected a number from 1 on")

    def holders(self, world_size: int) -> int:
        """Return the number of ranks that share a copy of all shards."""
        return world_size if world_size % self.replicas else world_size // self.replicas


@dataclass(frozen=True)
class SamplerDeclarations:
    """The declarations of a sampler.

    Attributes:
        padding: How unequal shards become equal: by at most W - 1 repeated indices (`wrap`), by
            whole batches (`batch`), or not at all (`none`: exact and unequal). `endless`: a stream
            without end, of which each rank's first floor(N / W) indices are judged, as with
            drop_last. `own`: samples are repeated or left out by a contract of its own, so that
            only their range, `len`, determinism, and the change of a shuffled order with the epoch
            are judged.
        layout: The part of the order that a rank holds. The order is then the same for every number
            of ranks. Empty: not declared and not judged. `scatter`: a rank holds no index but the
            data themselves, sent by the first rank; so the ranks are asked together, in a process
            group.
        saves: The contents of a saved state. `epoch`: the epoch and how much of it was taken.
            `place`: only the latter, so that `set_epoch` is called before the state is loaded.
        supports: Capabilities claimed.
        unsupported: Capabilities not claimed.
    """

    padding: Padding = "wrap"
    layout: ShardLayout = ""
    saves: Saves = "epoch"
    supports: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self, {"padding": Padding, "layout": ShardLayout, "saves": Saves})


Declared = TypeVar("Declared", Declarations, SamplerDeclarations)


def _check(declared: Any, choices: Mapping[str, Any]) -> None:
    for name, literal in choices.items():
        value = getattr(declared, name)
        if value not in get_args(literal):
            allowed = ", ".join(repr(choice) for choice in get_args(literal) if choice)
            raise DeclarationError(
                f"{name} = {value!r}: expected one of {allowed}{_meant(value, get_args(literal))}"
            )
    for name in ("supports", "unsupported"):
        for word in getattr(declared, name, ()):
            if word not in CAPABILITIES:
                raise DeclarationError(
                    f"{name} names {word!r}, which is no "
                    f"capability{_meant(word, CAPABILITIES)}; the capabilities are "
                    f"{', '.join(CAPABILITIES)}"
                )


def _meant(got: object, among: Any) -> str:
    close = difflib.get_close_matches(str(got), list(among), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


CAPABILITIES: dict[str, str] = {
    "bucket_cap": "a bucket capacity can be given",
    "subgroup": "a process group without rank 0 can be given",
    "no_sync": "gradients can be accumulated without communication",
    "no_sync_nested": "a no_sync inside a no_sync",
    "no_sync_error": "leaving a no_sync by an exception",
    "no_sync_interrupt": "leaving a no_sync by an exception such as KeyboardInterrupt",
    "accumulation": "several backwards per step",
    "bucketing": "gradients travel in buckets filled up to the capacity",
    "overlap": "the first reduction starts before the last gradient is computed",
    "equal_buffers": "every step's forward starts from equal buffers on all ranks",
    "forward_error": "an exception in the user's forward, caught on all ranks",
    "backward_error": "an exception in the user's backward, caught on all ranks",
    "interrupts": "such an exception that is no `Exception`, as KeyboardInterrupt is none",
    "few": "fewer parameters than ranks",
    "from_the_group": "rank and world size from the process group",
    "tied": "one parameter under two names",
    "frozen": "parameters that require no gradient",
    "scalar": "0-d parameters",
    "empty": "parameters without elements",
    "strided": "parameters that are not contiguous",
    "strided_buffers": "buffers that are not contiguous",
    "channels_last": "4-d parameters in channels_last order",
    "buffers": "float, integer and bool buffers",
    "extremes": "buffers of seven dtypes, with numbers that few other formats hold",
    "shared_buffer": "a buffer that two modules hold",
    "bias": "parameters of one dimension",
    "float64": "float64 parameters",
    "short_batch": "a last batch that is smaller than the others",
    "embedding": "an embedding table, of which each sample uses one row",
    "sparse": "sparse gradients",
    "convolution": "a convolution's kernel",
    "norm": "a LayerNorm",
    "batch_norm": "a BatchNorm, in training by each rank's own batch",
    "attention": "a self-attention",
    "dropout": "layers that draw random numbers",
    "mixed": "layers with parameters of two dtypes",
    "summed": "a sum of two parameters, whose gradients are one tensor",
    "parametrized": "a layer that torch's parametrization changed, as by a weight norm",
    "terms": "a list of parameters (nn.ParameterList)",
    "named_module": "a submodule that the user calls module",
    "alike_underscored": "names that are equal with underscores for dots",
    "alike_joined": "names that are equal without their dots",
    "alike_cased": "names that are equal in lower case",
    "rooted": "a parameter of the whole module, beside its layers",
    **{name: f"{name} parameters" for name in LOW_PRECISION},
    "complex": "complex parameters",
    "sgd": "torch.optim.SGD",
    "momentum": "SGD with momentum",
    "weight_decay": "weight decay",
    "adamw": "torch.optim.AdamW",
    "nesterov": "SGD with Nesterov momentum",
    "adam_constants": "Adam with other betas and epsilon",
    "amsgrad": "Adam that divides by its largest second moment (amsgrad=True)",
    "maximize": "optimizers that climb the gradient (maximize=True)",
    "adam": "torch.optim.Adam",
    "foreach": "optimizers that step by torch's foreach operations",
    "fused": "optimizers that step by torch's fused kernels",
    "zero_in_place": "zero_grad(set_to_none=False)",
    "never_zeroed": "gradients left in place between steps",
    "zero_mixed": "some gradients set to None before a step and others zeroed in place",
    "nonfinite": "NaN and infinity in a batch",
    "one_rank": "a world of one rank",
    "unused": "parameters that some ranks, or all, do not use at some steps",
    "crossed": "gradients that become ready in another order on one rank",
    "joint": "two forwards before one backward of their summed losses",
    "retained": "two backwards through one forward, each synchronised",
    "penalty": "a loss with a penalty on the gradients of its inputs (create_graph=True)",
    "weight_penalty": "a loss with a penalty on the parameters, which differs between ranks",
    "loss_only": "a parameter that only the loss uses, such as a learned temperature",
    "twice": "a layer that a forward calls twice",
    "checkpointed": "layers that backward recomputes, as activation checkpoints do",
    "reentrant": "layers that a reentrant checkpoint recomputes in a backward of its own",
    "in_parts": "a gradient computed in parts, each in a backward of its own, as by reentrant checkpoints",
    "evaluation": "a forward in evaluation between steps",
    "evaluation_with_gradients": "a forward in evaluation with gradients enabled, and no backward",
    "inference_mode": "a forward in evaluation under torch.inference_mode() between steps",
    "forward_only": "a forward in training without a backward",
    "forward_only_quiet": "a forward in training without a backward, before a step that accumulates under no_sync",
    "learning_rate": "a learning rate that changes between steps",
    "decay": "momentum, or Adam's beta_1, and weight decay that become smaller between steps",
    "freeze": "a layer frozen after wrapping",
    "unfreeze": "a layer that is frozen at wrapping and trained later",
    "cast": "parameters cast to another dtype and back after wrapping, with or without gradients",
    "copy": "a deep copy of the wrapped model, taken and kept",
    "buffers_written": "buffers that the program writes to between steps",
    "weights_written": "parameters that the program writes to between steps",
    "pruned": "a layer pruned after wrapping, by torch.nn.utils.prune, which renames its parameter",
    "assign": "a state loaded as new tensors after wrapping: load_state_dict(assign=True)",
    "state": "a state that can be saved, and loaded into a new wrapper",
    "clipping": "gradients scaled down to a norm once they are synchronised",
    "scaler": "a loss scaled by torch.amp.GradScaler, with one scaler per rank",
    "autocast": "forwards under torch.autocast to bfloat16",
    "resized": "a saved state that another number of ranks loads",
    "join": "ranks with fewer batches than others, under join()",
    "shuffle": "a shuffled order, by seed and epoch",
    "in_order": "the order of the dataset, without shuffling",
    "drop_last": "dropping the tail instead of padding",
    "given_rank": "a rank and world size can be given, and checked",
    "set_epoch": "an epoch can be set, by set_epoch or by an argument",
    "uneven": "a dataset length not divisible by the world size",
    "short": "a dataset shorter than the world",
    "no_samples": "an empty dataset",
    "workers": "an iterable that divides a rank's samples among the workers of a DataLoader",
    "elastic": "a state that another number of ranks resumes from",
    "large_seed": "a sampler's seed of up to 63 bits",
    "negative_seed": "a sampler's seed below 0",
    "large_epoch": "epochs of 32 bits",
    "resume": "a state that is saved and resumed in the middle of an epoch",
}
CAPABILITIES |= {way.capability: way.means for way in WAYS}
CAPABILITIES |= {
    name: capability.words
    for situation in SITUATIONS
    for name, capability in situation.capabilities().items()
    if capability.words
}
"""The capabilities that an implementation may claim or not claim, by name."""

NEIGHBOURS: dict[str, str] = {
    "few": "fewer parameters than ranks",
    "from_the_group": "rank and world size from the process group",
    "unused": "some parameters unused",
    "unreached": "all parameters of a rank unused",
}
"""Words for the capabilities whose names do not say how they differ, for lists of names.

The names stay as they are, because users have declared them in files.
"""


def in_list(name: str) -> str:
    """Return the name of a capability as a list of names shows it."""
    return f"{name} ({NEIGHBOURS[name]})" if name in NEIGHBOURS else name


def declare(kind: type[Declared], plain: Mapping[str, Any]) -> Declared:
    """Make declarations from plain data, as in a `declares` attribute or a TOML table.

    Raises:
        DeclarationError: A name or value is unknown.
    """
    known = {item.name for item in fields(kind)}
    for name in plain:
        if name not in known:
            raise DeclarationError(
                f"{name!r} is no declaration{_meant(name, known)}; the declarations are "
                f"{', '.join(sorted(known))}"
            )
    values = dict(plain)
    for name in ("supports", "unsupported"):
        if name in values:
            values[name] = _names(name, values[name])
    if values.get("stack") is not None and not isinstance(values["stack"], Stack):
        try:
            values["stack"] = Stack(**values["stack"])
        except TypeError:
            raise DeclarationError(
                f"stack = {values['stack']!r}: expected a table of layers, activation and last"
            ) from None
    return kind(**values)


def _names(name: str, value: object) -> tuple[str, ...]:
    """Return a list of capabilities as a tuple.

    Raises:
        DeclarationError: It is no list of names.
    """
    names = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (None,)
    words = tuple(word for word in names if isinstance(word, str))
    if len(words) != len(names):
        raise DeclarationError(f"{name} = {value!r}: expected a list of names of capabilities")
    return words


@dataclass(frozen=True)
class DeclarationFile:
    """The declarations in a TOML file, for DDP and sampler."""

    ddp: dict[str, Any] = field(default_factory=dict)
    sampler: dict[str, Any] = field(default_factory=dict)


def read(path: Path) -> DeclarationFile:
    """Read a declaration file.

    Raises:
        DeclarationError: It cannot be read, is no TOML, or holds an unknown name or value.
    """
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeclarationError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{path} is not valid TOML: {error}") from error
    for name, table in plain.items():
        if name not in ("ddp", "sampler") or not isinstance(table, dict):
            raise DeclarationError(f"{path}: {name!r} is no table; expected [ddp] or [sampler]")
    try:
        declare(Declarations, plain.get("ddp", {}))
        declare(SamplerDeclarations, plain.get("sampler", {}))
    except DeclarationError as error:
        raise DeclarationError(f"{path}: {error}") from error
    return DeclarationFile(**plain)


def to_toml(table: str, declared: Declarations | SamplerDeclarations) -> str:
    """Write one table of a declaration file: the fields that differ from the defaults."""
    lines = [f"[{table}]"]
    for item in fields(declared):
        value = getattr(declared, item.name)
        if value != item.default:
            lines.append(f"{item.name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, Stack):
        return (
            "{ "
            + ", ".join(
                f"{item.name} = {_toml(getattr(value, item.name))}" for item in fields(value)
            )
            + " }"
        )
    return f'"{value}"' if isinstance(value, str) else str(value)
