"""The page on measurements of the judge is made of the tables that `faults --json` prints."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from ddp_invariants.faults.generated.choices import Composition
from ddp_invariants.proof import generated, tables
from ddp_invariants.proof.catalogue import CatalogueEntry, all_entries
from ddp_invariants.proof.detection import Detection
from ddp_invariants.proof.measure import FaultSearch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # A folder of scripts, which is no package.
detection: Any = importlib.import_module("detection")
right: Any = importlib.import_module("right")
OPTIONS: dict[str, Any] = {
    "catalogue": None,
    "only": [],
    "backend": "auto",
    "generated": None,
    "right": None,
    "seed": 0,
    "seeds": 1,
    "cases": None,
    "control_cases": 0,
}
HOST = (
    *("each", "end", "gathered", "before", "backward", "forwards"),
    *("together", "kept", "copied"),
)
HALVES, ROUNDS, SKIPS = (
    generated._entry(composition, "it differs")
    for composition in (
        Composition("ddp", HOST, "halve", "always"),
        Composition("ddp", HOST, "round", "bias"),
        Composition("sampler", ("mirrored", "python", "end"), "skip", "third epoch"),
    )
)


def measured(*searches: Detection, **options: Any) -> tables.Table:
    """Return the table of a measurement with these results."""
    jobs = [FaultSearch(search.planted, search.seed) for search in searches]
    made = tables.planned(jobs, jobs, {**OPTIONS, **options}, "")
    return replace(made, date="2026-11-27", searches=searches)


def caught(entry: CatalogueEntry, rule: str = "", cases: int = 3) -> Detection:
    """Return the search that caught a fault, by the rule that must notice it if none is named.

    It names the first of the causes that were planted.
    """
    cause = next(iter(entry.causes), "it")
    return Detection(entry, 0, cases, rule=rule or entry.rule, cause=cause, case="world_size=2")


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that gets the page."""
    monkeypatch.setattr(detection, "DOCS", tmp_path)
    return tmp_path


def written(docs: Path, *made: tables.Table) -> str:
    """Return the page that the script makes of some tables."""
    files = []
    for number, table in enumerate(made):
        files.append(docs / f"{number}.json")
        files[-1].write_text(json.dumps(tables.to_plain(table)))
    result = CliRunner().invoke(detection.main, [str(file) for file in files])
    assert result.exit_code == 0, result.output
    return (docs / "faults.md").read_text()


def texts(picture: Path) -> list[str]:
    """Return the texts of a picture."""
    return [node.text or "" for node in ET.fromstring(picture.read_text()).iter() if node.text]


def test_composed_faults_have_a_matrix_and_their_witnesses(docs: Path) -> None:
    """A cell counts the faults that were caught; those that escaped are listed."""
    page = written(
        docs,
        measured(
            caught(HALVES),
            replace(caught(ROUNDS, "LIVE-5", 9), cause="halved"),
            Detection(SKIPS, 0, 300),
            generated=3,
            seed=7,
            cases=300,
        ),
    )
    assert "ddp-invariants faults --generated 3 --seed 7 --cases 300 --control-cases 0\n" in page
    assert "| caught | 2 of 3 searches (66.7 %) |" in page
    assert "| by the rule that must notice | 1 (33.3 %) |" in page
    assert "| with a cause or a condition | 2 (66.7 %) |" in page
    assert "| with another cause | 1 |" in page
    assert f"| {SKIPS.name} | {SKIPS.docstring} |" in page
    assert f"| {ROUNDS.name} | halved | `world_size=2` |" in page
    assert f"| {ROUNDS.name} | GRAD, COMM | LIVE-5 | `world_size=2` |" in page
    assert "| round | the gradients are sent in bfloat16 | 1 | 1 | 9 | LIVE-5 1× |" in page
    assert "2026-11-27" in page
    shown = texts(docs / "faults-composed.svg")
    assert {"always", "bias", "third epoch", "halve", "round", "skip", "1/1", "0/1"} <= {*shown}


