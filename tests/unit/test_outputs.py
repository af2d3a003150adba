"""Tests of the checks of a session's output files."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_invariants.errors import CaseError
from ddp_invariants.session import outputs


def test_a_certificate_without_matplotlib_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The session names the command to install it, before any rank starts."""
    wanted = outputs.OutputFiles(certificate=tmp_path / "certificate.html")
    wanted.check()
    find = importlib.util.find_spec
    monkeypatch.setattr(
        outputs, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    with pytest.raises(CaseError, match=r"pip install 'ddp-invariants\[pages\]'"):
        wanted.check()
    outputs.OutputFiles(badge=tmp_path / "badge.json").check()


def test_the_rest_of_the_suite_needs_no_matplotlib() -> None:
    """The plugin, the report and the commands import without it."""
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import ddp_invariants.plugin, ddp_invariants.report.certificate.page\n"
        "import ddp_invariants.report.certificate.verifying, ddp_invariants.cli.certify\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
