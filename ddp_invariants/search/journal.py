"""What a job had judged before its elastic launcher started it anew: it is known, and not run again.

The seed is the same, so that the same cases are drawn in the same order; those in the journal pass
at once, and the search goes on with the case in which the job was lost. One line a case, one file a
process; a line that was cut off is no line.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from ddp_invariants.cases.case import Case, to_json
from ddp_invariants.records.verdict import Finding


def begin(folder: Path, attempt: int, seed: int) -> int:
    """Open a job's journal: a new one at its first attempt, what is there at a later one; the seed of the job."""
    noted = folder / "seed"
    if attempt:
        try:
            return int(noted.read_text(encoding="ascii"))
        except (OSError, ValueError):
            pass  # Rank 0 is on another machine now, or was lost before it began: all is judged from the first case.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    noted.write_text(str(seed), encoding="ascii")
    return seed


class Journal:
    """One process's view of it.

    Args:
        folder: Where it is, as `begin` left it.
        process: What tells the process from the job's others that judge.

    Attributes:
        known: How many cases were judged before.
    """

    def __init__(self, folder: Path, process: str) -> None:
        self._before = {
            key: findings
            for path in sorted(folder.glob("*.jsonl"))
            for key, findings in _lines(path)
        }
        self._file = folder / f"{process}.jsonl"
        self.known = len(self._before)

    def findings(self, rule: str, name: str, case: Case) -> dict[str, Finding] | None:
        """What was found in a case before, when it was drawn for a rule; None where it is to be run."""
        return self._before.get(_key(rule, name, case))

    def note(self, rule: str, name: str, case: Case, findings: Mapping[str, Finding]) -> None:
        """Keep what was found in a case, unless anything is wrong: that is to be seen again."""
        if all(finding.failure is None for finding in findings.values()):
            plain = [
                {**asdict(finding), "met": sorted(finding.met)} for finding in findings.values()
            ]
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps([_key(rule, name, case), plain]) + "\n")


def _key(rule: str, name: str, case: Case) -> str:
    return hashlib.blake2b(f"{rule}\n{name}\n{to_json(case)}".encode(), digest_size=16).hexdigest()


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Finding]]]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            key, plain = json.loads(line)
            found = [
                Finding(**{**one, "met": frozenset(one["met"]), "observed": tuple(one["observed"])})
                for one in plain
            ]
        except (ValueError, TypeError, KeyError):
            continue
        yield str(key), {one.rule: one for one in found}
