"""The command line: `ddp-invariants`, or `python -m ddp_invariants`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ddp_invariants import discovery, report
from ddp_invariants.case import LARGEST_WORLD_SIZE
from ddp_invariants.declarations import DeclarationError
from ddp_invariants.implementation import OPTIONS, NamingError, named
from ddp_invariants.ranks.hosts import HarnessError, Hosts
from ddp_invariants.ranks.pool import LoadFailure, Pool

UNUSABLE = 2
"""Exit status where nothing could be judged, as pytest's for an interrupted session."""


def naming(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say what is on trial."""
    for name, option in reversed(OPTIONS.items()):
        default: Any = () if option.repeatable else option.default
        command = click.option(name, metavar=option.placeholder, help=option.told, default=default, show_default=bool(default),
                               multiple=option.repeatable)(command)
    return command


@click.group()
@click.version_option(package_name="ddp-invariants")
def main() -> None:
    """Find out whether data-parallel training is right."""


@main.command()
@naming
@click.option("--max-world-size", type=click.IntRange(1, LARGEST_WORLD_SIZE), default=4, show_default=True,
              help="most ranks a probe may need")
@click.option("--pin", type=click.Path(dir_okay=False, path_type=Path), default=None,
              help="write the declarations found to this TOML file, for --declare")
@click.pass_context
def discover(context: click.Context, /, max_world_size: int, pin: Path | None, **options: Any) -> None:
    """Probe what an implementation takes: each capability right, refused, silently wrong or not offered."""
    try:
        ddp, sampler = named(options)
        with Hosts() as hosts, Pool(hosts.addresses) as pool:
            found = discovery.discover(pool, ddp, sampler, max_world_size)
        if pin is not None:
            pin.write_text(report.declarations(*found.pinned()), encoding="utf-8")
    except (LoadFailure, HarnessError, NamingError, DeclarationError, OSError) as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(UNUSABLE)
    click.echo("\n".join([*report.on_trial(found, verbose=True), report.capabilities(found)]))
    if pin is not None:
        click.echo(f"pinned in {pin}: a capability that changes will be told")
