"""Ranks in other processes of a job, on this machine or another: the end that asks for them.

The other end is `serving.py`. Every connection begins with the token of the process that it goes
to. After that it serves one purpose. `session` lives as long as rank 0 does. `host` starts ranks
and asks about them. `rank` carries a rank's requests and answers. Frames are as everywhere
(wire.py): JSON and raw bits.
"""

import contextlib
import json
import socket
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from ddp_invariants.errors import HarnessError, WireError
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes import wire
from ddp_invariants.processes.hosts import PATIENCE, STARTING
from ddp_invariants.processes.process import HostClient
from ddp_invariants.processes.threads import Look
from ddp_invariants.records.trace import Call, LastCalls

REACHING = 5.0
"""Seconds that connecting may take."""
_LOST = 60
"""Seconds after which a connection that lets nothing through is given up."""


@dataclass(frozen=True)
class HostAddress:
    """The address at which a process of a job serves ranks.

    Attributes:
        rank: Its rank in the job.
        node: The identity of its machine within the job.
        name: The machine's name.
        address: The machine's address.
        port: The port it listens at.
        token: The token that a client must show first.
        suite: The versions of this package and of torch there.
    """

    rank: int
    node: str
    name: str
    address: str
    port: int
    token: str
    suite: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.name} ({self.address})"

    def to_text(self) -> str:
        """Return the address as text, for pools to use as a host's address."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read an address from the text of `to_text`."""
        return cls(**json.loads(text))


def steady(connection: socket.socket) -> socket.socket:
    """Make a TCP connection send at once, and fail within a minute if nothing gets through."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (
        (socket.TCP_KEEPIDLE, _LOST // 6),
        (socket.TCP_KEEPINTVL, _LOST // 6),
        (socket.TCP_KEEPCNT, 5),
        (socket.TCP_USER_TIMEOUT, 1000 * _LOST),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, seconds)
    return connection


def connect(address: HostAddress, purpose: str, **more: Any) -> socket.socket:
    """Connect for one purpose.

    Raises:
        HarnessError: Nobody is there, or the token is wrong.
    """
    try:
        connection = steady(socket.create_connection((address.address, address.port), REACHING))
    except OSError as error:
        raise HarnessError(
            f"cannot reach {address} ({error}): its process, its machine or the link to it is gone"
        ) from error
    try:
        connection.settimeout(PATIENCE)
        wire.send(connection, {"token": address.token, "for": purpose, **more})
        if wire.receive(connection) is None:
            raise WireError("it closed the connection")
    except (OSError, WireError) as error:
        connection.close()
        raise HarnessError(f"{address} refused the connection ({error})") from error
    return connection


def connected(address: str) -> "HostClient | RemoteHost":
    """Return the host at an address (`Hosts.addresses`, or an address as text)."""
    return (
        RemoteHost(HostAddress.from_text(address))
        if address.startswith("{")
        else HostClient(address)
    )


class RemoteHost:
    """One pool's connection to another process of the job.

    A lost connection is made anew, since a link may come back.

    Attributes:
        node: The host's machine.
        patience: Seconds an answer about a rank may take, beyond the time that the request itself
            takes.
    """

    def __init__(self, address: HostAddress) -> None:
        self.address, self.node, self.patience = address, address.node, PATIENCE
        self._connection: socket.socket | None = None

    def start(self, rank: int) -> "RemoteProcess":
        """Start a new rank.

        Raises:
            HarnessError: No rank could be started.
        """
        self._open()
        pid = self.ask(STARTING, do="start", rank=rank)["pid"]
        return RemoteProcess(self, pid, connect(self.address, "rank", pid=pid))

    def own_address(self) -> str:
        """Return this machine's address, as the other process reaches it.

        Raises:
            HarnessError: Nobody is there.
        """
        address: str = self._open().getsockname()[0]
        return address

    def ask(self, seconds: float = 0.0, **request: Any) -> dict[str, Any]:
        """Return the answer to a request that takes at most so many seconds.

        Raises:
            HarnessError: There is no answer; or the connection was lost before, and with it the
                ranks that were started over it.
        """
        connection = self._connection
        if connection is None:
            raise HarnessError(f"the connection to {self.address} was lost")
        try:
            connection.settimeout(seconds + self.patience)
            wire.send(connection, request)
            answer = wire.receive(connection)
        except (OSError, WireError) as error:
            self.close()
            raise HarnessError(
                f"{self.address} gives no answer ({error}): its process, its machine or the link "
                "to it is gone"
            ) from error
        if answer is None:
            self.close()
            raise HarnessError(f"{self.address} is gone: its process has ended")
        if "failed" in answer[0]:
            raise HarnessError(f"{self.address}: {answer[0]['failed']}")
        return answer[0]

    def close(self) -> None:
        """Disconnect; the other end kills all ranks that are left."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> socket.socket:
        if self._connection is None:
            self._connection = connect(self.address, "host")
        return self._connection


@dataclass
class RemoteProcess:
    """One rank in another process of the job: like `process.Process`, but over the network.

    The other end reads the printed output.
    """

    host: RemoteHost
    pid: int
    control: socket.socket
    output: None = None
    ended: bool = True
    loaded: set[Ddp | Sampler] = field(default_factory=set)
    altered_by: Ddp | Sampler | None = None

    def forget_output(self) -> None:
        """Do nothing: the other end forgets old output with each request."""

    def drain(self) -> bool:
        """Read nothing: the output is at the other end."""
        return False

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        self.host.ask(do="signal", pid=self.pid, number=number)

    def status(self, patience: float) -> int | None:
        """Return how the process ended, or None if it did not end within `patience` seconds."""
        status: int | None = self.host.ask(patience, do="status", pid=self.pid, within=patience)[
            "status"
        ]
        return status

    def printed(self) -> str:
        """Return the process's stacks and the end of its printed output."""
        text: str = self.host.ask(do="printed", pid=self.pid)["text"]
        return text

    def native_waits(self) -> str:
        """Return where its native threads wait."""
        text: str = self.host.ask(do="native_waits", pid=self.pid)["text"]
        return text

    def look(self) -> Look | None:
        """Return None: the deadline alone ends a rank of another machine."""
        return None

    def waits_for_ever(self, until: float, *, answered: bool) -> bool:
        """Return False, as nobody looks."""
        del until, answered
        return False

    def issued(self, case: int) -> int:
        """Return 0, as nobody looks."""
        del case
        return 0

    def last_calls(self, case: int) -> LastCalls | None:
        """Return the collectives that the process is known to have issued in a case."""
        answer = self.host.ask(do="last_calls", pid=self.pid, case=case)["calls"]
        if answer is None:
            return None
        issued, waiting, calls = answer
        return LastCalls(
            issued, waiting, tuple((number, group, Call(*call)) for number, group, call in calls)
        )

    def retire(self) -> int | None:
        """End the process for good, and return its exit status if it had ended by itself.

        The status is None if it is not known.
        """
        self.control.close()
        with contextlib.suppress(HarnessError):  # Lost: the other end ends it when it notices.
            status: int | None = self.host.ask(PATIENCE, do="end", pid=self.pid)["status"]
            return status
        return None
