"""Run the scripts in docs/reports against the real libraries, and compare what they print.

    python benchmarks/reports.py [--write] [NAME]...

Each library is installed into an environment of its own, in a temporary folder, over the packages of
this interpreter. A report on torch runs in this interpreter. The lines of all ranks, sorted, must be
the lines under *Seen* in the report. With `--write`, the script writes them there.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from environments import LIBRARIES, installed

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "docs" / "reports"
SEEN = re.compile(r"(## Seen\n\n```text\n)(.*?)(```\n)", re.DOTALL)


@dataclass(frozen=True)
class Report:
    """A report: its page, its script, and what the script printed when the report was written.

    Attributes:
        name: The name of the page and of the script, without the ending.
        ranks: The number of processes.
        seen: The printed lines of all ranks, sorted.
    """

    name: str
    ranks: int
    seen: list[str]

    @property
    def page(self) -> Path:
        """The page."""
        return REPORTS / f"{self.name}.md"

    @property
    def script(self) -> Path:
        """The script."""
        return REPORTS / f"{self.name}.py"

    @property
    def library(self) -> str:
        """The name of the library, which begins the report's name; some begin another's name."""
        return max((each for each in LIBRARIES if self.name.startswith(f"{each}_")), key=len)


def read(page: Path) -> Report:
    """Read a report's page."""
    text = page.read_text(encoding="utf-8")
    seen = SEEN.search(text)
    if seen is None:
        raise SystemExit(f"{page} has no block of text under the heading Seen.")
    ranks = re.search(r"torchrun --nproc-per-node (\d+)", text)
    return Report(page.stem, int(ranks[1]) if ranks else 1, seen[2].splitlines())


def read_all() -> list[Report]:
    """Read all reports."""
    return [read(page) for page in sorted(REPORTS.glob("*.md")) if page.stem != "README"]


def printed(python: str | Path, reports: Sequence[Report]) -> dict[str, list[str]]:
    """Run reports in an interpreter, and return the lines that each prints, sorted."""
    asked = [part for report in reports for part in (str(report.script), str(report.ranks))]
    with tempfile.TemporaryDirectory() as folder:
        host = Path(__file__).with_name("report_host.py")
        subprocess.run([python, host, folder, *asked], check=True)
        return {
            report.name: sorted(
                line
                for rank in range(report.ranks)
                for line in (Path(folder) / f"{report.name}.{rank}")
                .read_text(encoding="utf-8")
                .splitlines()
            )
            for report in reports
        }


def run_library(library: str, reports: Sequence[Report]) -> dict[str, list[str]]:
    """Return what the reports on a library print, in an environment that has it."""
    if library == "torch":
        return printed(sys.executable, reports)
    with tempfile.TemporaryDirectory() as folder:
        return printed(installed(Path(folder), library), reports)


def rewrite(report: Report, lines: Sequence[str]) -> None:
    """Write printed lines into a report's page."""
    text = report.page.read_text(encoding="utf-8")
    block = "".join(f"{line}\n" for line in lines)
    report.page.write_text(
        SEEN.sub(lambda found: found[1] + block + found[3], text), encoding="utf-8"
    )


def main() -> None:
    """Run the named reports, all if none is named; the exit status is 1 if any prints other lines."""
    names = [name for name in sys.argv[1:] if name != "--write"]
    asked = [report for report in read_all() if not names or report.name in names]
    changed = False
    for library in sorted({report.library for report in asked}):
        reports = [report for report in asked if report.library == library]
        lines = run_library(library, reports)
        for report in reports:
            same = lines[report.name] == report.seen
            changed |= not same
            print(f"{report.name}: {'as reported' if same else 'CHANGED'}", flush=True)
            if not same:
                print("".join(f"    {line}\n" for line in lines[report.name]), end="")
            if "--write" in sys.argv:
                rewrite(report, lines[report.name])
    sys.exit(changed and "--write" not in sys.argv)


if __name__ == "__main__":
    main()
