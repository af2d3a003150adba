"""The door every implementation comes through: a name, and how what it names is driven.

A name is `package.module:Name` or `path/to/file.py:Name`; `reference` and `torch` are
short for two of those. What it names is called with what its signature asks for by the
usual names (IMPLEMENTATIONS in the field differ in names and units, hardly in shape).
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ddp_invariants.case import TrainingCase

Side = Literal["ddp", "sampler"]

SHORT_NAMES: dict[Side, dict[str, str]] = {
    "ddp": {
        "reference": "ddp_invariants.reference.ddp:DistributedDataParallel",
        "torch": "torch.nn.parallel:DistributedDataParallel",
    },
    "sampler": {
        "reference": "ddp_invariants.reference.sampler:DistributedSampler",
        "torch": "torch.utils.data:DistributedSampler",
    },
}

_MIB = 2.0**20
BUCKET_CAPS: dict[str, Callable[[int], float]] = {
    "bucket_cap_mb": lambda size: size / _MIB,
    "bucket_size_mb": lambda size: size / _MIB,
    "bucket_cap_bytes": lambda size: size,
    "bucket_bytes": lambda size: size,
}
"""How a bucket capacity in bytes is passed, by the name of the argument that takes it."""

GROUPS = ("process_group", "group", "pg")
FINISHERS = (
    "finish_gradient_synchronization", "finish_gradient_sync", "finish_grad_sync", "sync_gradients", "sync_grads",
    "synchronize_gradients", "all_reduce_grads", "allreduce_gradients", "average_gradients", "synchronize",
)
"""Calls made after backward where the wrapper has one; names that exist on nn.Module are not among them."""

SAMPLER_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "samples": ("dataset", "data_source"),
    "world_size": ("num_replicas", "world_size", "num_processes", "data_parallel_size"),
    "rank": ("rank", "process_index", "data_parallel_rank"),
    "shuffle": ("shuffle",),
    "seed": ("seed",),
    "drop_last": ("drop_last",),
}

DECLARATIONS: dict[str, tuple[str, ...]] = {"init": ("wrap", "first_forward", "seed")}
"""What an implementation may declare in an attribute `declares`, and the values each declaration takes."""


class LoadError(Exception):
    """The implementation cannot be put on trial: one sentence that names it, what is wrong and what to do."""


@dataclass(frozen=True)
class Description:
    """What the controller needs to know of an implementation without importing it.

    Attributes:
        name: As given on the command line.
        target: The same with short names resolved.
        version: Of the distribution it comes from, or of nothing ("unversioned").
        takes_bucket_cap: Whether cases may draw a bucket capacity.
        takes_group: Whether cases may hand it a subgroup.
        takes_drop_last: For a sampler, whether it can drop the tail.
        takes_shuffle: For a sampler, whether it can shuffle.
        init: Declared way to equal parameters: `wrap`, `first_forward` or `seed`.
    """

    name: str
    target: str
    version: str
    takes_bucket_cap: bool = False
    takes_group: bool = False
    takes_drop_last: bool = False
    takes_shuffle: bool = False
    init: str = "wrap"


def resolve(name: str, side: Side) -> Any:
    """Import what a name stands for.

    Raises:
        LoadError: The name has no such form, its module or file does not exist or does not import, or it has no such
            attribute.
    """
    target = SHORT_NAMES[side].get(name, name)
    module_name, colon, attribute = target.rpartition(":")
    if not colon or not module_name or not attribute:
        short = ", ".join(SHORT_NAMES[side])
        raise LoadError(f"--{side} {name}: expected {short}, package.module:Name or path/to/file.py:Name")
    try:
        module = _from_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
    except LoadError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (module_name + ".").startswith(error.name + "."):
            raise LoadError(f"--{side} {name}: there is no module {error.name!r}; install it, or give the path of a "
                            ".py file") from error
        raise LoadError(f"--{side} {name}: importing it needs the module {error.name!r}, which is missing") from error
    except BaseException as error:  # SystemExit included: a module may do anything when imported.
        raise LoadError(f"--{side} {name}: importing {module_name} raised {type(error).__name__}: {error}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        offered = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise LoadError(f"--{side} {name}: {module_name} has no {attribute!r}; it has {', '.join(offered[:12])}") from None


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise LoadError(f"there is no file {path}")
    name = f"_on_trial_{path.stem}"
    if name in sys.modules and sys.modules[name].__file__ == str(path.resolve()):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _version(thing: Any) -> str:
    root = (getattr(thing, "__module__", "") or "").split(".")[0]
    version = getattr(sys.modules.get(root), "__version__", None)
    return f"{root} {version}" if version else "unversioned"


def _signature(thing: Any, side: Side, name: str) -> dict[str, inspect.Parameter]:
    if not callable(thing):
        raise LoadError(f"--{side} {name}: it is a {type(thing).__name__}, expected a class or function")
    try:
        return dict(inspect.signature(thing).parameters)
    except (TypeError, ValueError) as error:
        raise LoadError(f"--{side} {name}: its arguments cannot be read: {error}") from error


def _first(names: Iterable[str], parameters: dict[str, inspect.Parameter]) -> str | None:
    return next((name for name in names if name in parameters), None)


class Wrapper:
    """A DDP on trial: how to wrap a module with it and what to call after backward."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.make = resolve(name, "ddp")
        parameters = _signature(self.make, "ddp", name)
        self.cap = _first(BUCKET_CAPS, parameters)
        self.group = _first(GROUPS, parameters)
        given = {self.cap, self.group}
        required = [p.name for p in parameters.values()
                    if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY, p.KEYWORD_ONLY)]
        if not parameters:
            raise LoadError(f"--ddp {name}: it takes no argument, expected a module as the first one")
        missing = [argument for argument in required[1:] if argument not in given]
        if missing:
            raise LoadError(f"--ddp {name}: it requires {', '.join(missing)}; only the module, a bucket capacity "
                            f"({', '.join(BUCKET_CAPS)}) and a process group ({', '.join(GROUPS)}) can be passed")
        self.declares = dict(getattr(self.make, "declares", {}))
        for key, value in self.declares.items():
            if value not in DECLARATIONS.get(key, ()):
                known = "; ".join(f"{k} = {' | '.join(v)}" for k, v in DECLARATIONS.items())
                raise LoadError(f"--ddp {name}: it declares {key} = {value!r}; known are {known}")

    def describe(self) -> Description:
        """What the controller may draw for it."""
        return Description(self.name, SHORT_NAMES["ddp"].get(self.name, self.name), _version(self.make),
                           takes_bucket_cap=self.cap is not None, takes_group=self.group is not None,
                           init=self.declares.get("init", "wrap"))

    def wrap(self, module: nn.Module, case: TrainingCase, group: Any) -> Any:
        """Wrap a replica; `group` is None for the default group. Raises whatever the implementation raises."""
        arguments: dict[str, Any] = {}
        if self.cap is not None and case.bucket_cap is not None:
            arguments[self.cap] = BUCKET_CAPS[self.cap](case.bucket_cap)
        if self.group is not None and group is not None:
            arguments[self.group] = group
        wrapped = self.make(module, **arguments)
        return module if wrapped is None else wrapped  # `is None`, since a wrapper's len() may raise.

    def finisher(self, wrapped: Any) -> Callable[[], Any]:
        """The call to make after backward; does nothing where the wrapper has none."""
        for name in FINISHERS:
            method = getattr(type(wrapped), name, None)
            if callable(method):
                return getattr(wrapped, name)  # type: ignore[no-any-return]  # whatever the implementation has there
        return lambda: None


