"""How a session ends: at once where it is interrupted, and with an exit status that says what came of it."""

import _thread
import gc
import re
import sys
import threading
from functools import partial
from typing import Any

import pytest

from ddp_invariants.errors import INCONCLUSIVE, VIOLATED
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.search.ledger import Ledger

AGAIN = 0.01
"""Seconds until an interrupt that was lost is made again: a callback takes microseconds."""


def heed_interrupts() -> None:
    """Have no interrupt be lost, from here on, as long as nobody else sets `sys.unraisablehook`.

    [Note: lost interrupts] Python raises KeyboardInterrupt wherever the main thread is, and ignores
    what is raised in a callback of the garbage collector, of a weak reference, or in a finalizer.
    Hypothesis has a callback for each collection, and a signal that comes while one runs, which
    takes up to a tenth of a second, is handled there, as soon as it is over.
    """
    hook = sys.unraisablehook
    if getattr(hook, "func", None) is not _ignored:
        sys.unraisablehook = partial(_ignored, hook)


def _ignored(hook: Any, ignored: Any) -> None:
    """What Python calls with an exception that it ignores: an interrupt is made again, elsewhere."""
    if ignored.exc_type is not KeyboardInterrupt:
        hook(ignored)
        return
    again = threading.Timer(AGAIN, _thread.interrupt_main)
    again.daemon = True
    again.start()


def hurry(excinfo: pytest.ExceptionInfo[BaseException], *, whole_stack: bool) -> None:
    """Have pytest end at once. On its way it would walk through all there is in memory, and through the source of each call.

    Args:
        excinfo: What interrupts it.
        whole_stack: Whether the stack is to be shown.
    """
    gc.freeze()
    if not whole_stack:
        excinfo.traceback, excinfo.value.__suppress_context__ = excinfo.traceback[-1:], True


def rule_of(name: str) -> str:
    """The rule that a property of this name, or node id, is about; empty where it is none of the packaged properties."""
    found = re.match(r"test_([a-z]+)(\d+)_", name.rpartition("::")[2])
    rule = f"{found[1].upper()}-{found[2]}" if found else ""
    return rule if rule in ALL_RULES else ""


def judged(status: int, ledger: Ledger, *, others_failed: bool) -> int:
    """The exit status of pytest, told apart by what the properties came to.

    What pytest calls 2 is a session that was interrupted, of which nothing follows either.

    Args:
        status: Of the tests: all passed, some failed, or their failures ended the session.
        ledger: What the properties found.
        others_failed: Whether a test failed that is no property.
    """
    if status not in (
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
        pytest.ExitCode.INTERRUPTED,
    ):
        return status
    if any(entry.confirmed for entry in ledger.entries.values()):
        return VIOLATED
    if others_failed:
        return status
    open_questions = any(entry.seen or entry.not_run for entry in ledger.entries.values())
    return INCONCLUSIVE if open_questions or status != pytest.ExitCode.OK else status
