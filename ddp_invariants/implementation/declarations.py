"""What an implementation says of itself: how it does what it must, and what it does not do at all.

Nothing of it is taken on trust: a declaration changes what is judged, never whether. It stands in a
`declares` attribute of the implementation or its adapter, or in a TOML file (`--declare FILE`, or
what `discover --pin FILE` wrote), under `[ddp]` and `[sampler]`.

Standard library only: the rank side imports this module under any interpreter.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from ddp_invariants.errors import DeclarationError

Init = Literal["wrap", "first_forward", "seed"]
Reduction = Literal["mean", "sum"]
Gradients = Literal["all", "owner", "hidden"]
Exactness = Literal["bitwise", "float16", "bfloat16", "lossy"]
Accumulation = Literal["", "no_sync", "each", "none"]
Partition = Literal["elements", "rows", "parameters"]
OptimizerOwner = Literal["replicated", "own"]
Main = Literal["", "float32"]
Buckets = Literal["", "within", "reach"]
Loss = Literal["tagged", "mse"]
Activation = Literal["none", "relu", "gelu"]
Divisor = Literal["initial", "active"]
Padding = Literal["wrap", "batch", "none"]
ShardLayout = Literal["", "strided", "contiguous", "scatter"]
Saves = Literal["epoch", "place"]


MOST_LAYERS = 64
SHARDED = 3
"""The stage of sharding from which on parameters are whole only while a layer computes."""


@dataclass(frozen=True)
class Stack:
    """The one shape of model a whole training step computes: linear layers without bias, all float32.

    Attributes:
        layers: How many; 0 for any number.
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
    """Of a DDP.

    Attributes:
        init: When the ranks become equal: `wrap`, at the latest `first_forward`, or never, because
            they are built equal (`seed`).
        reduction: What a gradient is over the ranks.
        gradients: Who holds the reduced gradient: `all` ranks, the `owner` of each parameter alone,
            or nobody (`hidden`: parameters carry the proof).
        exactness: How far a reduced gradient may be from the mean: by rounding in its own dtype
            (`bitwise` means that ranks agree to the bit), by rounding to a lower one, or `lossy`,
            which leaves only agreement to judge.
        accumulation: How several backwards per step are run: all but the last under `no_sync`,
            `each` synchronised, or not at all (`none`). Empty: found out by looking for `no_sync`.
        zero: Stage of sharding: 1 optimizer state, 2 gradients too, 3 parameters too; 0 none.
        partition: What a shard is made of: equal numbers of `elements`, of `rows` (the first
            dimension), or whole `parameters`, whose sizes differ.
        optimizer: Whether every rank keeps the whole optimizer state, `replicated`, or it is the
            implementation's `own` affair, as with `--opt`.
        main: Dtype of the copy an optimizer updates where parameters are of a lower one; empty: it
            updates them themselves.
        buckets: How they are filled: closed before they would exceed their capacity (`within`), or
            once they have reached it (`reach`). Empty: found out.
        divisor: By how many a sum over the ranks is divided when some have run out of batches: by
            those there were at first (`initial`), so that these count as zero, or by those that
            still have one (`active`).
        loss: Of a whole training step: the suite's own (`tagged`), or the mean of squared errors
            (`mse`).
        stack: Of a whole training step: the model it computes; None where it takes any module.
        supports: Capabilities claimed: each must be met and not refused.
        unsupported: Capabilities not claimed: what happens there is printed and accuses nobody.
    """

    init: Init = "wrap"
    reduction: Reduction = "mean"
    gradients: Gradients = "all"
    exactness: Exactness = "bitwise"
    accumulation: Accumulation = ""
    zero: int = 0
    partition: Partition = "elements"
    optimizer: OptimizerOwner = "replicated"
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
                "main": Main,
                "buckets": Buckets,
                "divisor": Divisor,
                "loss": Loss,
            },
        )
        if self.zero not in (0, 1, 2, 3):
            raise DeclarationError(f"zero = {self.zero!r}: expected 0, 1, 2 or 3")


