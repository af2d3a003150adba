"""Tests of the file from which a measurement goes on."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Self

import pytest
from click.testing import CliRunner

from ddp_invariants.cli import main
from ddp_invariants.errors import ResultsError
from ddp_invariants.faults.generated.choices import Composition
from ddp_invariants.proof import measure, tables
from ddp_invariants.proof.catalogue import SHIPPED
from ddp_invariants.proof.detection import Detection, totals
from ddp_invariants.proof.generated import right, wrong
from ddp_invariants.proof.measure import FaultSearch
from ddp_invariants.proof.mutants import judging, overlay
from ddp_invariants.proof.results import Results

JOBS = [FaultSearch(entry, 0, 40) for entry in right(1, 6)]
TABLE = tables.planned(JOBS, JOBS, {"right": 6}, "")


def results(path: Path, **options: int) -> Results:
    """Return the results of a measurement in a file."""
    return Results(path, options or TABLE.options, ())


ABOUT = ("suite", "torch", "options", "sources")
"""The names of what a line tells of its measurement."""
FOUND = [Detection(job.planted, job.seed, 40, simulated=30, real=10) for job in JOBS]


def test_results_are_read_as_they_were_kept(tmp_path: Path) -> None:
    """A measurement finds its own results in the file, and searches for the others."""
    path = tmp_path / "results.jsonl"
    kept = results(path)
    assert kept.known(JOBS) == []
    for detection in FOUND[:4]:
        kept.keep(detection)
    again = results(path)
    assert again.known(JOBS) == FOUND[:4]
    assert [job in again for job in JOBS] == [True] * 4 + [False] * 2


def test_the_witness_is_asked_about_each_fault_once(tmp_path: Path) -> None:
    """A measurement that goes on has the witness's answers in the file, also that one is not wrong."""
    path, wrongs, asked = tmp_path / "results.jsonl", [*islice(wrong(1), 4)], list[Composition]()

    def witness(compositions: Sequence[Composition]) -> dict[Composition, str]:
        asked.extend(compositions)
        return {each: f"wrong: {each.name}" for each in compositions if each != wrongs[1]}

    first = results(path).witnessed(wrongs[:2], witness)
    assert first == {wrongs[0]: f"wrong: {wrongs[0].name}"}
    again = results(path)
    again.keep(FOUND[0])
    assert [*again.witnessed(wrongs, witness)] == [wrongs[0], *wrongs[2:]]
    assert asked == wrongs
    assert results(path).known(JOBS) == FOUND[:1]
    assert [*results(path, right=7).witnessed(wrongs[:1], witness)] == wrongs[:1]
    assert asked == [*wrongs, wrongs[0]]


def test_a_line_with_other_content_is_no_result(tmp_path: Path) -> None:
    """Somebody may have written to the file."""
    path = tmp_path / "results.jsonl"
    results(path).keep(FOUND[0])
    about = {name: json.loads(path.read_text().splitlines()[1])[name] for name in ABOUT}
    with path.open("a") as file:
        for content in ({"told": ["a"]}, {"told": 3}, {"key": "a"}, {"key": "a", "search": []}):
            file.write(json.dumps({**about, **content}) + "\n")
    assert results(path).known(JOBS) == FOUND[:1]


