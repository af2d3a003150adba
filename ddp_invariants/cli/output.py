"""What commands print for machines: JSON, whose keys are in docs/json.md."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import click


def with_json(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option that has it print JSON, and nothing else; what went wrong is told on stderr, as ever."""
    told = "print JSON, for machines (its keys are in docs/json.md)"
    return click.option("--json", "as_json", is_flag=True, help=told)(command)


def print_json(found: Any) -> None:
    """Print what a command found: plain data, frozen data, or lists of it."""
    click.echo(json.dumps(found, indent=1, default=_plain))


def for_people(*, as_json: bool) -> Callable[[str], None]:
    """What prints text that is for people alone: nothing where the command prints JSON."""
    return (lambda _: None) if as_json else click.echo


@contextmanager
def text_aside() -> Iterator[None]:
    """Have all that is printed meanwhile, by this process and those it starts, go to stderr: stdout is for machines."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _plain(one: Any) -> Any:
    if is_dataclass(one) and not isinstance(one, type):
        return asdict(one)
    if isinstance(one, Path):
        return str(one)
    if isinstance(one, Enum):
        return one.value
    raise TypeError(f"{type(one).__name__} is nothing for JSON")
