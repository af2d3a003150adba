"""The options that say what is on trial, and where."""

from collections.abc import Callable
from typing import Any

import click

from ddp_invariants.implementation.spec import OPTIONS
from ddp_invariants.processes.backends import BACKENDS, DEVICES


def naming(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say what is on trial."""
    for name, option in reversed(OPTIONS.items()):
        default: Any = () if option.repeatable else option.default
        command = click.option(
            name,
            metavar=option.placeholder,
            help=option.told,
            default=default,
            show_default=bool(default),
            multiple=option.repeatable,
        )(command)
    return command


def placing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say over what ranks communicate, and where their tensors are."""
    device = click.option(
        "--device",
        type=click.Choice(DEVICES),
        help="where tensors are (default: what the backend needs)",
    )
    backend = click.option(
        "--backend",
        type=click.Choice(BACKENDS),
        default="auto",
        show_default=True,
        help="what ranks communicate over",
    )
    return backend(device(command))
