"""Tests of the history of sessions: it stays small and readable, and tells what changed."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from past_sessions import SESSION, VIOLATED, with_rules

from ddp_invariants.cli import main
from ddp_invariants.records import history
from ddp_invariants.report.history import Change, changes, page, text


def test_what_is_written_is_read_and_garbage_is_left_out(tmp_path: Path) -> None:
    """A truncated line spoils neither the lines before it nor the line after it."""
    path = tmp_path / "new" / "history.jsonl"
    history.append(SESSION, path)
    with path.open("ab") as file:
        file.write(b'\xff\n{"kind": "session"}\n[1]\n' + json.dumps(asdict(SESSION))[:99].encode())
    history.append(VIOLATED, path)
    assert history.read(path) == (SESSION, VIOLATED)


def test_sessions_that_end_together_lose_no_line(tmp_path: Path) -> None:
    """Each line is appended whole."""
    path = tmp_path / "history.jsonl"
    sessions = [replace(SESSION, seed=seed, command="x" * 5000) for seed in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: history.append(each, path), sessions))
    assert sorted(each.seed for each in history.read(path)) == [*range(40)]


def test_the_file_stays_small_and_keeps_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest lines are removed if the file would become too long."""
    monkeypatch.setattr(history, "MOST_BYTES", 9000)
    monkeypatch.setattr(history, "KEPT_BYTES", 4500)
    path = tmp_path / "history.jsonl"
    for seed in range(60):
        history.append(replace(SESSION, seed=seed), path)
        assert path.stat().st_size <= 9000
    seeds = [each.seed for each in history.read(path)]
    assert seeds == [*range(seeds[0], 60)]
    assert 5 < len(seeds) < 30
    assert [each.name for each in tmp_path.iterdir()] == ["history.jsonl"]


def test_a_change_is_one_since_the_last_verdict_of_the_same_implementation() -> None:
    """Other implementations, and rules without a verdict of their own, change nothing."""
    sessions = [
        SESSION,
        replace(VIOLATED, ddp="another"),
        with_rules(GRAD_1="inconclusive", GRAD_2="not tested"),
        VIOLATED,
        VIOLATED,
        with_rules(GRAD_2="inconclusive"),
        SESSION,
    ]
    assert changes(sessions) == [
        Change(first=True),
        Change(first=True),
        Change(worse=("GRAD-1",)),
        Change(worse=("GRAD-2",), better=("GRAD-1",)),
        Change(),
        Change(),
        Change(better=("GRAD-2",)),
    ]


def test_the_table_shows_the_newest_last_and_counts_the_older() -> None:
    """A row has the levels, and the rules that are new or gone."""
    lines = text([SESSION, SESSION, VIOLATED, SESSION], 2).splitlines()
    assert lines[0].split()[:3] == ["began", "ddp", "sampler"]
    rows = [line for line in lines if line.startswith("2026-01-02 03:04")]
    assert ["new: GRAD-2" in rows[0], "gone: GRAD-2" in rows[1], len(rows)] == [True, True, 2]
    assert lines[-1] == "2 older sessions: --last 4"
    assert text([], 2).startswith("no session is recorded here")


def test_the_page_has_what_changed_open_and_the_rest_folded() -> None:
    """A rule with one verdict is folded; nothing that an implementation says is markup."""
    made = page([SESSION, replace(VIOLATED, ddp="a<b>:C"), SESSION], 20)
    opened, _, folded = made.partition("<details>")
    assert "GRAD-2" in opened
    assert "GRAD-1" in folded
    assert "a&lt;b&gt;:C" in made
    assert "ddp-invariants replay 525cc8" in made
    assert "://" not in made


def test_the_command_lists_writes_and_prints_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without sessions is no error; a page that cannot be written is."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    assert runner.invoke(main, ["history"]).exit_code == 0
    assert json.loads(runner.invoke(main, ["history", "--json"]).output) == []
    history.append(SESSION)
    history.append(VIOLATED)
    done = runner.invoke(main, ["history", "--html", "it.html"])
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "page: it.html")
    (last,) = json.loads(runner.invoke(main, ["history", "--json", "--last", "1"]).output)
    assert last == json.loads(json.dumps(asdict(VIOLATED)))
    assert runner.invoke(main, ["history", "--html", "no/such.html"]).exit_code == 73