def test_results_of_another_measurement_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other options, sources or versions have results of their own in the same file."""
    path = tmp_path / "results.jsonl"
    results(path).keep(FOUND[0])
    assert results(path, right=7).known(JOBS) == []
    results(path, right=7).keep(FOUND[1])
    altered = tmp_path / "altered.py"
    altered.touch()
    assert Results(path, TABLE.options, [altered]).known(JOBS) == []
    with monkeypatch.context() as patch:
        patch.setattr("ddp_invariants.proof.results.version", lambda _: "3.0")
        assert results(path).known(JOBS) == []
        results(path).keep(FOUND[1])
    assert results(path).known(JOBS) == FOUND[:1]


def test_a_line_that_was_cut_off_is_no_result(tmp_path: Path) -> None:
    """A process that is killed while it writes loses that result alone, and spoils no later one."""
    path = tmp_path / "results.jsonl"
    kept = results(path)
    for detection in FOUND[:2]:
        kept.keep(detection)
    path.write_bytes(path.read_bytes()[:-9])
    again = results(path)
    assert again.known(JOBS) == FOUND[:1]
    again.keep(FOUND[2])
    assert results(path).known(JOBS) == [FOUND[0], FOUND[2]]


@pytest.mark.parametrize(
    "content", [b"a list\nof things\n", b"a line", b'{"cases": 3}\n', b"\n", bytes(range(256))]
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    """Nothing is appended to a file that holds something else; one sentence names it."""
    path = tmp_path / "other.txt"
    path.write_bytes(content)
    with pytest.raises(ResultsError):
        results(path)
    done = CliRunner().invoke(main, ["faults", "--right", "6", "--resume", str(path)])
    assert done.exit_code == 64
    assert f"{path}: no results that this version of --resume has kept" in done.output
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_written_is_refused_before_any_search(tmp_path: Path) -> None:
    """No search is lost because its result has no place."""
    done = CliRunner().invoke(
        main, ["faults", "--right", "6", "--resume", str(tmp_path / "no folder" / "results")]
    )
    assert done.exit_code == 64
    assert "No such file or directory" in done.output
    assert "no violation found" not in done.output


def test_a_search_that_the_harness_could_not_make_is_made_again(tmp_path: Path) -> None:
    """It has no cases, is not kept, and its control does not count as judged.

    A failure that did not repeat is not kept either.
    """
    path = tmp_path / "results.jsonl"
    failed = replace(FOUND[0], cases=0, reason="the host was lost")
    results(path).keep(failed)
    results(path).keep(replace(FOUND[0], reason="a failure was seen but not repeated"))
    assert results(path).known(JOBS) == []
    table = replace(TABLE, searches=(failed, *FOUND[1:]))
    total = totals(table.searches)
    assert (total.controls, total.unjudged, tables.status(table)) == (5, 1, 1)


def test_a_wrapper_and_a_sampler_of_one_name_have_results_of_their_own(tmp_path: Path) -> None:
    """The reference is both."""
    jobs = [FaultSearch(entry, 0, 40) for entry in SHIPPED]
    kept = results(tmp_path / "results.jsonl")
    for job in jobs[:1]:
        kept.keep(Detection(job.planted, job.seed, 40))
    again = results(tmp_path / "results.jsonl")
    assert [job in again for job in jobs] == [True, *[False] * (len(jobs) - 1)]


class NoHosts:
    """Hosts of searches that start no ranks."""

    addresses = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def make_by(monkeypatch: pytest.MonkeyPatch, find: Callable[[FaultSearch], Detection]) -> None:
    """Have a function make all searches, without hosts and ranks."""

    def measured(_addresses: object, jobs: list[FaultSearch], *_: object) -> Iterator[Detection]:
        yield from map(find, jobs)

    monkeypatch.setattr(measure, "measure", measured)
    monkeypatch.setattr("ddp_invariants.cli.searching.Hosts", NoHosts)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of searches that are made without ranks, with an interrupt after four."""
    names = list[str]()
    altered = judging.chosen(overlay.locate("sampler", "reference"), operators=["arithmetic"])
    places = tuple({mutant.statement for mutant in altered[:-2]})
    whole = replace(FOUND[0], executed=places)

    def find(job: FaultSearch) -> Detection:
        if len(names) == 4:
            names.append("interrupted")
            raise KeyboardInterrupt
        names.append(job.planted.name)
        return replace(whole, planted=job.planted, seed=job.seed, cases=job.cases)

    make_by(monkeypatch, find)
    return names


def test_an_interrupted_measurement_goes_on_where_it_was(tmp_path: Path, made: list[str]) -> None:
    """The same command makes only the searches that the file lacks, and counts all of them."""
    path = tmp_path / "results.jsonl"
    arguments = ["faults", "--right", "6", "--control-cases", "240", "--resume", str(path)]
    first = CliRunner().invoke(main, arguments)
    assert first.exit_code == 130, first.output
    assert "160 cases of 4 controls (120 runs simulated, 40 on real ranks" in first.output
    second = CliRunner().invoke(main, [*arguments, "--json"])
    assert second.exit_code == 0, second.output
    plain = json.loads(second.stdout)
    assert (plain["totals"]["controls"], plain["totals"]["control_cases"]) == (6, 240)
    assert len({*made}) == len(made) == 7  # Six searches and the interrupt.
    gloo = CliRunner().invoke(main, [*arguments, "--backend", "gloo"])
    assert "240 cases of 6 controls" in gloo.output
    assert len(made) == 13
    third = CliRunner().invoke(main, arguments)
    assert third.exit_code == 0
    assert "240 cases of 6 controls (180 runs simulated, 60 on real ranks" in third.output
    assert len(made) == 13


def test_an_interrupted_measurement_on_mutants_goes_on_where_it_was(
    tmp_path: Path, made: list[str]
) -> None:
    """Each run copies into a folder of its own, and searches no mutant that no case executes."""
    path = tmp_path / "results.jsonl"
    arguments = ["mutate", "sampler:reference", "--only", "arithmetic", "--resume", str(path)]
    first = CliRunner().invoke(main, arguments)
    assert first.exit_code == 130, first.output
    assert "interrupted after 3 of 6 searches" in first.output
    whole = CliRunner().invoke(main, [*arguments, "--json"])
    assert whole.exit_code == 1, whole.output
    plain = json.loads(whole.stdout)
    assert (len(plain["mutants"]), plain["totals"]["not executed"]) == (8, 2)
    # The unaltered copy, six mutants whose statements it executes, and the interrupt.
    assert len({*made}) == len(made) == 8
    part = CliRunner().invoke(main, [*arguments, "--lines", "1-60"])
    assert part.exit_code == 1
    assert len(made) == 8  # A part of the mutants has the same results.
    other = CliRunner().invoke(main, [*arguments, "--cases", "200"])
    assert other.exit_code == 1
    assert len(made) == 15


def test_mutants_of_an_accused_copy_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy without a change must hold; otherwise no result would be about the mutants."""
    found = list[str]()

    def find(job: FaultSearch) -> Detection:
        found.append(job.planted.name)
        return Detection(job.planted, job.seed, 3, rule="SHARD-1")

    make_by(monkeypatch, find)
    done = CliRunner().invoke(main, ["mutate", "sampler:reference", "--only", "arithmetic"])
    assert (done.exit_code, found) == (2, ["unaltered"]), done.output
    assert "the unaltered copy does not hold: SHARD-1" in done.output
