"""The command discover: probe the capabilities of an implementation."""

from pathlib import Path
from typing import Any

import click

from ddp_invariants.cases.case import LARGEST_WORLD_SIZE
from ddp_invariants.cli.options import naming, placing
from ddp_invariants.cli.output import print_json, with_json
from ddp_invariants.cli.pool import joined, ranks
from ddp_invariants.discovery import probe
from ddp_invariants.implementation.spec import named
from ddp_invariants.processes.backends import BackendName, DeviceName
from ddp_invariants.report import machine, terminal


@click.command(short_help="Probe the capabilities of an implementation.")
@naming
@placing
@click.option(
    "--max-world-size",
    type=click.IntRange(1, LARGEST_WORLD_SIZE),
    default=4,
    show_default=True,
    help="largest number of ranks of a probe",
)
@click.option(
    "--deviations",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="file of expected deviations, in addition to the shipped ones",
)
@click.option(
    "--pin",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="write the declarations found to this TOML file, for --declare",
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
    as_json: bool,
    **options: Any,
) -> None:
    """Probe an implementation: each capability is right, refused, silently wrong or not offered.

    Under torchrun or srun the job's processes are the ranks.
    """
    with joined(context):
        ddp, sampler = named(options)
        with ranks(backend, device, max_world_size) as pool:
            discovered = probe.discover(pool, ddp, sampler, max_world_size, deviations)
        if pin is not None:
            pin.write_text(terminal.declarations(*discovered.pinned()), encoding="utf-8")
        if as_json:
            print_json(machine.discovery(discovered))
            return
        click.echo(
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
