"""The history of a folder's sessions: one line of JSON each, in `.ddp-invariants/history.jsonl`.

Sessions may end at the same moment, and a machine may fail while one writes. So each line is
appended whole under a lock of the folder, and a reader leaves out what is no such line. The file
stays small: the oldest lines go first.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import Literal

from ddp_invariants.cases.fields import Strict
from ddp_invariants.records.folder import FOLDER

FILE = FOLDER / "history.jsonl"
"""The file, relative to the folder in which a session was started."""
MOST_BYTES = 1 << 20
"""Bytes of the longest file: a session takes some 2 KiB."""
KEPT_BYTES = MOST_BYTES // 2
"""Bytes of the newest lines that stay when the file becomes longer."""


@dataclass(frozen=True)
class PastSession(Strict):
    """One line of the history.

    Attributes:
        began: Start time, as ISO 8601 in UTC.
        seconds: Duration.
        command: The command that started it.
        ddp, sampler: The implementations under test.
        versions: The versions of the distributions that they come from.
        suite, torch: Versions.
        seed: The seed of the search.
        cases: Number of cases judged.
        outcome: The outcome in a word.
        levels: The verdict of each level.
        rules: The verdict of each rule that was concerned.
        violations: The ids of confirmed violations, by rule.
    """

    began: str
    seconds: float
    command: str
    ddp: str
    sampler: str
    versions: tuple[str, str]
    suite: str
    torch: str
    seed: int
    cases: int
    outcome: str
    levels: dict[str, str]
    rules: dict[str, str]
    violations: dict[str, str]
    kind: Literal["session"] = "session"


def append(session: PastSession, path: Path = FILE) -> None:
    """Append a session to the history.

    Raises:
        OSError: The file cannot be written.
    """
    line = dumps(asdict(session), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        if path.exists() and path.stat().st_size + len(line) > MOST_BYTES:
            _shorten(path)
        # Closed at once, so that the line is in the file before the lock is released.
        with path.open("ab") as file:
            file.write((b"" if _ends_with_line(path) else b"\n") + line)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock of a folder: a lock of the file would be lost when the file is replaced."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _shorten(path: Path) -> None:
    """Keep only the newest lines; a reader sees the old file or the new one, never a part."""
    lines = path.read_bytes().splitlines(keepends=True)
    kept, size = len(lines), 0
    while kept and size + len(lines[kept - 1]) <= KEPT_BYTES:
        kept -= 1
        size += len(lines[kept])
    whole = path.with_name(path.name + ".part")
    whole.write_bytes(b"".join(lines[kept:]))
    whole.replace(path)


def _ends_with_line(path: Path) -> bool:
    """Return whether a file is empty or ends with a whole line."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def read(path: Path = FILE) -> tuple[PastSession, ...]:
    """Return the sessions of a history, the oldest first.

    Lines that are none, such as a truncated one, are left out.

    Raises:
        OSError: The file exists and cannot be read.
    """
    # Imported here: only the command needs it, and the import takes a while.
    import pydantic

    if not path.exists():
        return ()
    adapter, sessions = pydantic.TypeAdapter(PastSession), []
    with path.open("rb") as file:
        for line in file:
            try:
                sessions.append(adapter.validate_json(line))
            except pydantic.ValidationError:
                continue
    return tuple(sessions)
