"""Tests of the script that checks a comparison's claims in plain torch."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "claims.py"


def test_a_claim_is_confirmed_denied_or_not_checked(tmp_path: Path) -> None:
    """Both interpreters answer each claim that counts; one wrong claim fails the check."""
    rows = [
        ("discrete: argument dim", "default 0", "default 0", True),
        ("discrete: surface torch.distributed.no_such_name", "none", "none", True),
        ("discrete: surface torch.optim.SGD.no_such_name", "none", "callable", True),
        ("discrete: surface attribute no_such_name of a wrapped module", "none", "none", True),
        ("discrete: surface attribute device_ids of a wrapped module", "None", "None", True),
        ("discrete: surface torch.optim.SGD.state_dict", "none", "none", True),
        ("discrete: warning UserWarning: a warning", "none", "0: a warning", True),
        ("rounding: forward; with batches", "1.0", "1.1", False),
    ]
    report = tmp_path / "report.json"
    found = [dict(zip(("name", "old", "new", "counts"), row, strict=True)) for row in rows]
    report.write_text(json.dumps({"found": found}), encoding="utf-8")
    command = [sys.executable, str(SCRIPT), sys.executable, sys.executable, str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines() == [
        "OTHERWISE: surface torch.optim.SGD.no_such_name",
        "  old none",
        "  new none",
        "not checked: warning UserWarning: a warning",
        "7 claims: 5 as reported, 1 otherwise, 1 not checked",
    ]
