"""The options that several commands share, such as those that name the implementation under test."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ddp_invariants.cli.types import ParamType
from ddp_invariants.errors import NamingError
from ddp_invariants.implementation.spec import OPTIONS, defaulting
from ddp_invariants.processes.backends import BACKENDS, DEVICES
from ddp_invariants.processes.pool import DEADLINE
from ddp_invariants.search.split import Split
from ddp_invariants.session import option_texts
from ddp_invariants.session.option_values import SECONDS, WORKERS, WholeNumber


class Whole(ParamType[int]):
    """The type of an option that takes a whole number.

    Args:
        values: The numbers it takes.
    """

    name = "integer"

    def __init__(self, values: WholeNumber) -> None:
        self.values = values

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number that a text gives; a default is a number already."""
        try:
            return value if isinstance(value, int) else self.values.read(value)
        except NamingError as error:
            self.fail(str(error), param, ctx)


class Workers(Whole):
    """The type of the number of worker processes; `auto` leaves it to pytest-xdist."""

    def __init__(self) -> None:
        super().__init__(WORKERS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or `auto`."""
        return value if value == "auto" else super().convert(value, param, ctx)


class Part(ParamType[Split]):
    """The type of an option that names a part of a run, such as 3/10."""

    name = "part"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Split:
        """Return the part; a default is one already."""
        try:
            return value if isinstance(value, Split) else Split.read(value)
        except NamingError as error:
            self.fail(str(error), param, ctx)


class FileOrFolder(click.Path):
    """The type of a file or folder that a command reads; the command itself says if it is missing."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. An empty one would stand for the current folder."""
        if not str(value):
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


class NewFile(click.Path):
    """The type of a file that a long command writes at its end; one that cannot be is refused first."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        path = super().convert(value, param, ctx)
        if isinstance(path, Path) and not (
            path.parent.is_dir() and os.access(path.parent, os.W_OK)
        ):
            self.fail(f"{path}: no file can be written in {path.parent}", param, ctx)
        return path


def naming(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that name the implementation under test."""
    return _naming(command, [option.text for option in OPTIONS.values()])


def renaming(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the same options, which change an implementation that a file names."""
    return _naming(
        command,
        [defaulting(option.help, "as stored in the file") for option in OPTIONS.values()],
    )


def _naming(command: Callable[..., Any], texts: list[str]) -> Callable[..., Any]:
    """Give a command the options, with these help texts."""
    for (name, option), text in reversed([*zip(OPTIONS.items(), texts, strict=True)]):
        command = click.option(
            name,
            metavar=option.placeholder,
            help=text,
            default=() if option.repeatable else option.default,
            multiple=option.repeatable,
        )(command)
    return command


def limiting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option for the time that a case may idle."""
    return click.option(
        "--deadline",
        type=Whole(SECONDS),
        default=int(DEADLINE),
        metavar="S",
        help=option_texts.DEADLINE,
    )(command)


def placing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options for the backend and for the device of the tensors."""
    device = click.option(
        "--device",
        type=click.Choice(DEVICES),
        help=option_texts.DEVICE,
    )
    backend = click.option(
        "--backend",
        type=click.Choice(BACKENDS),
        default="auto",
        help=option_texts.BACKEND,
    )
    return backend(device(command))
