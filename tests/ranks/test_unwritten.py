"""Tests of files that cannot be written: no report is lost, and no success is claimed."""

from pathlib import Path

import pytest

from conftest import Session
from ddp_invariants.discovery.scope import Scope, UnderTest
from ddp_invariants.errors import UNWRITTEN
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.verdict import Violation
from ddp_invariants.search.trial import Options, Trial

SHORT = ["-n", "0", "-k", "shard8", "--cases", "5", "--max-world-size", "2", "--certificate"]


def test_a_violation_that_cannot_be_stored_is_reported_in_full(pool: Pool, tmp_path: Path) -> None:
    """The report of a violation does not need the file; one line says why there is none."""
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    trial = Trial(
        pool,
        UnderTest(Ddp("ddp_invariants.faults.bucketed:NeverDivides"), Sampler(), Scope(2)),
        Options(seed=1, cases=10, store=tmp_path / "file"),
    )
    with pytest.raises(Violation, match="GRAD-2 violated by") as caught:
        trial.certify("GRAD-2")
    report = " ".join(str(caught.value).split())
    assert "confirmed in 3 of 3 runs" in report
    assert "not stored" in report
    assert "could not be written" in report


@pytest.mark.parametrize(
    "command",
    [("pytest", "-p", "no:cacheprovider", "properties/"), ("ddp_invariants", "certify")],
    ids=["pytest", "certify"],
)
def test_a_certificate_that_cannot_be_written_is_no_success(
    session: Session, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """A session that cannot write its certificate ends with a status of its own, and says why."""
    (tmp_path / "it.html").mkdir()
    result = session(*command, *SHORT, str(tmp_path / "it.json"))
    assert result.returncode == UNWRITTEN, result.stdout
    assert f"certificate: {tmp_path / 'it.json'} could not be written: " in result.stdout
