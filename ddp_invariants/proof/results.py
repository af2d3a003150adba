"""A file that keeps the results of a measurement, so that an interrupted one goes on where it was.

Each result is a line of JSON, written when its search ends. The line names the options and versions
of its measurement: results of another one stay in the file and are not taken. A line that was cut
off is no result.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddp_invariants.errors import ResultsError
from ddp_invariants.proof.detection import Detection, from_plain
from ddp_invariants.proof.measure import FaultSearch
from ddp_invariants.proof.tables import Table


class Results:
    """The results in a file that belong to one measurement.

    Args:
        path: The file; it need not exist.
        table: The measurement.

    Raises:
        ResultsError: The file holds something else.
    """

    def __init__(self, path: Path, table: Table) -> None:
        self._path = path
        self._about = {"suite": table.suite, "torch": table.torch, "options": dict(table.options)}
        self._known = {_key(found.planted.target, found): found for found in self._read()}

    def __contains__(self, job: FaultSearch) -> bool:
        return _key(job.planted.target, job) in self._known

    def known(self, jobs: Sequence[FaultSearch]) -> list[Detection]:
        """Return the results of those searches that the file has."""
        return [self._known[_key(job.planted.target, job)] for job in jobs if job in self]

    def keep(self, detection: Detection) -> None:
        """Append a result to the file.

        Raises:
            OSError: The file cannot be written.
        """
        line = json.dumps({**self._about, "search": asdict(detection)})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(("" if self._ends_with_line() else "\n") + line + "\n")

    def _ends_with_line(self) -> bool:
        """Return whether the file is empty or ends with a whole line."""
        return self._path.read_bytes()[-1:] in (b"", b"\n")

    def _read(self) -> Iterator[Detection]:
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        for number, line in enumerate(lines):
            try:
                plain = json.loads(line)
            except ValueError:
                if number == 0 and len(lines) > 1:
                    raise ResultsError(f"{self._path}: no results of faults --resume") from None
                continue  # The process was killed while it wrote the line.
            yield from self._taken(plain)

    def _taken(self, plain: Any) -> Iterator[Detection]:
        """Yield the result of a line that belongs to this measurement."""
        try:
            if all(plain[name] == value for name, value in self._about.items()):
                yield from_plain(plain["search"])
        except (KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ResultsError(
                f"{self._path}: no results of this version of faults --resume ({reason})"
            ) from None


def _key(target: str, made: Detection | FaultSearch) -> tuple[Any, ...]:
    """Return the part of a search that no other search of a measurement has."""
    return target, made.planted.arguments, made.planted.fault, made.seed
