"""The command faults: measure the judge."""

import os
from typing import TYPE_CHECKING

import click

from ddp_invariants.cli.options import placing
from ddp_invariants.cli.output import print_json, with_json
from ddp_invariants.cli.pool import ranks
from ddp_invariants.errors import INCONCLUSIVE, INTERRUPTED, UNUSABLE_INPUT, unusable
from ddp_invariants.processes.backends import Backend, BackendName, DeviceName, wanted
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.report import detections as report
from ddp_invariants.report import machine

if TYPE_CHECKING:
    from ddp_invariants.proof.detection import Detection
    from ddp_invariants.proof.measure import FaultSearch


@click.command(short_help="Measure the judge on planted faults and controls.")
@click.option(
    "--only",
    metavar="NAME",
    multiple=True,
    help="a fault, a control, a module of faults, or a rule; repeatable",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="number of searches for each fault",
)
@click.option(
    "--control-cases",
    type=click.IntRange(0),
    default=2000,
    show_default=True,
    help="number of cases for all controls together",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    show_default="one per core",
    help="number of processes that search",
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
    """Measure the judge on planted faults, which it must find, and on correct controls.

    No control may fail. Every planted fault is searched
    for by all rules at once. A fault that exists only on a device is searched for if --backend puts
    the tensors there, and is otherwise named as not run.

    Exit status 0 if all faults are caught, none with a wrong cause, and no control fails; else
    1; 2 if nothing was run. An interrupt prints the results so far.
    """
    # Imported here: they import Hypothesis, which the other commands do not need.
    from ddp_invariants.errors import CatalogueError
    from ddp_invariants.proof import measure
    from ddp_invariants.proof.catalogue import select
    from ddp_invariants.proof.detection import Detection

    detections: list[Detection] = []
    jobs: list[measure.FaultSearch] = []
    beyond: list[str] = []
    try:
        entries, resolved = select(only), wanted(backend, device)
        beyond = [
            entry.name for entry in entries if entry.needs_device and resolved.device == "cpu"
        ]
        jobs = measure.searches(
            [entry for entry in entries if entry.name not in beyond], seeds, control_cases
        )
        if resolved.device != "cpu":
            with ranks(backend, device, measure.MAX_WORLD_SIZE):
                pass  # Only to check that they can be had.
        _search(jobs, workers, resolved, detections)
    except (*UNUSABLE_INPUT, CatalogueError) as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(unusable(error))
    except KeyboardInterrupt:
        click.echo(
            f"ddp-invariants: interrupted after {len(detections)} of {len(jobs)} searches", err=True
        )
    if as_json:
        print_json(machine.detections(detections))
    else:
        click.echo(report.table(detections))
    if beyond:
        click.echo(
            f"not run: {', '.join(beyond)}: these faults show only on a device, and the tensors "
            "are on the CPU",
            err=True,
        )
    context.exit(_status(detections, len(jobs), not_run=bool(beyond)))


def _search(
    jobs: "list[FaultSearch]", workers: int, backend: Backend, detections: "list[Detection]"
) -> None:
    """Run the searches, and show the progress.

    Args:
        jobs: The searches.
        workers: The number of processes that search.
        backend: The backend of the ranks.
        detections: Receives each result as its search ends: an interrupt loses none.
    """
    # Imported here, as above.
    from rich.console import Console
    from rich.progress import Progress

    from ddp_invariants.proof import measure

    screen = Console(stderr=True)
    with Hosts() as hosts, Progress(console=screen, disable=not screen.is_terminal) as progress:
        searches = measure.measure(hosts.addresses, jobs, workers, backend)
        for entry in progress.track(searches, len(jobs), description="searching"):
            detections.append(entry)
            if not screen.is_terminal:
                click.echo(f"{len(detections)}/{len(jobs)} {report.line(entry)}", err=True)


def _status(detections: "list[Detection]", searches: int, *, not_run: bool) -> int:
    """Return the exit status.

    Args:
        detections: The results.
        searches: The number of searches.
        not_run: True if a fault was not searched for.
    """
    from ddp_invariants.proof.detection import totals

    if not_run and searches == 0:
        return INCONCLUSIVE
    if len(detections) < searches:
        return INTERRUPTED
    total = totals(detections)
    return int(total.caught < total.searches or total.wrong > 0 or total.false_violations > 0)
