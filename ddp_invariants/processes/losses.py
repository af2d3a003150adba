"""Runs that leave no evidence: their host ended, or the implementation altered the harness.

[Note: lost hosts] A host ends all its ranks when it is killed, those of other pools included. The
main process starts it anew (`Hosts`), and each pool repeats the case that it was running. Only one
pool repeats a case at a time. So a host that is lost again convicts that case: the implementation
is told to have ended a rank, and the usual confirmations follow.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.errors import AlteredHarness, HostLost
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.records.evidence import (
    Incident,
    RaisedError,
    RankEvidence,
    ShardEvidence,
    TrainingEvidence,
)

_Result = TypeVar("_Result")
_LOCK = "ddp-invariants-repeats-"
"""The start of the name of the abstract socket that the pool holds that repeats a case."""
_PAUSE = 0.3
"""Seconds after which the session has noticed that a host ended, if it will not start it anew."""
_WAITING = 60.0
"""Seconds that a pool waits for other pools to repeat their cases."""
ENDED = (
    "ended with its host, the process that forks the ranks "
    "(does the implementation kill its parent process or all processes of a group?)"
)
"""The end of a rank whose host was lost."""


class Losses:
    """A pool's account of the implementations that ended their host.

    Such an implementation is not given a second run again, since a new host takes seconds to start.
    """

    def __init__(self) -> None:
        self._convicted: set[Ddp | Sampler] = set()

    def run(
        self,
        implementation: Ddp | Sampler,
        action: Callable[[], _Result],
        *,
        lost: Callable[[str], _Result],
        altered: Callable[[str], _Result],
    ) -> _Result:
        """Return the result of an action on ranks; repeat it once if a host is lost.

        Args:
            implementation: The implementation that the ranks run.
            action: The action. It starts the ranks that it needs.
            lost: A function that returns the result if the implementation ends its host.
            altered: A function that returns the result if the implementation alters the harness.
        """
        try:
            return self._run(implementation, action)
        except HostLost:
            self._convicted.add(implementation)
            return lost(ENDED)
        except AlteredHarness as error:
            return altered(str(error))

    def _run(self, implementation: Ddp | Sampler, action: Callable[[], _Result]) -> _Result:
        if implementation in self._convicted:
            return action()
        try:
            return action()
        except HostLost as loss:
            with _alone(loss.address):
                return action()


@contextlib.contextmanager
def _alone(address: str) -> Iterator[None]:
    """Wait until no other pool of the session repeats a case on a host."""
    time.sleep(_PAUSE)
    until = time.monotonic() + _WAITING
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
        # The kernel frees the name when this process ends, however it ends.
        while time.monotonic() < until:
            try:
                lock.bind(f"\0{_LOCK}{address}")
                break
            except OSError:
                time.sleep(0.02)  # The kernel wakes nobody when a name becomes free.
        yield


def training(case: TrainingCase, raised: str = "", ended: str = "") -> TrainingEvidence:
    """Return the evidence of a training case that left none.

    Args:
        case: The case.
        raised: Why the evidence of all ranks does not count.
        ended: How the ranks ended.
    """
    ranks = case.members
    error = RaisedError("evidence", 0, AlteredHarness.__name__, raised, "") if raised else None
    return TrainingEvidence(
        case,
        tuple(RankEvidence({}, raised=error) for _ in ranks),
        _incident(ranks, ended) if ended else None,
    )


def shards(case: ShardCase, raised: str = "", ended: str = "") -> ShardEvidence:
    """Return the evidence of a sampler's case that left none; the arguments are as above."""
    error = RaisedError("evidence", 0, AlteredHarness.__name__, raised, "")._asdict()
    return ShardEvidence(
        case,
        ({"raised": error}, {"raised": error}) if raised else (),
        _incident(range(2), ended) if ended else None,
    )


def _incident(ranks: Iterable[int], ended: str) -> Incident:
    statuses = dict.fromkeys(ranks, None)
    return Incident("died", dict.fromkeys(ranks, ended), {}, 0.0, {}, statuses, costly=True)