@dataclass(frozen=True)
class SamplerDeclarations:
    """Of a sampler.

    Attributes:
        padding: How unequal shards become equal: by at most W - 1 repeated indices (`wrap`), by
            whole batches (`batch`), or not at all (`none`: exact and unequal).
        layout: Which part of the order a rank holds; empty: not said, not judged. `scatter`: no
            index, but the data themselves, sent by the first rank, so that ranks are asked
            together, in a process group.
        saves: What a saved state holds: the `epoch` and how much of it was taken, or the `place`
            alone, so that `set_epoch` is called before it is loaded.
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
                    f"{name} names {word!r}, which is no capability{_meant(word, CAPABILITIES)}; they are "
                    f"{', '.join(CAPABILITIES)}"
                )


def _meant(got: object, among: Any) -> str:
    close = difflib.get_close_matches(str(got), list(among), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


CAPABILITIES = {
    "bucket_cap": "a bucket capacity can be given",
    "subgroup": "a process group can be given which does not contain rank 0",
    "no_sync": "gradients can be accumulated without communication",
    "no_sync_nested": "a no_sync inside a no_sync",
    "no_sync_error": "leaving a no_sync by an exception",
    "accumulation": "several backwards per step",
    "bucketing": "gradients travel in buckets filled up to the capacity",
    "overlap": "the first reduction starts before the last gradient is computed",
    "equal_buffers": "every step's forward starts from equal buffers on all ranks",
    "forward_error": "an exception in the user's forward, caught on all ranks",
    "backward_error": "an exception in the user's backward, caught on all ranks",
    "few": "fewer parameters than ranks",
    "tied": "one parameter under two names",
    "frozen": "parameters that require no gradient",
    "scalar": "0-d parameters",
    "empty": "parameters without elements",
    "strided": "parameters that are not contiguous",
    "channels_last": "4-d parameters in channels_last order",
    "buffers": "buffers: float, integer and bool",
    "bias": "parameters of one dimension",
    "float64": "float64 parameters",
    "embedding": "a table of which each sample uses a row",
    "sparse": "sparse gradients",
    "convolution": "a convolution's kernel",
    "norm": "a LayerNorm",
    "batch_norm": "a BatchNorm, in training by each rank's own batch",
    "attention": "a self-attention",
    "dropout": "layers that draw random numbers",
    "bfloat16": "bfloat16 parameters beside others",
    "complex": "complex parameters beside others",
    "sgd": "torch.optim.SGD",
    "momentum": "SGD with momentum",
    "weight_decay": "weight decay",
    "adamw": "torch.optim.AdamW",
    "nesterov": "SGD with Nesterov momentum",
    "adam": "torch.optim.Adam",
    "foreach": "optimizers that step by torch's foreach operations",
    "fused": "optimizers that step by torch's fused kernels",
    "zero_in_place": "zero_grad(set_to_none=False)",
    "never_zeroed": "gradients left in place between steps",
    "nonfinite": "NaN and infinity in a batch",
    "one_rank": "a world of one rank",
    "unused": "parameters that some ranks, or all, do not use at some steps",
    "crossed": "gradients that become ready in another order on one rank than on the others",
    "joint": "two forwards before one backward of their summed losses",
    "retained": "two backwards through one forward, each synchronised",
    "penalty": "a loss with a penalty on gradients by its inputs, which are asked for with a graph of their own",
    "twice": "a layer that a forward calls twice",
    "checkpointed": "layers that backward computes again",
    "reentrant": "layers that backward computes again in a backward of its own",
    "in_parts": "a parameter whose gradient one backward computes in parts, each in a backward of its own",
    "evaluation": "a forward in evaluation between steps",
    "evaluation_with_gradients": "a forward in evaluation of which gradients could be asked for, and none are",
    "forward_only": "a forward in training of which nothing comes",
    "forward_only_quiet": "such a forward before a step of several backwards, of which all but the last run under no_sync",
    "learning_rate": "another learning rate from some step on",
    "decay": "less momentum and weight decay from some step on",
    "freeze": "a layer frozen after wrapping",
    "unfreeze": "a layer trained after wrapping that was frozen before",
    "cast": "parameters cast to another dtype and back after wrapping",
    "copy": "a deep copy of what is wrapped, taken and kept",
    "buffers_written": "buffers that the program writes to between steps",
    "assign": "a state loaded as new tensors after wrapping: load_state_dict(assign=True)",
    "state": "a state to save, and to load into a wrapper made anew",
    "clipping": "gradients scaled down to a norm once they are synchronised",
    "scaler": "a loss scaled by torch.amp.GradScaler, of which each rank has one of its own",
    "autocast": "forwards under torch.autocast to bfloat16",
    "resized": "a state that another number of ranks goes on from",
    "join": "ranks that run out of batches before others do, under a join()",
    "shuffle": "a shuffled order, by seed and epoch",
    "drop_last": "dropping the tail instead of padding",
    "given_rank": "a rank and world size can be given, and checked",
    "uneven": "a dataset length not divisible by the world size",
    "short": "a dataset shorter than the world",
    "no_samples": "an empty dataset",
    "workers": "an iterable that deals a rank's samples to the workers of a DataLoader",
    "elastic": "a state that ranks of another number go on from",
    "resume": "a state to save and to go on from, in the middle of an epoch",
}
"""What an implementation may claim or not claim, by name."""


def declare(kind: type[Declared], plain: Mapping[str, Any]) -> Declared:
    """Declarations from plain data, as a `declares` attribute or a TOML table holds it.

    Raises:
        DeclarationError: A name or value nobody knows.
    """
    known = {one.name for one in fields(kind)}
    for name in plain:
        if name not in known:
            raise DeclarationError(
                f"{name!r} is no declaration{_meant(name, known)}; known are {', '.join(sorted(known))}"
            )
    found = dict(plain)
    for name in ("supports", "unsupported"):
        if name in found:
            found[name] = tuple(found[name])
    if found.get("stack") is not None and not isinstance(found["stack"], Stack):
        try:
            found["stack"] = Stack(**found["stack"])
        except TypeError:
            raise DeclarationError(
                f"stack = {found['stack']!r}: expected a table of layers, activation and last"
            ) from None
    return kind(**found)


@dataclass(frozen=True)
class DeclarationFile:
    """What a TOML file declares of both sides."""

    ddp: dict[str, Any] = field(default_factory=dict)
    sampler: dict[str, Any] = field(default_factory=dict)


def read(path: Path) -> DeclarationFile:
    """Read a declaration file.

    Raises:
        DeclarationError: It cannot be read, is no TOML, or holds something nobody knows.
    """
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeclarationError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{path} is no TOML: {error}") from error
    for name, table in plain.items():
        if name not in ("ddp", "sampler") or not isinstance(table, dict):
            raise DeclarationError(f"{path}: {name!r} is no table [ddp] or [sampler]")
    try:
        declare(Declarations, plain.get("ddp", {}))
        declare(SamplerDeclarations, plain.get("sampler", {}))
    except DeclarationError as error:
        raise DeclarationError(f"{path}: {error}") from error
    return DeclarationFile(**plain)


def to_toml(table: str, declared: Declarations | SamplerDeclarations) -> str:
    """One table of a declaration file: what differs from the defaults."""
    lines = [f"[{table}]"]
    for one in fields(declared):
        value = getattr(declared, one.name)
        if value != one.default:
            lines.append(f"{one.name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, Stack):
        return (
            "{ "
            + ", ".join(f"{one.name} = {_toml(getattr(value, one.name))}" for one in fields(value))
            + " }"
        )
    return f'"{value}"' if isinstance(value, str) else str(value)
