"""The reports for upstream: their pages, and what the scripts about torch print."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


sys.path.append(str(ROOT / "benchmarks"))  # A folder of scripts, which is no package.
environments = importlib.import_module("environments")
runner = importlib.import_module("reports")


def test_the_scripts_about_torch_print_what_their_reports_say() -> None:
    """Each defect of torch is still there; a report of a defect that is gone must go, too."""
    reports = [report for report in runner.read_all() if report.library == "torch"]
    assert len(reports) > 20
    printed = runner.printed(sys.executable, reports)
    assert printed == {report.name: report.seen for report in reports}


@pytest.mark.parametrize("report", runner.read_all(), ids=lambda report: report.name)
def test_a_report_has_a_script_a_row_in_the_list_and_all_its_parts(
    report: Any,
) -> None:
    """A page says what is seen, what is expected and why, and its script stands beside it."""
    page = report.page.read_text(encoding="utf-8")
    assert report.library in environments.LIBRARIES
    assert report.seen
    assert f"[`{report.name}.py`]({report.name}.py)" in page
    assert len(report.script.read_text(encoding="utf-8").splitlines()) <= 70
    assert f"({report.name}.md)" in (runner.REPORTS / "README.md").read_text(encoding="utf-8")
    for part in ("| rule |", "| upstream |", "## Expected", "## Cause"):
        assert part in page
