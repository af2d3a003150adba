"""The options that say what is on trial."""

from collections.abc import Callable
from typing import Any

import click

from ddp_invariants.implementation import OPTIONS


def naming(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say what is on trial."""
    for name, option in reversed(OPTIONS.items()):
        default: Any = () if option.repeatable else option.default
        command = click.option(name, metavar=option.placeholder, help=option.told, default=default, show_default=bool(default),
                               multiple=option.repeatable)(command)
    return command
