"""A file that keeps the results of a measurement, so that an interrupted one goes on where it was.

Each result is a line of JSON, written when its search ends. The line names the options, versions and
sources of its measurement: results of another one stay in the file and are not taken. A line that
was cut off is no result. A search that the harness could not make, or whose failure did not repeat,
is not kept, and is made again. What the witness tells of composed faults is kept as well.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ddp_invariants
from ddp_invariants.errors import ResultsError
from ddp_invariants.faults.generated.choices import Composition
from ddp_invariants.proof.detection import Detection, from_plain
from ddp_invariants.proof.generated import Witness
from ddp_invariants.proof.measure import FaultSearch

_HEAD = json.dumps({"results": "ddp-invariants --resume", "form": 2})
"""The first line of such a file."""


class Results:
    """The results in a file that belong to one measurement.

    Args:
        path: The file; it is made if it does not exist.
        options: The options on which the results depend.
        sources: The files of the implementations; those of this package need not be named.

    Raises:
        ResultsError: The file holds something else.
        OSError: The file cannot be read or written.
    """

    def __init__(self, path: Path, options: Mapping[str, Any], sources: Iterable[Path]) -> None:
        self._path = path
        self._about = {
            "suite": ddp_invariants.__version__,
            "torch": version("torch"),
            "options": dict(options),
            "sources": _digest(sources),
        }
        with path.open("a+b") as file:
            file.seek(0)
            content = file.read()
            own = [*self._read(content)]
            self._known = {line["key"]: line["search"] for line in own if "search" in line}
            self._told = {name: told for line in own for name, told in line["told"].items()}
            if not content:
                file.write(_HEAD.encode() + b"\n")
            elif not content.endswith(b"\n"):
                file.write(b"\n")

    def __contains__(self, job: FaultSearch) -> bool:
        return _key(job) in self._known

    def known(self, jobs: Sequence[FaultSearch]) -> list[Detection]:
        """Return the results of those searches that the file has."""
        return [replace(self._known[_key(job)], planted=job.planted) for job in jobs if job in self]

    def keep(self, detection: Detection) -> None:
        """Append a result to the file.

        A search that the harness could not make, or whose failure did not repeat, is made again.

        Raises:
            OSError: The file cannot be written.
        """
        if not detection.cases or (detection.reason and not detection.is_caught):
            return
        self._append(key=_key(detection), search=asdict(detection))

    def witnessed(
        self, compositions: Sequence[Composition], witness: Witness
    ) -> dict[Composition, str]:
        """Return what a witness tells of compositions; it is asked only what the file lacks.

        Raises:
            HarnessError: The witness failed.
            OSError: The file cannot be written.
        """
        asked = [each for each in compositions if each.name not in self._told]
        if asked:
            told = witness(asked)
            new = {each.name: told.get(each, "") for each in asked}
            self._told |= new
            self._append(told=new)
        return {each: self._told[each.name] for each in compositions if self._told[each.name]}

    def _append(self, **result: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**self._about, **result}) + "\n")

    def _read(self, content: bytes) -> Iterator[dict[str, Any]]:
        """Yield the lines of this measurement that can be read."""
        head, *lines = content.split(b"\n")
        if head not in (b"", _HEAD.encode()) or (not head and lines):
            raise ResultsError(f"{self._path}: no results that this version of --resume has kept")
        for line in lines:
            try:
                plain = json.loads(line)
                if all(plain[name] == value for name, value in self._about.items()):
                    told = {str(name): str(words) for name, words in plain.get("told", {}).items()}
                    searched = {"search": from_plain(plain["search"])} if "key" in plain else {}
                    yield {**plain, **searched, "told": told}
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # The process was killed while it wrote the line.


def _key(made: Detection | FaultSearch) -> str:
    """Return the part of a search that no other search of a measurement has."""
    return repr((*made.planted.identity, made.seed))


def _digest(sources: Iterable[Path]) -> str:
    """Return a digest of this package's sources and of other files."""
    package = Path(ddp_invariants.__file__).parent
    digest = hashlib.sha256()
    for file in (*sorted(package.rglob("*.py")), *sorted({*sources})):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
