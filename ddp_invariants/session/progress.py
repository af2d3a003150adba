"""The progress of a running session: workers send it to the main process, which shows it.

The last state that was sent also replaces the ledger of a worker that ends without one because it
was interrupted or killed.

[Note: authentic progress] Any process of this machine can find the address in /proc/net/unix, and
so can an implementation in a rank. Therefore each message is signed with a key of its worker. The
main process hands the key to the worker through xdist's own pipe. Ranks are forked from hosts,
which have never held a key.
"""

import contextlib
import hmac
import json
import os
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Collection, Mapping
from typing import Any, TextIO

from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.hosts import start_thread
from ddp_invariants.search.ledger import Ledger

EVERY = 0.5
"""Seconds between two messages of a worker: one takes a millisecond to send."""
PATIENCE = 2.0
"""Seconds that a worker waits to hand over the ledger of a property that has ended."""
LINE_EVERY = 20.0
"""Seconds between two lines if there is no terminal."""
_LARGEST = 1 << 20
"""Bytes of the largest message; the kernel's own limit is usually a fifth of that."""
_DIGEST = "sha256"
_SIGNATURE = 32
"""Bytes of a signature."""
_REFUSED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, zlib.error)
"""The errors of a message that is no ledger."""


class ProgressSender:
    """A worker's side: called after each case, it sends the ledger to the main process at times.

    Args:
        address: Of the main process's `Listener`.
        name: The worker's.
        key: The worker's key, from the `Listener`.
    """

    def __init__(self, address: str, name: str, key: str) -> None:
        self._name, self._key, self._sent_at = name, bytes.fromhex(key), 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):  # The main process is gone: nobody can receive messages.
            self._socket.connect("\0" + address)

    def __call__(self, ledger: Ledger) -> None:
        """Send a ledger, unless one was sent a moment ago.

        The worker does not wait for a slow receiver.
        """
        if time.monotonic() - self._sent_at >= EVERY:
            self.send(ledger, patience=0)

    def send(self, ledger: Ledger, patience: float = PATIENCE) -> None:
        """Send a ledger now.

        The main process may end the session at a violation, and then this message is all that it
        has from the worker.

        Args:
            ledger: The ledger.
            patience: The seconds that the worker waits for a slow receiver.
        """
        self._sent_at = time.monotonic()
        self._socket.settimeout(patience)
        with contextlib.suppress(OSError):
            self._socket.send(signed(self._key, self._name, json.dumps(ledger.to_plain()).encode()))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def signed(key: bytes, name: str, text: bytes) -> bytes:
    """Return a worker's message: the signature, the worker's name, and the compressed text."""
    signed_part = name.encode() + b"\n" + zlib.compress(text, 1)
    return hmac.digest(key, signed_part, _DIGEST) + signed_part


