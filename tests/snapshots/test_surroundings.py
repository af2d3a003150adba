"""Commands whose surroundings lack something: streams, a folder, files, a locale, a home.

Status 1 says that something is violated, so no failure of the system may end with it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from ddp_invariants.cli import entry
from ddp_invariants.errors import CERTIFIED, INCONCLUSIVE, USAGE, VIOLATED, unusable
from ddp_invariants.report.certificate.verifying import read

COMMAND = f"{sys.executable} -m ddp_invariants"
NONE_LEFT = "ddp-invariants: [Errno 28] No space left on device\n"


def shell(folder: Path, script: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a script of bash."""
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ("rules > /dev/full", INCONCLUSIVE, NONE_LEFT),
        ("rules --json > /dev/full", INCONCLUSIVE, NONE_LEFT),
        ("rules > /dev/full 2> /dev/full", INCONCLUSIVE, ""),
        ("rules GRAD-2 >&-", CERTIFIED, ""),
        ("rules GRAD-2 <&- >&- 2>&-", CERTIFIED, ""),
        ("rules NONE-1 2>&-", USAGE, ""),
        ("rules NONE-1 2> /dev/full", INCONCLUSIVE, ""),
        ("verify none.json >&- 2>&-", USAGE, ""),
    ],
)
def test_no_output_that_is_lost_looks_like_a_verdict(
    tmp_path: Path, words: str, status: int, told: str
) -> None:
    """A full disk ends a command with one sentence, and a closed stream ends none."""
    done = shell(tmp_path, f"{COMMAND} {words}")
    assert (done.returncode, done.stderr) == (status, told)


def test_a_reader_that_leaves_gets_no_message_and_no_verdict(tmp_path: Path) -> None:
    """`| head` ends a command before it has printed all; no traceback follows."""
    done = shell(tmp_path, f"{COMMAND} rules --json | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (INCONCLUSIVE, "")


@pytest.mark.parametrize("streams", [">&-", "<&- >&- 2>&-", "> /dev/full"])
def test_a_session_judges_though_nothing_can_be_printed(tmp_path: Path, streams: str) -> None:
    """A closed stream loses no verdict; where the disk is full, the session has none."""
    command = f"{COMMAND} certify -n 0 --profile quick -k shard1 {streams}"
    full = streams == "> /dev/full"
    done = shell(tmp_path, command)
    assert done.returncode == (INCONCLUSIVE if full else CERTIFIED)
    assert done.stderr == (NONE_LEFT if full else "")


def test_a_session_leaves_only_its_own_folder_and_what_it_was_asked_for(tmp_path: Path) -> None:
    """Neither Hypothesis nor torch leaves a folder; the certificate has the command as it was typed."""
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    certify = "certify -n 1 --profile quick --seed 7 -k 'shard1_ or shard2' --certificate it.json"
    script = (
        "unset TORCHINDUCTOR_CACHE_DIR HYPOTHESIS_STORAGE_DIRECTORY\n"
        f"{COMMAND} {certify} && {COMMAND} doctor"
    )
    done = shell(here, script, TMPDIR=str(temporary))
    assert done.returncode == CERTIFIED, done.stdout + done.stderr
    assert {path.name for path in here.iterdir()} == {".ddp-invariants", "it.html", "it.json"}
    assert [*temporary.iterdir()] == []
    assert read(here / "it.json").setting.command == f"ddp-invariants {certify}"


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    """A command needs its current folder, and says so."""
    done = shell(tmp_path, f"mkdir gone; cd gone; rmdir ../gone; {COMMAND} certify")
    assert done.returncode == USAGE
    assert done.stderr == "ddp-invariants: the current folder does not exist any more\n"


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"HOME": "/nonexistent", "TMPDIR": "/nonexistent"},
        {"TERM": "nonsense", "COLUMNS": "x"},
        {"COLUMNS": "1"},
    ],
    ids=lambda environment: next(iter(environment)),
)
def test_a_poor_environment_changes_no_verdict(tmp_path: Path, environment: dict[str, str]) -> None:
    """Locales without Unicode, no home, no terminal: a rule is printed, and a file is refused."""
    rule = shell(tmp_path, f"{COMMAND} rules GRAD-2", **environment)
    assert (rule.returncode, rule.stderr) == (CERTIFIED, "")
    refused = shell(tmp_path, f"{COMMAND} verify ü.json", **environment)
    assert refused.returncode == USAGE
    assert "Traceback" not in refused.stderr
    assert ".json" in refused.stderr


@pytest.mark.parametrize("limit", ["-n 12", "-n 20", "-f 0", "-v 600000"])
def test_limits_of_the_system_end_a_session_without_a_verdict(tmp_path: Path, limit: str) -> None:
    """Too few files, or none that may grow, are told in one sentence, and accuse nobody."""
    certify = f"certify -n 0 --profile quick -k shard1 --certificate {tmp_path}/it.json"
    done = shell(tmp_path, f"ulimit {limit}; {COMMAND} {certify}")
    assert done.returncode not in (CERTIFIED, VIOLATED), done.stdout
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 2


def test_a_mistake_of_the_suite_is_inconclusive(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error that nobody expects keeps its traceback, and ends with no verdict."""

    def fail(**_: str) -> None:
        raise KeyError("none")

    monkeypatch.setattr(entry, "main", fail)
    with pytest.raises(SystemExit) as ended:
        entry.run()
    assert ended.value.code == INCONCLUSIVE
    told = capsys.readouterr().err
    assert "KeyError: 'none'" in told
    assert told.endswith("the suite itself failed; please report the lines above\n")


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        ("nothing was judged", INCONCLUSIVE, "nothing was judged\n"),
        (VIOLATED, VIOLATED, ""),
        (None, CERTIFIED, ""),
    ],
)
def test_an_end_with_a_text_is_printed_and_no_verdict(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: object,
    status: int,
    told: str,
) -> None:
    """`sys.exit` of a file of the user may end with a text, a number or nothing."""

    def leave(**_: str) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(entry, "main", leave)
    with pytest.raises(SystemExit) as ended:
        entry.run()
    assert (ended.value.code, capsys.readouterr().err) == (status, told)


def test_a_system_that_runs_out_of_something_is_no_usage_error() -> None:
    """An error about a named file is the user's, unless the system has run out of something."""
    assert unusable(FileNotFoundError(2, "no such file", "a")) == USAGE
    assert unusable(OSError(24, "too many open files", "/dev/null")) == INCONCLUSIVE
    assert unusable(OSError(28, "no space left", "a")) == INCONCLUSIVE
