"""The command discover: probe the capabilities of an implementation."""

from pathlib import Path
from typing import Any

import click

from ddp_invariants.cli.options import NewFile, Whole, limiting, naming, placing
from ddp_invariants.cli.output import counting, print_json, print_report, with_json
from ddp_invariants.cli.pool import joined, ranks
from ddp_invariants.cli.statuses import exit_statuses
from ddp_invariants.discovery import probe
from ddp_invariants.discovery.deviations import read
from ddp_invariants.errors import INCONCLUSIVE, VIOLATED
from ddp_invariants.implementation.names import shipped_module
from ddp_invariants.implementation.spec import defaulting, named
from ddp_invariants.processes.backends import BackendName, DeviceName
from ddp_invariants.report import machine, terminal
from ddp_invariants.session import option_texts, option_values


@click.command(
    short_help="List what an implementation can do, and what it gets wrong.",
    epilog=exit_statuses(
        "the capabilities are listed",
        "the plain case that comes first is wrong, hangs or dies, and nothing was probed if it breaks "
        "a rule of the core",
        "inconclusive: the plain case is refused, or the suite itself failed",
    ),
)
@naming
@placing
@limiting
@click.option(
    "--max-world-size",
    type=Whole(option_values.WORLD_SIZE),
    default=4,
    metavar="W",
    help=defaulting(option_texts.MAX_WORLD_SIZE, 4),
)
@click.option(
    "--deviations",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help=option_texts.DEVIATIONS,
)
@click.option(
    "--pin",
    type=NewFile(),
    default=None,
    metavar="FILE",
    help=defaulting(
        "write the result as declarations to this TOML file, for certify --declare",
        "none is written",
    ),
)
@with_json
@click.pass_context
def discover(
    context: click.Context,
    /,
    max_world_size: int,
    deviations: tuple[Path, ...],
    pin: Path | None,
    *,
    backend: BackendName,
    device: DeviceName | None,
    deadline: int,
    as_json: bool,
    **options: Any,
) -> None:
    """List what an implementation can do, and what it gets wrong.

    The command runs one small case for each capability, such as gradient accumulation or sparse
    gradients. A capability is right, refused (it raises), wrong or not offered. Under torchrun
    or srun the processes of the job are the ranks.
    """
    with joined(context):
        ddp, sampler = named(options)
        for path in deviations:  # Read before any rank starts; the probes read them again.
            read(path)
        with (
            ranks(
                backend,
                device,
                max_world_size,
                deadline,
                shipped_module(ddp.name, sampler.name),
            ) as pool,
            counting("probing, small cases run", lambda: pool.processes.requests),
        ):
            discovered = probe.discover(pool, ddp, sampler, max_world_size, deviations)
        if pin is not None:
            pin.write_text(terminal.declarations(*discovered.pinned()), encoding="utf-8")
        failed = discovered.plain_failure
        status = 0 if failed is None else INCONCLUSIVE if failed.refused else VIOLATED
        if as_json:
            print_json(machine.discovery(discovered))
            context.exit(status)
        print_report(
            "\n".join(
                [
                    *terminal.under_test(discovered, verbose=True),
                    terminal.capabilities(discovered),
                    *discovered.stale(),
                ]
            )
        )
        if pin is not None:
            click.echo(terminal.effect_of_pin(discovered, pin))
        context.exit(status)
