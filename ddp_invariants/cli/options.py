"""The options that name the implementation under test, its backend and its device."""

from collections.abc import Callable
from typing import Any

import click

from ddp_invariants.implementation.spec import OPTIONS
from ddp_invariants.processes.backends import BACKENDS, DEVICES


def naming(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that name the implementation under test."""
    for name, option in reversed(OPTIONS.items()):
        default: Any = () if option.repeatable else option.default
        command = click.option(
            name,
            metavar=option.placeholder,
            help=option.help,
            default=default,
            show_default=bool(default),
            multiple=option.repeatable,
        )(command)
    return command


def placing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options for the backend and for the device of the tensors."""
    device = click.option(
        "--device",
        type=click.Choice(DEVICES),
        help="device of the tensors (default: the one that the backend needs)",
    )
    backend = click.option(
        "--backend",
        type=click.Choice(BACKENDS),
        default="auto",
        show_default=True,
        help="the backend over which ranks communicate",
    )
    return backend(device(command))
