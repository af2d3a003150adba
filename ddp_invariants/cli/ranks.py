"""The ranks of a command: this machine's own, or those of the job that a launcher started it in."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import click

from ddp_invariants import backends, cluster
from ddp_invariants.backends import Backend, Device
from ddp_invariants.limits import CaseError
from ddp_invariants.ranks.hosts import Hosts
from ddp_invariants.ranks.pool import Pool
from ddp_invariants.status import INCONCLUSIVE


@contextmanager
def joined(context: click.Context) -> Iterator[Hosts | cluster.Cluster]:
    """The hosts of a command's ranks. In a job, every process but rank 0 serves it here, and ends with its exit status."""
    status = cluster.enter()
    if status is not None:
        context.exit(status)
    status = INCONCLUSIVE
    try:
        with closing(cluster.led() or Hosts()) as hosts:
            yield hosts
        status = 0
    except click.exceptions.Exit as ended:
        status = ended.exit_code
        raise
    finally:
        cluster.leave(status)


@contextmanager
def ranks(hosts: Hosts | cluster.Cluster, backend: Backend, device: Device | None, least: int = 1) -> Iterator[Pool]:
    """Ranks over a backend, on a device.

    Args:
        hosts: Of the ranks.
        backend: As the options name it.
        device: Likewise.
        least: How many there must be.

    Raises:
        CaseError: There are not; or they cannot be had over that backend, or on that device.
    """
    way, ours = backends.wanted(backend, device), cluster.led()
    with Pool(hosts.addresses, way=way) as pool:
        sights = pool.sights(1 if ours is None else ours.job.world_size)
        why = backends.not_run(way, sights[0])
        most, bounded = backends.bound(way, sights) or (least, "")
        if ours is not None and ours.job.world_size < min(most, least):
            most, bounded = ours.job.world_size, f"the job has {ours.job.world_size} ranks"
        if why or most < least:
            raise CaseError(f"--backend {way.backend}: not run: " + (why or f"it takes {least} ranks; {bounded}"))
        yield pool