def test_planted_faults_and_controls_are_counted(docs: Path) -> None:
    """A control that was accused is listed with its rule and case."""
    entries = all_entries()
    faults = [entry for entry in entries if entry.is_fault][:3]
    control = next(entry for entry in entries if not entry.is_fault)
    page = written(
        docs,
        measured(*map(caught, faults), caught(control, "GRAD-2", 40), control_cases=40),
        measured(replace(caught(control), rule="", cases=50), right=1, control_cases=50),
    )
    assert "| caught | 3 of 3 searches |" in page
    assert "No fault escaped." in page
    assert f"| {control.module}: {control.name} | GRAD-2 | `world_size=2` |" in page
    assert "| controls accused | 1 |" in page
    assert "## Right implementations" in page
    assert "| cases of controls | 50 |" in page
    assert {faults[0].module, faults[0].rule} <= {*texts(docs / "faults-planted.svg")}


def test_a_file_that_holds_no_table_is_refused(docs: Path) -> None:
    """The sentence names the file."""
    (docs / "other.json").write_text("{}")
    result = CliRunner().invoke(detection.main, [str(docs / "other.json")])
    assert result.exit_code == 2
    assert "no table of this version of faults --json" in " ".join(result.output.split())


def test_cases_of_right_implementations_are_gathered_over_runs(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part counts once; a part that is incomplete, or holds faults, is refused."""
    monkeypatch.setattr(right, "GATHERED", docs / "right.jsonl")
    monkeypatch.setattr(right, "PAGE", docs / "right.md")
    control = next(entry for entry in all_entries() if not entry.is_fault)
    judged = Detection(control, 0, 50, simulated=40, real=11)
    first = measured(judged, right=1, control_cases=50)
    second = replace(
        measured(replace(judged, rule="GRAD-2"), right=1, control_cases=50), shard="2/2"
    )

    def add(table: tables.Table, *options: str) -> str:
        (docs / "part.json").write_text(json.dumps(tables.to_plain(table)))
        result = CliRunner().invoke(right.main, [str(docs / "part.json"), *options])
        return "" if result.exit_code == 0 else " ".join(result.output.split())

    assert add(first, "--commit", "abc") == ""
    assert "| cases | 50 |" in (docs / "right.md").read_text()
    assert "| accused | 0 |" in (docs / "right.md").read_text()
    again, part = add(first, "--commit", "def"), add(second, "--commit", "def")
    assert "gathered already by: ddp-invariants faults --right 1" in again
    assert "gathered already by: ddp-invariants faults --right 1" in part
    second = replace(second, population="of another seed")
    limited = replace(second, options={**second.options, "real_cases": 5})
    assert detection.command_of(limited).endswith("--control-cases 50 --real-cases 5 --shard 2/2")
    assert "--commit is needed" in add(second)
    assert "0 of 1 implementations were judged" in add(
        replace(second, searches=()), "--commit", "def"
    )
    assert "no measurement of faults --right" in add(measured(judged), "--commit", "def")
    assert add(second, "--commit", "def") == ""
    page = (docs / "right.md").read_text()
    assert "| runs in the simulation | 80 |" in page
    assert "| accused | 1 |" in page
    assert (
        f"`ddp-invariants faults --right 1 --control-cases 50 --shard 2/2` | 1 | 50 | 40 | {control.name}: GRAD-2 |"
        in page
    )
    mended = replace(second, searches=(judged,))
    assert add(mended, "--commit", "123") == ""
    page = (docs / "right.md").read_text()
    assert "| runs in the simulation | 80 |" in page
    assert "| accused | 0 |" in page
    assert "| accused before the suite was mended | 1 |" in page
    assert "gathered already by" in add(mended, "--commit", "456")
    assert "gathered already by" in add(replace(mended, shard="4/6"), "--commit", "456")
    assert add(replace(mended, shard="3/6"), "--commit", "456") == ""
