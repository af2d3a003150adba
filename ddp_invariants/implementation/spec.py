"""The implementation under test, as the user named it.

It is plain data that the controller hands to the ranks; the ranks import the implementation.

Standard library only: the rank side imports this module under any interpreter.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from ddp_invariants.cases.fields import Strict
from ddp_invariants.errors import NamingError
from ddp_invariants.implementation.declarations import DeclarationFile, read
from ddp_invariants.implementation.names import ADAPTERS, misnamed

Arguments = tuple[tuple[str, str], ...]
"""Name and text of each argument, as `--ddp-arg name=text` gave them."""


def arguments(option: str, texts: Iterable[str]) -> Arguments:
    """Parse the texts of a repeatable option into arguments.

    Raises:
        NamingError: One of them is not name=value.
    """
    for text in texts:
        if not text.partition("=")[0].isidentifier() or "=" not in text:
            raise NamingError(f"{option} {text}: expected name=value")
    return tuple((name, value) for name, _, value in (text.partition("=") for text in texts))


@dataclass(frozen=True)
class Ddp(Strict):
    """A DDP under test, and the calls around it.

    Attributes:
        name: `reference`, `torch`, `none`, `package.module:Name`, `path/to/file.py:Name`,
            `course:FILE#KIND`, or the name of an entry point.
        arguments: Passed to the named implementation.
        setup: Calls made before wrapping, such as `pkg.mod:init(dp_size=WORLD)`.
        start: Method called before each step's batch; empty: chosen by its usual names; `none`: no
            call.
        finish: Method called after backward, likewise.
        after: A free function called after backward.
        optimizer: An optimizer class that shards or synchronises; empty for the case's own.
        optimizer_arguments: Passed to it.
        declares: Declarations in a file, which override the implementation's own.
    """

    name: str = "reference"
    arguments: Arguments = ()
    setup: tuple[str, ...] = ()
    start: str = ""
    finish: str = ""
    after: str = ""
    optimizer: str = ""
    optimizer_arguments: Arguments = ()
    declares: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def options(self) -> str:
        """Return the command-line options that name it, empty for the default."""
        words = [] if self.name == "reference" else ["--ddp", self.name]
        words += [
            word for name, value in self.arguments for word in ("--ddp-arg", f"{name}={value}")
        ]
        words += [word for call in self.setup for word in ("--setup", call)]
        for option in ("start", "finish", "after"):
            words += [f"--{option}", getattr(self, option)] if getattr(self, option) else []
        words += ["--opt", self.optimizer] if self.optimizer else []
        words += [
            word
            for name, value in self.optimizer_arguments
            for word in ("--opt-arg", f"{name}={value}")
        ]
        return shlex.join(words)

    def __str__(self) -> str:
        """Return its name in a report, with the options that matter."""
        return (
            self.options().removeprefix("--ddp ")
            if self.name != "reference"
            else f"reference {self.options()}".rstrip()
        )

    def to_plain(self) -> dict[str, Any]:
        """Return the DDP as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Read a DDP from the data of `to_plain`."""
        return cls(
            **{
                **plain,
                "arguments": _pairs(plain["arguments"]),
                "setup": tuple(plain["setup"]),
                "optimizer_arguments": _pairs(plain["optimizer_arguments"]),
            }
        )


@dataclass(frozen=True)
class Sampler(Strict):
    """A sampler under test: its name, its arguments, and declarations in a file."""

    name: str = "reference"
    arguments: Arguments = ()
    declares: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def options(self) -> str:
        """Return the command-line options that name it, empty for the default."""
        words = [] if self.name == "reference" else ["--sampler", self.name]
        return shlex.join(
            words
            + [
                word
                for name, value in self.arguments
                for word in ("--sampler-arg", f"{name}={value}")
            ]
        )

    def __str__(self) -> str:
        """Return its name in a report."""
        return self.options().removeprefix("--sampler ") or self.name

    def to_plain(self) -> dict[str, Any]:
        """Return the sampler as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Read a sampler from the data of `to_plain`."""
        return cls(**{**plain, "arguments": _pairs(plain["arguments"])})


def options(ddp: Ddp, sampler: Sampler) -> str:
    """Return the command-line options that name both, empty for the reference."""
    return " ".join(text for text in (ddp.options(), sampler.options()) if text)


def _pairs(plain: Any) -> Arguments:
    return tuple((name, value) for name, value in plain)


def named(given: Mapping[str, Any]) -> tuple[Ddp, Sampler]:
    """Make the DDP and the sampler from the values of the command-line options (`OPTIONS`).

    Raises:
        NamingError: An option cannot be read.
        DeclarationError: A declaration file cannot be read.
    """
    for side in ("ddp", "sampler"):
        special = side == "ddp" and (given[side] == "none" or given[side].startswith("course:"))
        wrong = "" if special else misnamed(given[side], side)
        # Report it before anything starts; the ranks report errors that only an import shows.
        if wrong:
            raise NamingError(wrong)
    declared = _declared(given)
    ddp = Ddp(
        given["ddp"],
        arguments("--ddp-arg", given["ddp_arg"]),
        tuple(given["setup"]),
        given["start"],
        given["finish"],
        given["after"],
        given["opt"],
        arguments("--opt-arg", given["opt_arg"]),
        declared.ddp,
    )
    return ddp, Sampler(
        given["sampler"], arguments("--sampler-arg", given["sampler_arg"]), declared.sampler
    )


def _declared(given: Mapping[str, Any]) -> DeclarationFile:
    """Return the declarations of the given file, or of the files beside the implementations."""
    if given["declare"]:
        return read(Path(given["declare"]))
    tables = {}
    for side in ("ddp", "sampler"):
        file, colon, name = given[side].rpartition(":")
        beside = Path(file.removesuffix(".py") + f".{name}.toml")
        if colon and file.endswith(".py") and beside.is_file():
            tables[side] = getattr(read(beside), side)
    return DeclarationFile(**tables)


@dataclass(frozen=True)
class Option:
    """A command-line option.

    Attributes:
        placeholder: Name of its value in the help.
        help: Its meaning, without the default.
        default: Its value if it is not given.
        otherwise: The behaviour if it is not given, in words; empty if `default` says it.
        repeatable: True if it may be given several times.
    """

    placeholder: str
    help: str
    default: str = ""
    otherwise: str = ""
    repeatable: bool = False

    @property
    def text(self) -> str:
        """Its help text, with the default."""
        return defaulting(self.help, self.otherwise or self.default)


def defaulting(text: str, default: object) -> str:
    """Return an option's help text with its default; every command and pytest word it like this."""
    return f"{text} (default: {default})"


