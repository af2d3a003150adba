"""The cases a job had judged before its elastic launcher restarted it: they are not run again.

The seed is the same, so that the same cases are drawn in the same order. The cases in the journal
pass at once. The search continues with the case in which the job was lost. Each case is one line
and each process has one file. A truncated line is ignored.
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
    """Open a job's journal, and return the job's seed.

    The first attempt starts a new journal; later attempts continue it.
    """
    noted = folder / "seed"
    if attempt:
        try:
            return int(noted.read_text(encoding="ascii"))
        except (OSError, ValueError):
            # Rank 0 is on another machine now, or was lost before it began: all is judged from the
            # first case.
            pass
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    noted.write_text(str(seed), encoding="ascii")
    return seed


class Journal:
    """One process's view of the journal.

    Args:
        folder: The journal's folder, as `begin` left it.
        process: A name that no other judging process of the job has.

    Attributes:
        known: The number of cases judged before.
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
        """Return the earlier findings of a case drawn for a rule; None if the case must be run."""
        return self._before.get(_key(rule, name, case))

    def note(self, rule: str, name: str, case: Case, findings: Mapping[str, Finding]) -> None:
        """Store a case's findings, unless a rule failed: a failing case must run again."""
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
            findings = [
                Finding(
                    **{
                        **finding,
                        "met": frozenset(finding["met"]),
                        "observed": tuple(finding["observed"]),
                    }
                )
                for finding in plain
            ]
        except (ValueError, TypeError, KeyError):
            continue
        yield str(key), {finding.rule: finding for finding in findings}
