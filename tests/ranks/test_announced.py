"""The line that a session prints as soon as a violation is confirmed."""

import json
import os
import pty
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import Session
from ddp_invariants.cases.case import Case, TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.records.verdict import Failure, violation_class
from ddp_invariants.search import messages
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.session.announcer import Announcer
from ddp_invariants.session.progress import Progress, Screen

NEVER_DIVIDES = "ddp_invariants/faults/bucketed.py:NeverDivides"
FACT = "the gradient is not the mean of the ranks' local gradients"
CASE = TrainingCase(Model(1, (Layer("linear"),)), world_size=2)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_violation_is_told_at_once_and_only_once(session: Session, workers: str) -> None:
    """Two properties show GRAD-2 here; one line tells it, and the report follows at the end.

    The report of PARAM-6's property says that it saw another rule fail.
    """
    options = ["--ddp", NEVER_DIVIDES, "--seed", "1", "--cases", "5", "-n", workers]
    done = session(
        *["pytest", "-p", "no:cacheprovider", "properties/", "-k", "grad2_ or param6"], *options
    )
    assert done.returncode == 1, done.stdout + done.stderr
    early, _, report = done.stdout.partition(" FAILURES ")
    told = [line for line in early.splitlines() if "is violated" in line]
    assert len(told) == 1, early
    assert told[0].startswith("GRAD-2 is violated")
    assert f": {FACT} (ddp-invariants replay " in told[0]
    assert "is violated" not in report
    assert f"GRAD-2 violated by {NEVER_DIVIDES}: {FACT}" in report
    assert f"GRAD-2 violated by {NEVER_DIVIDES} (seen while PARAM-6 was tested): {FACT}" in report


def test_json_is_alone_on_stdout(session: Session, tmp_path: Path) -> None:
    """With --json the line goes where the session's other text goes, to stderr."""
    fault = f"{Path(__file__).parents[2]}/{NEVER_DIVIDES}"
    options = ["-k", "grad2", "--cases", "5", "--seed", "1", "-n", "0", "--json"]
    done = session("ddp_invariants", "certify", fault, *options, at=tmp_path)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)
    assert f"\nGRAD-2 is violated: {FACT} (ddp-invariants replay " in done.stderr


def test_the_display_stays_below_the_line() -> None:
    """The line is written above the progress that a terminal shows, in one piece and once."""
    reader, writer = pty.openpty()
    line = "GRAD-2 is violated: " + "a long fact " * 20
    with os.fdopen(writer, "w", encoding="utf-8") as terminal:
        screen = Screen(terminal, Progress(1), Ledger)
        screen.start()
        screen.write(line)
        screen.stop()
    written = b""
    # A terminal hands over what has arrived; an error tells that nobody writes any more.
    with suppress(OSError):
        while part := os.read(reader, 1 << 16):
            written += part
    os.close(reader)
    assert written.decode().count(line) == 1


class _Reporter:
    """A terminal reporter that keeps what it writes."""

    isatty = False

    def __init__(self) -> None:
        self.written: list[str] = []

    def ensure_newline(self) -> None:
        """Begin no line: xdist's reporter does not know where it is."""

    def write_line(self, line: str) -> None:
        """Keep a line."""
        self.written.append(line)

    def flush(self) -> None:
        """Keep that everything was flushed."""
        self.written.append("flushed")


def announced(reports: list[Any], *, width: int, drawn: list[str] | None = None) -> list[str]:
    """Return what is printed for some reports, after so many letters on the line."""
    reporter = _Reporter()
    config: Any = SimpleNamespace(
        pluginmanager=SimpleNamespace(get_plugin=lambda _: reporter),
        get_terminal_writer=lambda: SimpleNamespace(width_of_current_line=width),
    )
    screen = None if drawn is None else SimpleNamespace(write=drawn.append)
    monitor: Any = SimpleNamespace(screen=screen)
    announcer = Announcer(config, monitor)
    for report in reports:
        announcer.pytest_runtest_logreport(report)
    return reporter.written


def test_the_line_begins_after_the_letters_and_is_not_buffered() -> None:
    """The line begins a line of its own, and does not wait in a pipe for the session's end."""
    first = SimpleNamespace(violation=["GRAD-2", FACT, "GRAD-2 is violated"])
    assert announced([first], width=3) == ["", "GRAD-2 is violated", "flushed"]
    assert announced([first], width=0) == ["GRAD-2 is violated", "flushed"]


def test_a_rule_is_told_again_for_another_fact_alone() -> None:
    """A second smallest case of the same fact is in the report; a second fact is news."""
    reports = [
        SimpleNamespace(violation=["GRAD-2", FACT, "first"]),
        SimpleNamespace(violation=["GRAD-2", FACT, "second"]),
        SimpleNamespace(violation=["GRAD-2", "another fact", "third"]),
        SimpleNamespace(),
    ]
    assert announced(reports, width=0) == ["first", "flushed", "third", "flushed"]
    drawn: list[str] = []
    assert announced(reports, width=0, drawn=drawn) == []
    assert drawn == ["first", "third"]


@pytest.mark.parametrize(
    ("tested", "seen"),
    [("LIVE-1", ""), ("STATE-1", " (seen while STATE-1 was tested)"), ("", "")],
)
def test_the_line_names_the_tested_rule_if_it_is_another(
    tested: str, seen: str, tmp_path: Path
) -> None:
    """A hang that STATE-1's property meets is LIVE-1's, and the line and the report say so."""
    failure = Failure("LIVE-1", "a rank hung", "rank 1", "")
    case: Case = CASE
    violation = violation_class("LIVE-1")("", failure, case, tested)
    path = tmp_path / "abcdef.json"
    line = f"LIVE-1 is violated{seen}: a rank hung"
    assert messages.found(violation, path) == line
    path.touch()
    assert messages.found(violation, path) == f"{line} (ddp-invariants replay abcdef)"
    report = messages.violation(
        failure, "my.py:Mine", case, repeated=(3, 3), repeat="", tested=tested
    )
    assert report.startswith(f"LIVE-1 violated by my.py:Mine{seen}: a rank hung\n")
