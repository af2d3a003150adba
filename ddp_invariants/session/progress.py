"""The progress of a running session: workers send it to the main process, which shows it.

The last state that was sent also replaces the ledger of a worker that ends without one because it
was interrupted or killed.
"""

import contextlib
import json
import os
import secrets
import socket
import struct
import threading
import time
import zlib
from collections.abc import Collection, Mapping
from typing import Any, TextIO

from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.search.ledger import Ledger

EVERY = 0.5
"""Seconds between two messages of a worker: one takes a millisecond to send."""
LINE_EVERY = 20.0
"""Seconds between two lines if there is no terminal."""
_CREDENTIALS = struct.Struct("3i")


class ProgressSender:
    """A worker's side: called after each case, it sends the ledger to the main process at times.

    Args:
        address: Of the main process's `Listener`.
        name: The worker's.
    """

    def __init__(self, address: str, name: str) -> None:
        self._name, self._sent_at = name, 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(0)
        with contextlib.suppress(OSError):  # The main process is gone: nobody can receive messages.
            self._socket.connect("\0" + address)

    def __call__(self, ledger: Ledger) -> None:
        """Send a ledger, unless one was sent a moment ago.

        The worker does not wait for a slow receiver.
        """
        if time.monotonic() - self._sent_at >= EVERY:
            self.send(ledger)

    def send(self, ledger: Ledger) -> None:
        """Send a ledger now."""
        self._sent_at = time.monotonic()
        with contextlib.suppress(OSError):
            self._socket.send(
                zlib.compress(json.dumps([self._name, ledger.to_plain()]).encode(), 1)
            )

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class Listener:
    """The main process's side: it holds the last message of each worker.

    It uses no file, so that none is left behind.
    """

    def __init__(self) -> None:
        self.address = f"ddp-invariants-{os.getpid()}-live-{secrets.token_hex(8)}"
        self._plain: dict[str, dict[str, Any]] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind("\0" + self.address)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def ledgers(self, without: Collection[str] = ()) -> dict[str, Ledger]:
        """Return the last ledger of each worker, except those in `without`."""
        return {
            name: Ledger.from_plain(plain)
            for name, plain in list(self._plain.items())
            if name not in without
        }

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)
        self._thread.join(1.0)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                data, extra, _, _ = self._socket.recvmsg(
                    1 << 20, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except OSError:
                return
            if not data:
                return
            for _, kind, credentials in extra:
                _, user, _ = (
                    _CREDENTIALS.unpack(credentials)
                    if kind == socket.SCM_CREDENTIALS
                    else (0, -1, 0)
                )
                if user == os.getuid():  # Any user of this machine may write to it.
                    with contextlib.suppress(ValueError, zlib.error):
                        name, plain = json.loads(zlib.decompress(data))
                        self._plain[name] = plain


class Progress:
    """The progress of a session in numbers.

    Args:
        cases: The cases per property, before the higher cost of some properties is applied.
    """

    def __init__(self, cases: int) -> None:
        self._cases, self._began = cases, time.monotonic()
        self.reported: dict[str, str] = {}
        self.other_results = 0

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
        planned = {rule: -(-self._cases // known.costs) for rule, known in ALL_RULES.items()}
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
            f"{len(self.reported)}/{len(ALL_RULES)} properties, {ledger.cases:,} cases, "
            f"{rate:.0f}/s, "
            + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
            + (f", about {_spoken(left)} left" if left < float("inf") and left else "")
        )

    def counts(self, ledger: Ledger) -> dict[str, int]:
        """Count the rules by their current state."""
        counts = {"held": 0, "violated": 0, "inconclusive": 0, "not claimed": 0, "open": 0}
        for rule in ALL_RULES:
            verdict = ledger.verdict_of(rule)
            kind = {"holds": "held", "observed": "held"}.get(verdict, verdict)
            known = (
                verdict in ("violated", "inconclusive")
                or rule in self.reported
                or rule in ledger.ended
            )
            counts[kind if known and kind in counts else "open"] += 1
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
            ProgressBar(total=len(ALL_RULES), completed=len(progress.reported), width=60),
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
