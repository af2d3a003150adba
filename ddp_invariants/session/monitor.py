"""The main process's view of a session: workers' ledgers, reported properties, final outputs.

A certificate needs three lists to agree: the planned properties, those that ran to their end
according to the workers' ledgers, and those with an outcome in pytest. The reason is that xdist can
lose a worker with its tests.
"""

import contextlib
import datetime as dt
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ddp_invariants.discovery.result import Discovery
from ddp_invariants.discovery.unsettled import Unsettled
from ddp_invariants.report.certificate.from_session import SessionRun, SessionSettings
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.session.ending import rule_of
from ddp_invariants.session.outputs import OutputFiles, write
from ddp_invariants.session.progress import LINE_EVERY, Listener, Progress, Screen

RULE = "ddp-invariants rule"
"""The property of a test's report that names the test's rule; JUnit files have it, too."""


class Monitor:
    """The main process's knowledge while a session runs.

    Args:
        settings: The session's settings.
        files: The files it is to write.
        own_ledger: A function that returns the ledger of this process's own trial, or None.

    Attributes:
        workers: The processes of pytest's workers, by name.
        interrupted: True if the user interrupted the session.
        other_test_failed: True if a test failed that is no property.
        unwritten: True if a certificate, a badge or a proposal could not be written.
    """

    def __init__(
        self, settings: SessionSettings, files: OutputFiles, own_ledger: Callable[[], Ledger | None]
    ) -> None:
        self.settings, self.files, self._own_ledger = settings, files, own_ledger
        self.listener = Listener()
        self.progress = Progress(settings.cases)
        self.screen: Screen | None = None
        self.lines: Sequence[str] = ()
        self.workers: dict[str, int] = {}
        self.interrupted = self.other_test_failed = self.unwritten = False
        self._ended_ledger = Ledger()
        self._ended_workers: set[str] = set()
        self._began, self._at, self._line_at = (
            dt.datetime.now(dt.UTC),
            time.monotonic(),
            time.monotonic(),
        )

    def add_ledger(self, worker: str, ledger: Ledger) -> None:
        """Take the ledger of a worker that ended."""
        self._ended_workers.add(worker)
        self._ended_ledger.merge(ledger)

    def total_ledger(self) -> Ledger:
        """Return the sum of all ledgers.

        A worker that has not ended, or that ended without a ledger, counts with its last message.
        """
        total = Ledger()
        for ledger in (
            self._ended_ledger,
            *self.listener.ledgers(without=self._ended_workers).values(),
            self._own_ledger(),
        ):
            if ledger is not None:
                total.merge(ledger)
        return total

    def draw(self) -> None:
        """Begin to draw on the terminal."""
        # On a descriptor of its own: while a test runs in this process, pytest captures the usual
        # one.
        self.screen = Screen(
            os.fdopen(os.dup(1), "w", encoding="utf-8"), self.progress, self.total_ledger
        )
        self.screen.start()

    def report(self, report: Any) -> None:
        """Record a test's report."""
        rules = [rule for name, rule in report.user_properties if name == RULE]
        # A test whose worker is lost has no properties.
        self.other_test_failed |= (
            report.outcome == "failed" and not rules and not rule_of(report.nodeid)
        )
        if report.when == "call" or report.outcome != "passed":
            self.progress.report(rules, report.outcome)

    @property
    def began(self) -> str:
        """The start time, as ISO 8601 in UTC."""
        return self._began.isoformat(timespec="seconds")

    @property
    def seconds(self) -> float:
        """The duration so far."""
        return round(time.monotonic() - self._at, 1)

    @property
    def failed_properties(self) -> frozenset[str]:
        """The rules whose properties failed."""
        reported = self.progress.reported
        return frozenset(rule for rule, outcome in reported.items() if outcome == "failed")

    def line(self) -> str:
        """Return a line of progress, empty unless it is due and properties have begun and are left."""
        if (
            time.monotonic() - self._line_at < LINE_EVERY
            or not set(self.progress.planned) - self.progress.reported.keys()
        ):
            return ""
        self._line_at = time.monotonic()
        # A run of other tests may come to its properties after many minutes.
        ledger = self.total_ledger()
        return f"ddp-invariants: {self.progress.line(ledger)}" if ledger.cases else ""

    def cut_short(self, *, by_user: bool) -> None:
        """Stop drawing and kill the workers.

        Workers would otherwise go on until pytest stops them properly. Their last messages are here
        already.
        """
        self.interrupted = by_user
        self._stop_drawing()
        for name, pid in self.workers.items():
            if name not in self._ended_workers:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def _stop_drawing(self) -> None:
        if self.screen is not None:
            self.screen.stop()
            self.screen = None

    def finish(self, discovery: Discovery, open_failures: Iterable[Unsettled]) -> Ledger:
        """Stop drawing and listening, and write the wanted files.

        Args:
            discovery: The implementation under test.
            open_failures: The failures of its probes that nothing explains.

        Returns:
            The session's ledger.
        """
        self._stop_drawing()
        ledger = self.total_ledger()
        self.listener.close()
        if ledger.cases and not self.interrupted:
            ledger.enter_unsettled(open_failures)
        files = self.files
        wanted = files.certificate or files.badge or files.proposal
        if wanted or (files.summary and ledger.cases):
            run = SessionRun(
                self.settings,
                self.began,
                self.seconds,
                frozenset(self.progress.reported),
                self.interrupted,
            )
            self.lines, self.unwritten = write(files, ledger, discovery, run)
        return ledger


def report_properties(ledger: Ledger, rule: str) -> Iterator[tuple[str, str]]:
    """Yield the report properties (as in JUnit) of a test's rule, from this process's ledger."""
    entry = ledger[rule]
    yield RULE, rule
    yield "verdict", ledger.verdict_of(rule)
    yield "cases judged", str(entry.judged)
    yield "things compared", str(entry.compared)
    yield "largest error", f"{entry.worst:.2f} of bound" if entry.worst else "none"