class SamplerMaker:
    """A sampler on trial: how to make one for a rank."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.make = resolve(name, "sampler")
        parameters = _signature(self.make, "sampler", name)
        self.names = {ours: _first(theirs, parameters) for ours, theirs in SAMPLER_ARGUMENTS.items()}
        for needed in ("samples", "world_size", "rank"):
            if self.names[needed] is None:
                raise LoadError(f"--sampler {name}: it takes none of {', '.join(SAMPLER_ARGUMENTS[needed])}, "
                                f"so it cannot be told its {needed.replace('_', ' ')}")

    def describe(self) -> Description:
        """What the controller may draw for it."""
        return Description(self.name, SHORT_NAMES["sampler"].get(self.name, self.name), _version(self.make),
                           takes_drop_last=self.names["drop_last"] is not None,
                           takes_shuffle=self.names["shuffle"] is not None)

    def __call__(self, samples: int, world_size: int, rank: int, *, shuffle: bool, seed: int, drop_last: bool) -> Any:
        """A sampler for one rank over a dataset of that length. Raises whatever the implementation raises."""
        ours = {"samples": range(samples), "world_size": world_size, "rank": rank, "shuffle": shuffle, "seed": seed,
                "drop_last": drop_last}
        return self.make(**{theirs: ours[name] for name, theirs in self.names.items() if theirs is not None})
