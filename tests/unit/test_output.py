"""Tests of what the commands show on a terminal while they work."""

import itertools
import os
import pty
import select
import sys
from pathlib import Path

import pytest

from ddp_invariants.cli.output import counting


def test_a_terminal_shows_how_far_a_command_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line on stderr is made anew, with the count of the moment."""
    numbers, shown = itertools.count(1000), b""
    reading, written = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(written, "w", encoding="utf-8") as screen, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", screen)
        with counting("cases", lambda: next(numbers)):
            while shown.count(b"cases: 1,0") < 3 and select.select([reading], [], [], 20.0)[0]:
                shown += os.read(reading, 4096)
    os.close(reading)
    assert shown.count(b"cases: 1,0") >= 3
    assert shown.count(b"cases: 1,001") == 1


def test_nothing_is_shown_where_there_is_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file gets no line, and nothing is counted."""
    with (tmp_path / "log").open("w", encoding="utf-8") as log:
        monkeypatch.setattr(sys, "stderr", log)
        with counting("cases", lambda: pytest.fail("counted")):
            pass
    assert not (tmp_path / "log").read_text(encoding="utf-8")
