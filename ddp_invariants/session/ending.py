"""The end of a session: at once if interrupted, with an exit status that shows the result."""

import _thread
import ctypes
import gc
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import pytest

from ddp_invariants.cases.levels import LEVELS, Level
from ddp_invariants.errors import CERTIFIED, INCONCLUSIVE, VIOLATED
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.report.card import LevelAccount, failing, within
from ddp_invariants.search.ledger import Ledger

_PR_SET_PDEATHSIG = 1
"""The number of an operation, as in the kernel's linux/prctl.h."""
AGAIN = 0.01
"""Seconds between two looks whether Python has done with a lost interrupt."""


def heed_interrupts() -> None:
    """Make Python lose no interrupt from here on, unless other code sets `sys.unraisablehook`.

    [Note: lost interrupts] Python raises KeyboardInterrupt wherever the main thread is. It ignores
    an exception in a finalizer, or in a callback of the garbage collector or of a weak reference.
    Hypothesis has a callback for each collection. A collection takes up to a tenth of a second. A
    signal that arrives during it is handled in that callback, as soon as the collection is over.
    """
    hook = sys.unraisablehook
    if getattr(hook, "func", None) is not _ignored:
        sys.unraisablehook = partial(_ignored, hook)


def _ignored(hook: Any, ignored: Any) -> None:
    """Handle an exception that Python ignores: raise an interrupt again, elsewhere."""
    if ignored.exc_type is not KeyboardInterrupt:
        hook(ignored)
        return
    try:
        _thread.start_new_thread(_interrupt_again, ())
    except KeyboardInterrupt:
        _thread.start_new_thread(_interrupt_again, ())


def _interrupt_again() -> None:
    """Interrupt the main thread, once it is no longer in the hook, where Python ignores that, too.

    The hook returns without waiting for this thread. `threading.Timer` waits until its thread runs,
    and on a loaded machine the interrupt arrives during that wait.
    """
    main = threading.main_thread().ident
    assert main is not None, "it has started, since it was interrupted"
    while any(
        frame.f_code is _ignored.__code__
        for frame, _ in traceback.walk_stack(sys._current_frames().get(main))
    ):
        time.sleep(AGAIN)
    signal.pthread_kill(main, signal.SIGINT)


def heed_termination() -> None:
    """Make SIGTERM interrupt as Ctrl-C does: the end of a time limit shows all results so far."""
    if threading.current_thread() is threading.main_thread():  # Others may set no handler.
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def end_with_main_process() -> None:
    """Have the kernel kill this worker of pytest when the main process ends, also if it is killed.

    A worker notices the end of the main process only when its current property has ended.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def hurry(excinfo: pytest.ExceptionInfo[BaseException], *, whole_stack: bool) -> None:
    """Make pytest end at once.

    Otherwise pytest would first walk through all objects in memory, and through the source of each
    call.

    Args:
        excinfo: The interrupt.
        whole_stack: True if the stack is to be shown.
    """
    gc.freeze()
    if not whole_stack:
        excinfo.traceback, excinfo.value.__suppress_context__ = excinfo.traceback[-1:], True


def rule_of(name: str) -> str:
    """Return the rule of a packaged property, from its name or node id; empty for other tests."""
    match = re.match(r"test_([a-z]+)(\d+)_", name.rpartition("::")[2])
    rule = f"{match[1].upper()}-{match[2]}" if match else ""
    return rule if rule in ALL_RULES else ""


def exit_status(
    status: int,
    ledger: Ledger,
    levels: Sequence[LevelAccount] = (),
    most: Level = LEVELS[-1],
    failed: Collection[str] = (),
    *,
    other_test_failed: bool,
) -> int:
    """Return the session's exit status, from pytest's own and the verdicts of the properties.

    pytest's status 2 is an interrupted session, which is inconclusive as well.

    Args:
        status: Of the tests: all passed, some failed, or their failures ended the session.
        ledger: The verdicts of the properties.
        levels: The results by level; empty for a replay, which is about its case alone.
        most: The least ordinary level that counts.
        failed: The rules whose properties failed.
        other_test_failed: True if a test failed that is no property.
    """
    if status not in (
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
        pytest.ExitCode.INTERRUPTED,
    ):
        return status
    beyond = failing(levels) - failing(within(levels, most))
    entries = [entry for rule, entry in ledger.entries.items() if rule not in beyond]
    if any(entry.confirmed for entry in entries):
        return VIOLATED
    if other_test_failed:
        return status
    open_rules = any(entry.seen or entry.not_run for entry in entries)
    explained = status == pytest.ExitCode.TESTS_FAILED and failed and beyond.issuperset(failed)
    well = status == pytest.ExitCode.OK or explained
    return CERTIFIED if well and not open_rules and not _unproved(levels, most) else INCONCLUSIVE


def _unproved(levels: Sequence[LevelAccount], most: Level) -> bool:
    """Return whether a complete session gives a level that counts no verdict."""
    complete = not any(each.untested for each in levels)
    return complete and any(each.verdict == "inconclusive" for each in within(levels, most))