OPTIONS: dict[str, Option] = {
    "--ddp": Option(
        "NAME",
        "DDP wrapper under test: package.module:Name or path/to/file.py:Name; reference (this "
        "package's DDP), torch (torch's DDP), none (no wrapper), or a shipped adapter: "
        f"{', '.join(ADAPTERS['ddp'])}; or "
        "course:path/to/adapters.py#KIND for a course's module of adapter functions",
        "reference",
    ),
    "--ddp-arg": Option(
        "NAME=VALUE",
        "argument for the DDP's constructor; VALUE is a Python literal, a dotted name such as "
        "torch.float32, a call such as torch.device('cpu'), or text; repeatable",
        otherwise="no further argument",
        repeatable=True,
    ),
    "--setup": Option(
        "CALL",
        "function that every rank calls before it makes the DDP, such as "
        "pkg.mod:init(dp_size=WORLD); WORLD and RANK stand for the rank's values; repeatable",
        otherwise="no call",
        repeatable=True,
    ),
    "--start": Option(
        "METHOD",
        "method of the DDP to call before each step, such as zero_grad_buffer; none: no call",
        otherwise="a method with a usual name, if the DDP has one",
    ),
    "--finish": Option(
        "METHOD",
        "method of the DDP to call after backward, such as finish_gradient_synchronization; none: "
        "no call",
        otherwise="a method with a usual name, if the DDP has one",
    ),
    "--after": Option(
        "NAME",
        "function to call with the wrapped model after backward, if a function and no method "
        "exchanges the gradients; a NAME like that of --ddp",
        otherwise="no call",
    ),
    "--opt": Option(
        "NAME",
        "optimizer class under test, if it shards its state or exchanges gradients: "
        "package.module:Name or path/to/file.py:Name",
        otherwise="each case's own torch optimizer",
    ),
    "--opt-arg": Option(
        "NAME=VALUE",
        "argument for the constructor of --opt, like --ddp-arg; repeatable",
        otherwise="no further argument",
        repeatable=True,
    ),
    "--sampler": Option(
        "NAME",
        "distributed sampler under test: package.module:Name, path/to/file.py:Name, reference "
        "(this package's), torch (torch's), or a shipped adapter such as datasets_by_examples; "
        "docs/adapter.md lists them",
        "reference",
    ),
    "--sampler-arg": Option(
        "NAME=VALUE",
        "argument for the sampler's constructor, like --ddp-arg; VALUE may also be RANK, "
        "WORLD_SIZE, SAMPLES, BATCH_SIZE, SEED, EPOCH, SHUFFLE or DROP_LAST of each case, or a "
        "calculation such as BATCH_SIZE*WORLD_SIZE; repeatable",
        otherwise="no further argument",
        repeatable=True,
    ),
    "--declare": Option(
        "FILE",
        "TOML file that says how the implementation works and what it does not support; "
        "see docs/adapter.md",
        otherwise="file.Name.toml beside file.py, if it exists",
    ),
}
"""The options that name the implementation under test."""
