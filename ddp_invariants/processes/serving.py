"""The server that every process of a job except rank 0 runs: it keeps ranks for rank 0's pools.

It serves until rank 0 says that the session is over, or is gone. The other end is `remote.py`.
Single-threaded on purpose, like the host: each message is handled completely before the next one.
"""

import hmac
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from ddp_invariants.errors import HarnessError, WireError
from ddp_invariants.processes import wire
from ddp_invariants.processes.hosts import PATIENCE
from ddp_invariants.processes.process import HostClient, Process
from ddp_invariants.processes.remote import steady

ABANDONED = 2
"""Exit status if rank 0 went without a message: the session is inconclusive."""
COMING = 120.0
"""Seconds rank 0 may take to connect, once it knows the address."""
_LEAVING = 60.0
"""Seconds rank 0 may go on after it has said that it is over: it writes its results."""
_GRACE = 5.0
"""Seconds after an interrupt, in which rank 0, interrupted too, says that it is over."""
_GREETING = 4096
"""Largest first frame, in bytes: its sender has shown no token yet."""
_PIECE = 1 << 16


class _Terminated(BaseException):
    """SIGTERM was received."""


@dataclass
class _Newcomer:
    """A connection that has not shown the token yet."""

    since: float
    incoming: wire.Incoming = field(default_factory=lambda: wire.Incoming(_GREETING))


@dataclass
class _Pool:
    """One of rank 0's pools: its own connection to the host, and its ranks."""

    host: HostClient
    incoming: wire.Incoming = field(default_factory=wire.Incoming)
    ranks: dict[int, Process] = field(default_factory=dict)


@dataclass
class _Line:
    """The connection over which a pool asks one of its ranks."""

    rank: Process
    incoming: wire.Incoming = field(default_factory=wire.Incoming)


