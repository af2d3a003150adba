"""Searches for failures, side by side, as the commands faults and mutate make them."""

import os
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddp_invariants.cli.options import Whole
from ddp_invariants.implementation.spec import defaulting
from ddp_invariants.processes.backends import Backend
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.report import detections as report
from ddp_invariants.session import option_values

if TYPE_CHECKING:
    from ddp_invariants.proof.detection import Detection
    from ddp_invariants.proof.measure import FaultSearch
    from ddp_invariants.proof.results import Results

with_workers = click.option(
    "--workers",
    type=Whole(option_values.COUNT),
    default=os.cpu_count() or 1,
    metavar="N",
    help=defaulting("number of processes that search side by side", "one per core"),
)
"""The option that gives the number of processes."""

with_resume = click.option(
    "--resume",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=defaulting(
        "a file that keeps each result as its search ends; the same command makes only the searches "
        "that the file lacks",
        "no results are kept",
    ),
)
"""The option that names a file of results."""


def search(
    jobs: "Sequence[FaultSearch]",
    workers: int,
    backend: Backend,
    detections: "list[Detection]",
    results: "Results | None" = None,
    cluster: str = "",
) -> None:
    """Run the searches, and show the progress.

    Args:
        jobs: The searches.
        workers: The number of processes that search.
        backend: The backend of the ranks.
        detections: Receives each result as its search ends: an interrupt loses none.
        results: The file of results, which keeps each of them, too. Searches whose results it has
            are not made again.
        cluster: The address of a Dask cluster that makes the searches; empty for processes here.

    Raises:
        LoadFailure: The cluster cannot make searches.
        HarnessError: The harness failed.
    """
    # Imported here: they import Hypothesis, which the other commands do not need.
    from rich.console import Console
    from rich.progress import Progress

    whole = len(jobs)
    if results is not None:
        detections += results.known(jobs)
        jobs = [job for job in jobs if job not in results]
    if not jobs:
        return
    screen = Console(stderr=True)
    with (
        closing(_made(jobs, workers, backend, cluster)) as searches,
        Progress(console=screen, disable=not screen.is_terminal) as progress,
    ):
        for entry in progress.track(searches, len(jobs), description="searching"):
            detections.append(entry)
            if results is not None:
                results.keep(entry)
            if not screen.is_terminal:
                click.echo(f"{len(detections)}/{whole} {report.line(entry)}", err=True)


def _made(
    jobs: "Sequence[FaultSearch]", workers: int, backend: Backend, address: str
) -> "Generator[Detection]":
    """Yield the result of each search as it ends, from this machine or from a cluster."""
    # Imported here, as above.
    from ddp_invariants.proof import cluster, measure

    if address:
        yield from cluster.measure(address, jobs, backend)
        return
    with Hosts() as hosts:
        yield from measure.measure(hosts.addresses, jobs, workers, backend)


def say_interrupted(jobs: "Sequence[FaultSearch]", detections: "list[Detection]") -> None:
    """Print how many searches ended before an interrupt."""
    click.echo(
        f"ddp-invariants: interrupted after {len(detections)} of {len(jobs)} searches", err=True
    )
