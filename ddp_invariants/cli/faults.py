"""The judge, measured: faults."""

import os

import click

from ddp_invariants.cli.options import placing
from ddp_invariants.cli.output import print_json, with_json
from ddp_invariants.cli.pool import ranks
from ddp_invariants.errors import INCONCLUSIVE, INTERRUPTED, UNUSABLE_INPUT, unusable
from ddp_invariants.processes.backends import BackendName, DeviceName, wanted
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.report import machine, terminal


@click.command(short_help="Measure the judge on planted faults and controls.")
@click.option(
    "--only",
    metavar="NAME",
    multiple=True,
    help="a fault, a control, a module of them or a rule; may be repeated",
)
@click.option(
    "--seeds", type=click.IntRange(1), default=1, show_default=True, help="searches for each fault"
)
@click.option(
    "--control-cases",
    type=click.IntRange(0),
    default=2000,
    show_default=True,
    help="cases of all controls together",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    show_default="one per core",
    help="processes that search",
)
@placing
@with_json
@click.pass_context
def faults(
    context: click.Context,
    /,
    only: tuple[str, ...],
    seeds: int,
    control_cases: int,
    workers: int,
    *,
    backend: BackendName,
    device: DeviceName | None,
    as_json: bool,
) -> None:
    """Measure the judge: search for every planted fault, by all rules at once, and judge controls, which none may accuse.

    What is wrong on a device alone is searched for where --backend has tensors there, and named as
    not run elsewhere.

    Exit status 0 where all faults are caught, none with a wrong cause, and no control is accused;
    else 1; 2 where nothing was run. An interrupt prints what was found until then.
    """
    # Imported here: they import Hypothesis and rich, which the other commands do without.
    from rich.console import Console
    from rich.progress import Progress

    from ddp_invariants.errors import CatalogueError
    from ddp_invariants.proof import measure
    from ddp_invariants.proof.catalogue import chosen
    from ddp_invariants.proof.detection import Detection, totals

    found: list[Detection] = []
    jobs: list[measure.Job] = []
    beyond: list[str] = []
    screen = Console(stderr=True)
    try:
        entries, resolved = chosen(only), wanted(backend, device)
        beyond = [one.name for one in entries if one.needs_device and resolved.device == "cpu"]
        jobs = measure.jobs(
            [one for one in entries if one.name not in beyond], seeds, control_cases
        )
        if resolved.device != "cpu":
            with ranks(backend, device, measure.MAX_WORLD_SIZE):
                pass  # They can be had.
        with Hosts() as hosts, Progress(console=screen, disable=not screen.is_terminal) as progress:
            searches = measure.measure(hosts.addresses, jobs, workers, resolved)
            for one in progress.track(searches, len(jobs), description="searching"):
                found.append(one)
                if not screen.is_terminal:
                    click.echo(f"{len(found)}/{len(jobs)} {terminal.searched(one)}", err=True)
    except (*UNUSABLE_INPUT, CatalogueError) as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(unusable(error))
    except KeyboardInterrupt:
        click.echo(
            f"ddp-invariants: interrupted after {len(found)} of {len(jobs)} searches", err=True
        )
    if as_json:
        print_json(machine.detected(found))
    else:
        click.echo(terminal.detections(found))
    if beyond:
        click.echo(
            f"not run: {', '.join(beyond)}: wrong on a device alone, and the tensors are on the CPU",
            err=True,
        )
        if not jobs:
            context.exit(INCONCLUSIVE)
    total = totals(found)
    if len(found) < len(jobs):
        context.exit(INTERRUPTED)
    context.exit(int(total.caught < total.searches or total.wrong > 0 or total.accused > 0))
