"""The stored failures of an implementation: a rule's property judges them before it draws cases.

So a fix is tried on the very cases that failed. In a session with a given seed, the seed alone
decides the cases, and no stored case is judged.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ddp_invariants.cases.case import Case
from ddp_invariants.errors import CaseError
from ddp_invariants.records import reading
from ddp_invariants.records.violation import StoredViolation
from ddp_invariants.search.runner import Runner

MOST = 5
"""Stored cases that a property judges at most, the newest first."""


def stored_cases(runner: Runner, rule: str) -> Iterator[Case]:
    """Yield the cases of a rule's stored failures for the implementation under test.

    A file that cannot be read is left out, and so is a case outside the scope.
    """
    found = 0
    for path in _newest_first(runner.options.store):
        stored = _read(path, rule)
        if stored is None or stored.under_test != runner.under_test.about(rule):
            continue
        if runner.scope.allows(stored.case):
            yield stored.case
            found += 1
        if found == MOST:
            return


def _newest_first(folder: Path) -> list[Path]:
    """Return the files of a folder; none if it is closed to this user."""
    changed: dict[Path, float] = {}
    with suppress(OSError):
        for path in folder.glob("*.json"):
            with suppress(OSError):  # Another process may remove it.
                changed[path] = path.stat().st_mtime
    return sorted(changed, key=changed.__getitem__, reverse=True)


def _read(path: Path, rule: str) -> StoredViolation | None:
    """Return a file's violation if it is one of the rule."""
    try:
        # Decoding a file with its evidence takes milliseconds, and most files are of other rules.
        if f'"rule": "{rule}"' not in path.read_text(encoding="utf-8", errors="replace"):
            return None
        stored = reading.read_any(path)
    except (CaseError, OSError):
        return None
    if not isinstance(stored, StoredViolation) or stored.failure.rule != rule:
        return None
    return stored
