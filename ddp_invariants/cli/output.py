"""The commands' JSON output, whose keys are in docs/json.md."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import click


def with_json(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option --json.

    With it the command prints only JSON on stdout. Errors still go to stderr.
    """
    description = "print JSON instead of text; docs/json.md lists its keys"
    return click.option("--json", "as_json", is_flag=True, help=description)(command)


def print_json(result: Any) -> None:
    """Print a command's result: plain data, frozen data, or lists of it."""
    click.echo(json.dumps(result, indent=1, default=_plain))


def for_people(*, as_json: bool) -> Callable[[str], None]:
    """Return a printer of text for people only, which prints nothing if the command prints JSON."""
    return (lambda _: None) if as_json else print_report


def print_report(text: str) -> None:
    """Print a text that names rules, as links to their pages where the terminal has links."""
    # Imported here: it imports all rules.
    from ddp_invariants.report.pages import opens_links, with_links

    click.echo(with_links(text) if opens_links(terminal=sys.stdout.isatty()) else text)


@contextmanager
def counting(what: str, count: Callable[[], int]) -> Iterator[None]:
    """Show on a terminal that the command works, and how far it is; nothing is shown elsewhere.

    Args:
        what: The words for what is counted.
        count: A function that returns the count at this moment.
    """
    # Imported here: a command without a terminal does not need it.
    from rich.console import Console
    from rich.text import Text

    class Line:
        """A line that is made anew with each frame."""

        def __rich__(self) -> Text:
            return Text(f"{what}: {count():,}")

    screen = Console(stderr=True)
    with screen.status(Line()) if screen.is_terminal else nullcontext():
        yield


@contextmanager
def text_aside() -> Iterator[None]:
    """Send everything printed in this context to stderr, since stdout is for machines.

    This includes the output of processes that are started in it.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
