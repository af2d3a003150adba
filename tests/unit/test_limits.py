"""Tests of the limit on the time of a test."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_test_that_waits_for_ever_ends_with_its_stack(tmp_path: Path) -> None:
    """A test that exceeds its limit ends, and the stack shows the line at which it waits."""
    file = tmp_path / "test_it.py"
    file.write_text(
        "import threading\n\ndef test_waits():\n    threading.Event().wait()\n", encoding="utf-8"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "limits", "-p", "no:cacheprovider", str(file)],
        cwd=tmp_path,
        env={**os.environ, "TEST_SECONDS": "1", "PYTHONPATH": str(ROOT / "tests" / "helpers")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 1
    assert "Timeout (0:00:01)!" in ended.stderr
    assert "test_it.py" in ended.stderr
