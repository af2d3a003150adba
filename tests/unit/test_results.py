"""Tests of the file from which a measurement goes on."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest
from click.testing import CliRunner

from ddp_invariants.cli import main
from ddp_invariants.errors import ResultsError
from ddp_invariants.proof import measure, tables
from ddp_invariants.proof.detection import Detection
from ddp_invariants.proof.generated import right
from ddp_invariants.proof.measure import FaultSearch
from ddp_invariants.proof.results import Results

JOBS = [FaultSearch(entry, 0, 40) for entry in right(1, 6)]
TABLE = tables.planned(JOBS, JOBS, {"right": 6}, "")
FOUND = [Detection(job.planted, job.seed, 40, simulated=30, real=10) for job in JOBS]


def test_results_are_read_as_they_were_kept(tmp_path: Path) -> None:
    """A measurement finds its own results in the file, and searches for the others."""
    path = tmp_path / "results.jsonl"
    kept = Results(path, TABLE)
    assert kept.known(JOBS) == []
    for detection in FOUND[:4]:
        kept.keep(detection)
    again = Results(path, TABLE)
    assert again.known(JOBS) == FOUND[:4]
    assert [job in again for job in JOBS] == [True] * 4 + [False] * 2


def test_results_of_another_measurement_are_not_taken(tmp_path: Path) -> None:
    """Other options or another version of torch have results of their own in the same file."""
    path = tmp_path / "results.jsonl"
    Results(path, TABLE).keep(FOUND[0])
    for other in (replace(TABLE, options={"right": 7}), replace(TABLE, torch="3.0")):
        assert Results(path, other).known(JOBS) == []
        Results(path, other).keep(FOUND[1])
    assert Results(path, TABLE).known(JOBS) == FOUND[:1]


def test_a_line_that_was_cut_off_is_no_result(tmp_path: Path) -> None:
    """A process that is killed while it writes loses that result alone, and spoils no later one."""
    path = tmp_path / "results.jsonl"
    kept = Results(path, TABLE)
    for detection in FOUND[:2]:
        kept.keep(detection)
    path.write_bytes(path.read_bytes()[:-9])
    again = Results(path, TABLE)
    assert again.known(JOBS) == FOUND[:1]
    again.keep(FOUND[2])
    assert Results(path, TABLE).known(JOBS) == [FOUND[0], FOUND[2]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a list\nof things\n", "no results of faults --resume"),
        ('{"cases": 3}\n', "no results of this version of faults --resume (KeyError: 'suite')"),
        ("[1]\n", "no results of this version"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Nothing is appended to a file that holds something else; one sentence names it."""
    path = tmp_path / "other.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ResultsError) as refused:
        Results(path, TABLE)
    assert str(refused.value).startswith(f"{path}: ")
    assert words in str(refused.value)
    done = CliRunner().invoke(main, ["faults", "--right", "6", "--resume", str(path)])
    assert done.exit_code == 64
    assert f"{path}: no results" in done.output
    assert path.read_text(encoding="utf-8") == text


def test_an_interrupted_measurement_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command makes only the searches that the file lacks, and counts all of them."""
    path, made = tmp_path / "results.jsonl", list[str]()
    arguments = ["faults", "--right", "6", "--control-cases", "240", "--resume", str(path)]

    class NoHosts:
        """Hosts of searches that start no ranks."""

        addresses = ()

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def measured(_addresses: object, jobs: list[FaultSearch], *_: object) -> Iterator[Detection]:
        for job in jobs:
            if len(made) == 4:
                made.append("interrupted")
                raise KeyboardInterrupt
            made.append(job.planted.name)
            yield Detection(job.planted, job.seed, job.cases, simulated=30, real=10)

    monkeypatch.setattr(measure, "measure", measured)
    monkeypatch.setattr("ddp_invariants.cli.searching.Hosts", NoHosts)
    first = CliRunner().invoke(main, arguments)
    assert first.exit_code == 130, first.output
    assert "160 cases of 4 controls (120 runs simulated, 40 on real ranks" in first.output
    second = CliRunner().invoke(main, [*arguments, "--json"])
    assert second.exit_code == 0, second.output
    plain = json.loads(second.stdout)
    assert (plain["totals"]["controls"], plain["totals"]["control_cases"]) == (6, 240)
    assert len({*made}) == len(made) == 7
    third = CliRunner().invoke(main, arguments)
    assert third.exit_code == 0
    assert "240 cases of 6 controls (180 runs simulated, 60 on real ranks" in third.output
    assert len(made) == 7
