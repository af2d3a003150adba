"""The ranks of a command: this machine's own, or those of the job that a launcher started it in."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import click

from ddp_invariants.errors import INCONCLUSIVE, UNUSABLE_INPUT, CaseError, unusable
from ddp_invariants.processes import backends, job
from ddp_invariants.processes.backends import BackendName, DeviceName
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool


@contextmanager
def joined(context: click.Context) -> Iterator[None]:
    """A command as a part of the job it is in, if it is: every process but rank 0 serves here, and ends as rank 0 does.

    What cannot be done for a reason of the user's ends the command with one sentence.
    """
    status = job.enter()
    if status is not None:
        context.exit(status)
    status = INCONCLUSIVE
    try:
        yield
        status = 0
    except click.exceptions.Exit as ended:
        status = ended.exit_code
        raise
    except UNUSABLE_INPUT as error:
        status = unusable(error)
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(status)
    finally:
        job.leave(status)


@contextmanager
def ranks(backend: BackendName, device: DeviceName | None, least: int) -> Iterator[Pool]:
    """Ranks over a backend, on a device.

    Args:
        backend: As the options name it.
        device: Likewise.
        least: How many there must be.

    Raises:
        CaseError: There are not so many; or they cannot be had over that backend, or on that
            device.
        HarnessError: The harness failed.
    """
    resolved, ours = backends.wanted(backend, device), job.led()
    with closing(ours or Hosts()) as where, Pool(where.addresses, backend=resolved) as pool:
        device_infos = pool.device_infos(1 if ours is None else ours.job.world_size)
        why = backends.not_run(resolved, device_infos[0])
        most, bounded = backends.bound(resolved, device_infos) or (least, "")
        if ours is not None and ours.job.world_size < min(most, least):
            most, bounded = ours.job.world_size, f"the job has {ours.job.world_size}"
        if why or most < least:
            raise CaseError(f"not run: {why or f'it takes {least} ranks; {bounded}'}")
        yield pool
