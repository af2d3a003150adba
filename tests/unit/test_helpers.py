"""Tests of the plugins with which this suite tests itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HELPERS = Path(__file__).parents[1] / "helpers"


def under_pytest(
    folder: Path, plugin: str, test: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run one test with a plugin in a process of its own."""
    file = folder / "test_it.py"
    file.write_text(test, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", plugin, "-p", "no:cacheprovider", str(file)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HELPERS), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_test_that_waits_for_ever_ends_with_its_stack(tmp_path: Path) -> None:
    """A test that exceeds its limit ends, and the stack shows the line at which it waits."""
    test = "import threading\n\ndef test_waits():\n    threading.Event().wait()\n"
    ended = under_pytest(tmp_path, "limits", test, TEST_SECONDS="1")
    assert ended.returncode == 1
    assert "Timeout (0:00:01)!" in ended.stderr
    assert "test_it.py" in ended.stderr


@pytest.mark.parametrize("passes", [True, False])
def test_temporary_files_are_removed_with_those_of_other_programs_unless_a_test_fails(
    tmp_path: Path, *, passes: bool
) -> None:
    """The folder of a session goes with all that a test and its programs have left there."""
    (tmp_path / "temporary").mkdir()
    test = (
        "import subprocess, tempfile\n\ndef test_leaves(tmp_path):\n    tempfile.mkdtemp()\n"
        f"    subprocess.run(['mktemp', '-d'], check=True)\n    assert {passes}\n"
    )
    folder = tmp_path / "temporary"
    (folder / "ddp-invariants-tests-of-last-week").mkdir()
    os.utime(folder / "ddp-invariants-tests-of-last-week", (0, 0))
    ended = under_pytest(tmp_path, "temporary", test, TMPDIR=str(folder))
    assert ended.returncode == (0 if passes else 1), ended.stdout
    kept = [path for path in folder.rglob("*") if path.is_dir()]
    assert len(kept) >= 4 if not passes else kept == []
    assert not (folder / "ddp-invariants-tests-of-last-week").exists()


def test_a_session_that_fails_without_a_file_leaves_no_folder(tmp_path: Path) -> None:
    """An empty folder explains no failure."""
    (tmp_path / "temporary").mkdir()
    test = "def test_fails():\n    assert False\n"
    ended = under_pytest(tmp_path, "temporary", test, TMPDIR=str(tmp_path / "temporary"))
    assert ended.returncode == 1
    assert [*(tmp_path / "temporary").iterdir()] == []