class Listener:
    """The main process's side: it holds the last ledger of each worker.

    It uses no file, so that none is left behind.

    Attributes:
        address: The address that workers send to.
    """

    def __init__(self) -> None:
        self.address = f"ddp-invariants-{os.getpid()}-live-{secrets.token_hex(8)}"
        self._secret = secrets.token_bytes(_SIGNATURE)
        self._ledgers: dict[str, Ledger] = {}
        self._closing = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + self.address)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        start_thread(self._thread)

    def key(self, name: str) -> str:
        """Return the key with which a worker signs its messages."""
        return hmac.digest(self._secret, name.encode(), _DIGEST).hex()

    def ledgers(self, without: Collection[str] = ()) -> dict[str, Ledger]:
        """Return the last ledger of each worker, except those in `without`."""
        return {name: ledger for name, ledger in list(self._ledgers.items()) if name not in without}

    def close(self) -> None:
        """Stop listening."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)
        self._thread.join(1.0)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                message, _, flags, _ = self._socket.recvmsg(_LARGEST)
            except OSError:
                return
            # The end of the socket reads as an empty message, but anybody can send one of those.
            if self._closing:
                return
            if not flags & socket.MSG_TRUNC:
                self._take(message)

    def _take(self, message: bytes) -> None:
        """Keep the ledger of a message; ignore a message that no worker of this session signed."""
        signature, signed_part = message[:_SIGNATURE], message[_SIGNATURE:]
        name, _, packed = signed_part.partition(b"\n")
        key = hmac.digest(self._secret, name, _DIGEST)
        if not hmac.compare_digest(signature, hmac.digest(key, signed_part, _DIGEST)):
            return
        # Read here, so that a broken message costs nobody else more than this message.
        with contextlib.suppress(*_REFUSED):
            self._ledgers[name.decode()] = Ledger.from_plain(json.loads(zlib.decompress(packed)))


class Progress:
    """The progress of a session in numbers.

    Args:
        cases: The cases per property, before the higher cost of some properties is applied.
    """

    def __init__(self, cases: int) -> None:
        self._cases, self._began = cases, time.monotonic()
        self.reported: dict[str, str] = {}
        self.planned: Collection[str] = tuple(ALL_RULES)
        self.other_results = 0

    def plan(self, rules: Collection[str]) -> None:
        """Take the rules whose properties are selected; none if they are not known."""
        if rules:
            self.planned = tuple(rule for rule in ALL_RULES if rule in rules)

    def report(self, rules: Collection[str], outcome: str) -> None:
        """Record the outcome of a test and the rules of its property.

        A test without rules is no property.
        """
        self.other_results += not rules
        self.reported.update(dict.fromkeys(rules, outcome))

    def seconds_left(self, judged: int) -> float:
        """Return an estimate of the seconds left; infinite before anything is judged.

        The estimate is rough: a property may take several times the requested number of cases.
        """
        planned = {rule: -(-self._cases // ALL_RULES[rule].costs) for rule in self.planned}
        done = sum(count for rule, count in planned.items() if rule in self.reported)
        passed = time.monotonic() - self._began
        return passed * (sum(planned.values()) - done) / done if done and judged else float("inf")

    def line(self, ledger: Ledger) -> str:
        """Return the whole progress in one line."""
        passed = time.monotonic() - self._began
        left = self.seconds_left(ledger.cases)
        counts = self.counts(ledger)
        rate = ledger.cases / max(passed, 1e-9)
        return (
            f"{len(self.reported)}/{len(self.planned)} properties, {ledger.cases:,} cases, "
            f"{rate:.0f}/s, "
            + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
            + (f", about {_spoken(left)} left" if left < float("inf") and left else "")
        )

    def counts(self, ledger: Ledger) -> dict[str, int]:
        """Count the rules by their current state; those that are not planned only if judged."""
        counts = {"held": 0, "violated": 0, "inconclusive": 0, "not claimed": 0, "open": 0}
        for rule in ALL_RULES:
            verdict = ledger.verdict_of(rule)
            kind = {"holds": "held", "observed": "held"}.get(verdict, verdict)
            known = (
                verdict in ("violated", "inconclusive")
                or rule in self.reported
                or rule in ledger.ended
            )
            state = kind if known and kind in counts else "open"
            counts[state] += state != "open" or rule in self.planned
        return counts

    def vacuous(self, ledger: Ledger) -> Mapping[str, list[str]]:
        """Return the rules whose property is running, with the conditions they have not met yet."""
        running = [
            rule
            for rule in ALL_RULES
            if rule in ledger.tested - ledger.ended and rule in ledger.entries
        ]
        missing = {
            rule: [need for need in ALL_RULES[rule].needs if not ledger.entries[rule].met[need]]
            for rule in running
        }
        return {rule: needs for rule, needs in missing.items() if needs}


def _spoken(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


class Screen:
    """The display on a terminal, drawn again four times a second by a thread of its own.

    Args:
        file: The terminal; closed at the end.
        progress: The progress of the session.
        ledger: A function that returns the current ledger.
    """

    def __init__(self, file: TextIO, progress: Progress, ledger: Any) -> None:
        # Imported here: a session without a terminal does not need it.
        from rich.console import Console
        from rich.live import Live

        self._file, self._progress, self._ledger = file, progress, ledger
        # pytest's own output is not redirected.
        self._live = Live(
            console=Console(file=file),
            get_renderable=self._rendered,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            refresh_per_second=4,
        )

    def start(self) -> None:
        """Begin to draw."""
        self._live.start()

    def write(self, line: str) -> None:
        """Write a line above the display, where it stays."""
        self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Remove the display from the screen."""
        self._live.stop()
        self._file.close()

    def _rendered(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        try:
            ledger = self._ledger()
        # The ledger changed while it was summed up; the next drawing will succeed.
        except RuntimeError:
            return Text("…")
        progress = self._progress
        if not ledger.cases:
            return Text("")
        rows: list[Any] = [
            ProgressBar(total=len(progress.planned), completed=len(progress.reported), width=60),
            Text(progress.line(ledger), overflow="ellipsis", no_wrap=True),
        ]
        bad = [rule for rule in ALL_RULES if ledger.verdict_of(rule) == "violated"]
        rows += [Text(f"violated: {', '.join(bad)}", style="bold red")] if bad else []
        rows += [
            Text(
                f"{rule} still needs a case with: {'; '.join(needs)}",
                style="dim",
                overflow="ellipsis",
                no_wrap=True,
            )
            for rule, needs in list(progress.vacuous(ledger).items())[:4]
        ]
        rows += (
            [Text(f"{progress.other_results} other tests reported", style="dim")]
            if progress.other_results
            else []
        )
        drawn = Table.grid()
        for row in rows:
            drawn.add_row(row)
        return drawn
