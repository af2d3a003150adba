"""The ranks of a command: this machine's own, or the processes of the job it was started in."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import click

from ddp_invariants.errors import INCONCLUSIVE, UNUSABLE_INPUT, CaseError, unusable
from ddp_invariants.processes import backends, job
from ddp_invariants.processes.backends import BackendName, DeviceName
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import DEADLINE, Pool


@contextmanager
def joined(context: click.Context) -> Iterator[None]:
    """Run a command as a part of its job, if it is in one.

    Every process except rank 0 serves here, and ends with rank 0's status. A usage error ends the
    command with one sentence.
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
def ranks(
    backend: BackendName,
    device: DeviceName | None,
    least: int,
    deadline: float = DEADLINE,
    module: str = "",
) -> Iterator[Pool]:
    """Start ranks over a backend, on a device.

    Args:
        backend: As the options name it.
        device: Likewise.
        least: The number of ranks that the command needs.
        deadline: Seconds that a case may idle.
        module: A module that the ranks will import; empty for none. See `Hosts`.

    Raises:
        CaseError: There are too few ranks; or the backend or the device is not available.
        HarnessError: The harness failed.
    """
    resolved, job_ranks = backends.wanted(backend, device), job.led()
    module = module if resolved.device == "cpu" else ""
    with (
        closing(job_ranks or Hosts(module=module)) as hosts,
        Pool(hosts.addresses, deadline, resolved) as pool,
    ):
        device_infos = pool.device_infos(1 if job_ranks is None else job_ranks.job.world_size)
        reason = backends.not_run(resolved, device_infos)
        most, bounded = backends.bound(resolved, device_infos) or (least, "")
        if job_ranks is not None and job_ranks.job.world_size < min(most, least):
            most, bounded = job_ranks.job.world_size, f"the job has {job_ranks.job.world_size}"
        if reason or most < least:
            raise CaseError(f"not run: {reason or f'this command needs {least} ranks; {bounded}'}")
        yield pool
