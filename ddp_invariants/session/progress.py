"""While a session runs: workers tell the main process what they know, and it shows that on a terminal.

What was told last also stands in for the ledger of a worker that ends without one: interrupted, or
killed.
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
"""Seconds between two tellings of a worker: a ledger takes a millisecond to tell."""
LINE_EVERY = 20.0
"""Seconds between two lines where there is no terminal."""
_CREDENTIALS = struct.Struct("3i")


class ProgressSender:
    """A worker's side: called after each case with its ledger, tells the main process of it now and then.

    Args:
        address: Of the main process's `Listener`.
        name: The worker's.
    """

    def __init__(self, address: str, name: str) -> None:
        self._name, self._told = name, 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(0)
        with contextlib.suppress(OSError):  # The main process is gone: nobody is there to be told.
            self._socket.connect("\0" + address)

    def __call__(self, ledger: Ledger) -> None:
        """Tell of a ledger, unless it was done a moment ago. What nobody takes in time is not waited for."""
        if time.monotonic() - self._told >= EVERY:
            self.tell(ledger)

    def tell(self, ledger: Ledger) -> None:
        """Tell of a ledger now."""
        self._told = time.monotonic()
        with contextlib.suppress(OSError):
            self._socket.send(
                zlib.compress(json.dumps([self._name, ledger.to_plain()]).encode(), 1)
            )

    def close(self) -> None:
        """End it."""
        self._socket.close()


class Listener:
    """The main process's side: holds what each worker told last. No file, so that none is left behind."""

    def __init__(self) -> None:
        self.address = f"ddp-invariants-{os.getpid()}-live-{secrets.token_hex(8)}"
        self._plain: dict[str, dict[str, Any]] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind("\0" + self.address)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def ledgers(self, without: Collection[str] = ()) -> dict[str, Ledger]:
        """What each worker told last, but those."""
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
                if user == os.getuid():  # Anybody on this machine may write to it.
                    with contextlib.suppress(ValueError, zlib.error):
                        name, plain = json.loads(zlib.decompress(data))
                        self._plain[name] = plain


class Progress:
    """How far a session is: what is known of it in numbers.

    Args:
        cases: Per property, before what some of them cost is counted.
    """

    def __init__(self, cases: int) -> None:
        self._cases, self._began = cases, time.monotonic()
        self.reported: dict[str, str] = {}
        self.others = 0

    def report(self, rules: Collection[str], outcome: str) -> None:
        """A test reported: the rules its property was about, none for one that is no property."""
        self.others += not rules
        self.reported.update(dict.fromkeys(rules, outcome))

    def left(self, judged: int) -> float:
        """Seconds that are left, as it went so far; infinite before anything went.

        A property takes as many cases as are asked for, or several times as many: a guess.
        """
        planned = {rule: -(-self._cases // known.costs) for rule, known in ALL_RULES.items()}
        done = sum(count for rule, count in planned.items() if rule in self.reported)
        passed = time.monotonic() - self._began
        return passed * (sum(planned.values()) - done) / done if done and judged else float("inf")

    def line(self, ledger: Ledger) -> str:
        """All of it in a line."""
        passed = time.monotonic() - self._began
        left = self.left(ledger.cases)
        counts = self.counts(ledger)
        rate = ledger.cases / max(passed, 1e-9)
        return (
            f"{len(self.reported)}/{len(ALL_RULES)} properties, {ledger.cases:,} cases, {rate:.0f}/s, "
            + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
            + (f", about {_spoken(left)} left" if left < float("inf") and left else "")
        )

    def counts(self, ledger: Ledger) -> dict[str, int]:
        """Rules by what is known of them."""
        found = {"held": 0, "violated": 0, "inconclusive": 0, "not claimed": 0, "open": 0}
        for rule in ALL_RULES:
            said = ledger.said(rule)
            kind = {"holds": "held", "observed": "held"}.get(said, said)
            known = (
                said in ("violated", "inconclusive")
                or rule in self.reported
                or rule in ledger.ended
            )
            found[kind if known and kind in found else "open"] += 1
        return found

    def vacuous(self, ledger: Ledger) -> Mapping[str, list[str]]:
        """Rules whose property runs now, with the situations they have not met yet."""
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
    """The display on a terminal, drawn anew four times a second by a thread of its own.

    Args:
        file: The terminal; closed at the end.
        progress: How far the session is.
        known: Gives what is known at the moment.
    """

    def __init__(self, file: TextIO, progress: Progress, known: Any) -> None:
        # Imported here: a session without a terminal does without.
        from rich.console import Console
        from rich.live import Live

        self._file, self._progress, self._known = file, progress, known
        # What pytest prints goes its own way: nothing is redirected.
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
        """Take it off the screen."""
        self._live.stop()
        self._file.close()

    def _rendered(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        try:
            ledger = self._known()
        except RuntimeError:  # It changed while it was summed up: a moment later it is there.
            return Text("…")
        progress = self._progress
        if not ledger.cases:
            return Text("")
        rows: list[Any] = [
            ProgressBar(total=len(ALL_RULES), completed=len(progress.reported), width=60),
            Text(progress.line(ledger), overflow="ellipsis", no_wrap=True),
        ]
        bad = [rule for rule in ALL_RULES if ledger.said(rule) == "violated"]
        rows += [Text(f"violated: {', '.join(bad)}", style="bold red")] if bad else []
        rows += [
            Text(
                f"{rule} has not met yet: {'; '.join(needs)}",
                style="dim",
                overflow="ellipsis",
                no_wrap=True,
            )
            for rule, needs in list(progress.vacuous(ledger).items())[:4]
        ]
        rows += (
            [Text(f"{progress.others} other tests reported", style="dim")]
            if progress.others
            else []
        )
        drawn = Table.grid()
        for row in rows:
            drawn.add_row(row)
        return drawn