class Server:
    """The server of one process's ranks.

    Args:
        host: Address of the host that forks them.
        listener: The socket that rank 0's pools connect to.
        token: The token that they must show.
    """

    def __init__(self, host: str, listener: socket.socket, token: str) -> None:
        self._host, self._listener, self._token = host, listener, token
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._newcomers: dict[socket.socket, _Newcomer] = {}
        self._pools: dict[socket.socket, _Pool] = {}
        self._lines: dict[socket.socket, _Line] = {}
        self._session: socket.socket | None = None
        self._said = wire.Incoming()
        self._status: int | None = None
        self._over: int | None = None
        self._until = time.monotonic() + COMING

    def serve(self) -> int:
        """Serve until rank 0 is over or gone, and return the exit status.

        It is rank 0's own status if rank 0 sent one.
        """
        before = {
            number: signal.signal(number, act)
            for number, act in (
                (signal.SIGINT, self._interrupted),
                (signal.SIGTERM, self._terminated),
            )
        }
        try:
            while self._over is None:
                for key, _ in self._selector.select(
                    min(1.0, max(self._until - time.monotonic(), 0.0))
                ):
                    # Skip one that was dropped because of another connection's message.
                    if self._selector.get_map().get(key.fd) == key:
                        key.data(key.fileobj)
                self._look_at_the_clock()
        except _Terminated:
            self._over = 128 + signal.SIGTERM
        finally:
            for pool in list(self._pools):
                self._drop_pool(pool)
            for connection in [
                *self._newcomers,
                *self._lines,
                *([self._session] if self._session else []),
            ]:
                connection.close()
            self._selector.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._over

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for newcomer, state in list(self._newcomers.items()):
            if now - state.since > PATIENCE:
                self._turn_away(newcomer)
        if now >= self._until and self._over is None:
            if self._session is None:
                sys.stderr.write(f"ddp-invariants: rank 0 did not connect within {COMING:.0f} s\n")
            self._over = ABANDONED if self._status is None else self._status

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._until = min(self._until, time.monotonic() + _GRACE)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        raise _Terminated

    # New connections.

    def _accept(self, _: Any) -> None:
        connection, _address = self._listener.accept()
        steady(connection).settimeout(PATIENCE)
        self._newcomers[connection] = _Newcomer(time.monotonic())
        self._selector.register(connection, selectors.EVENT_READ, self._greeted)

    def _turn_away(self, connection: socket.socket) -> None:
        del self._newcomers[connection]
        self._selector.unregister(connection)
        connection.close()

    def _greeted(self, connection: socket.socket) -> None:
        try:
            frame = self._newcomers[connection].incoming.take(connection)
            if frame is None:
                return
            greeting = frame[0]
            if not hmac.compare_digest(str(greeting.get("token")).encode(), self._token.encode()):
                raise WireError("its token is wrong")
            serve = self._purpose(connection, greeting)
            wire.send(connection, {})
        except (OSError, WireError):
            self._pools.pop(connection, None)
            self._lines.pop(connection, None)
            self._turn_away(connection)
            return
        del self._newcomers[connection]
        self._selector.modify(connection, selectors.EVENT_READ, serve)

    def _purpose(self, connection: socket.socket, greeting: dict[str, Any]) -> Any:
        """Return the function that handles all later messages of a connection.

        Raises:
            wire.WireError: The purpose is unknown.
        """
        if greeting.get("for") == "session" and self._session is None:
            self._session, self._until = connection, float("inf")
            return self._hear_session
        if greeting.get("for") == "host":
            self._pools[connection] = _Pool(HostClient(self._host))
            return self._hear_pool
        rank = next(
            (
                pool.ranks[greeting["pid"]]
                for pool in self._pools.values()
                if greeting.get("pid") in pool.ranks
            ),
            None,
        )
        if (
            greeting.get("for") == "rank"
            and rank is not None
            and not any(line.rank is rank for line in self._lines.values())
        ):
            self._lines[connection] = _Line(rank)
            self._selector.register(
                rank.control, selectors.EVENT_READ, lambda _: self._hear_rank(connection)
            )
            self._selector.register(
                rank.output, selectors.EVENT_READ, lambda _: self._hear_output(rank)
            )
            return self._hear_request
        raise WireError("its purpose is unknown")

    # The session.

    def _hear_session(self, connection: socket.socket) -> None:
        try:
            frame = self._said.take(connection)
        except (OSError, WireError):
            if self._status is None:
                sys.stderr.write(
                    "ddp-invariants: rank 0 closed its connection without an exit status\n"
                )
            self._over = ABANDONED if self._status is None else self._status
            return
        if frame is not None:
            self._said = wire.Incoming()
            self._status, self._until = int(frame[0]["status"]), time.monotonic() + _LEAVING

    # A pool, and its questions about its ranks.

    def _hear_pool(self, connection: socket.socket) -> None:
        pool = self._pools[connection]
        try:
            frame = pool.incoming.take(connection)
            if frame is None:
                return
            pool.incoming = wire.Incoming()
            try:
                answer = self._answer(pool, frame[0])
            except HarnessError as error:
                answer = {"failed": str(error)}
            wire.send(connection, answer)
        except (OSError, WireError, KeyError):
            self._drop_pool(connection)

    def _answer(self, pool: _Pool, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "start":
            started = pool.host.start(request["rank"])
            started.control.settimeout(PATIENCE)
            pool.ranks[started.pid] = started
            return {"pid": started.pid}
        rank = pool.ranks[request["pid"]]
        if request["do"] == "signal":
            rank.signal(request["number"])
            return {}
        if request["do"] == "status":
            return {"status": rank.status(request["within"])}
        if request["do"] == "printed":
            return {"text": rank.printed()}
        if request["do"] == "native_waits":
            return {"text": rank.native_waits()}
        if request["do"] == "last_calls":
            return {"calls": rank.last_calls(request["case"])}
        return {"status": self._retire(pool, rank)}

    def _retire(self, pool: _Pool, rank: Process) -> int | None:
        del pool.ranks[rank.pid]
        for connection in [
            connection for connection, line in self._lines.items() if line.rank is rank
        ]:
            self._drop_line(connection)
        return rank.retire()

    def _drop_pool(self, connection: socket.socket) -> None:
        """Drop a pool that is gone, and end its ranks."""
        pool = self._pools.pop(connection)
        self._selector.unregister(connection)
        connection.close()
        for rank in list(pool.ranks.values()):
            self._retire(pool, rank)
        pool.host.close()

    # A rank's requests, answers and printed output.

    def _hear_request(self, connection: socket.socket) -> None:
        line = self._lines[connection]
        try:
            frame = line.incoming.take(connection)
            if frame is None:
                return
            line.incoming = wire.Incoming()
            line.rank.forget_output()
        except (OSError, WireError):
            self._drop_line(connection)
            return
        try:
            wire.send(line.rank.control, *frame)
        except OSError:
            self._hang_up(connection)

    def _hear_rank(self, connection: socket.socket) -> None:
        try:
            piece = self._lines[connection].rank.control.recv(_PIECE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        try:
            connection.sendall(piece)
        except OSError:
            self._drop_line(connection)
            return
        if not piece:
            self._hang_up(connection)

    def _hear_output(self, rank: Process) -> None:
        rank.drain()
        if rank.ended:
            self._selector.unregister(rank.output)

    def _hang_up(self, connection: socket.socket) -> None:
        """Handle a rank's end: the pool reads the last of its messages, and asks how it ended."""
        control = self._lines[connection].rank.control
        if control.fileno() in self._selector.get_map():
            self._selector.unregister(control)
        try:
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop_line(connection)

    def _drop_line(self, connection: socket.socket) -> None:
        line = self._lines.pop(connection)
        for source in (connection, line.rank.control, line.rank.output):
            if source in self._selector.get_map():
                self._selector.unregister(source)
        connection.close()
