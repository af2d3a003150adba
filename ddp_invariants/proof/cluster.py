"""Searches that the workers of a running Dask cluster make; this process collects the results.

If a worker is lost, the scheduler has another one make its searches again. Each result arrives
once.
"""

import threading
import warnings
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ddp_invariants import __version__
from ddp_invariants.errors import HarnessError, LoadFailure
from ddp_invariants.processes.backends import Backend
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.proof.detection import Detection
from ddp_invariants.proof.measure import FaultSearch, Searcher

CONNECTING = 10
"""Seconds that the scheduler may take to answer."""
NEEDED = "Dask is not installed here; install it with: pip install 'ddp-invariants[cluster]'"
"""The sentence for a user who asks for a cluster without the library."""


def measure(address: str, searches: Iterable[FaultSearch], backend: Backend) -> Iterator[Detection]:
    """Have the workers of a cluster make searches, and yield each result as its search ends.

    Args:
        address: The address of the cluster's scheduler, such as `tcp://10.0.0.1:8786`.
        searches: The searches. Files that they name must be at the same paths on each worker.
        backend: The backend over which ranks communicate, and the device of their tensors.

    Raises:
        LoadFailure: Dask is missing, no scheduler answers, it has no workers, or a worker has
            another version of this suite or of torch.
        HarnessError: A search failed.
    """
    distributed = _library()
    try:
        client = distributed.Client(address, timeout=CONNECTING, set_as_default=False)
    except (OSError, ValueError) as error:
        raise LoadFailure(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        if not client.scheduler_info()["workers"]:
            raise LoadFailure(f"the Dask cluster at {address} has no workers: start one first")
        versions = _versions()
        jobs = {client.submit(_search, job, backend, versions, pure=False): job for job in searches}
        try:
            for done in distributed.as_completed(jobs, loop=client.loop):
                yield _result(done, jobs[done], distributed.scheduler.KilledWorker)
        finally:
            client.cancel(list(jobs))
            client.run(_close, on_error="ignore")  # A worker may be lost meanwhile.


def _library() -> Any:
    try:
        # Imported here: it is an optional dependency.
        import distributed
    except ImportError:
        raise LoadFailure(NEEDED) from None
    return distributed


def _result(done: Any, job: FaultSearch, killed: type[Exception]) -> Detection:
    """Return the result of a search; one that its workers did not survive has found nothing.

    Raises:
        LoadFailure: The worker has other versions.
        HarnessError: The search failed.
    """
    error = done.exception()
    if isinstance(error, killed):
        return Detection(
            job.planted, job.seed, 0, reason=f"each worker that tried it died: {error}"
        )
    if isinstance(error, LoadFailure | HarnessError):
        raise error
    if error is not None:
        raise HarnessError(f"a worker failed: {type(error).__name__}: {error}")
    found: Detection = done.result()
    return found


def _versions() -> tuple[str, str]:
    """Return the versions of this suite and of torch, on which results depend."""
    return __version__, version("torch")


class _Worker:
    """The state of a process of the cluster that makes searches: its hosts, and its ranks."""

    def __init__(self, backend: Backend) -> None:
        self._folder, self._hosts = TemporaryDirectory(), Hosts()
        self.search = Searcher(self._hosts.addresses, backend, Path(self._folder.name))

    def close(self) -> None:
        """End the ranks and the hosts."""
        self.search.pool.close()
        self._hosts.close()
        self._folder.cleanup()


_workers: dict[Backend, _Worker] = {}
_alone = threading.Lock()
"""A worker may have several threads, but ranks make one search at a time."""


def _search(job: FaultSearch, backend: Backend, versions: tuple[str, str]) -> Detection:
    """Make a search; a worker does so.

    Raises:
        LoadFailure: This worker has other versions.
    """
    if _versions() != versions:
        own, theirs = (" and torch ".join(each) for each in (_versions(), versions))
        raise LoadFailure(f"a worker has ddp-invariants {own}, and this process has {theirs}")
    with _alone, warnings.catch_warnings():
        # Dask's own thread uses `random` meanwhile. No draw depends on it.
        warnings.filterwarnings("ignore", "Do not use the `random` module", FutureWarning)
        if backend not in _workers:
            _workers[backend] = _Worker(backend)
        return _workers[backend].search(job)


def _close() -> None:
    """End what the searches of this process have started; a worker does so."""
    while _workers:
        _workers.popitem()[1].close()
