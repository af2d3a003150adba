"""The workflows that `init` writes and the action run as they are: each step runs with stubs."""

import datetime as dt
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from readme import ROOT, WORKFLOW, workflow

from ddp_invariants.cli import compare, main
from ddp_invariants.upgrades.accepted import accepted_changes
from ddp_invariants.upgrades.baseline import Environment
from ddp_invariants.upgrades.outcome import gated

STUB = f"""#!{sys.executable}
import json, os, shutil, sys
from pathlib import Path
with open(os.environ["LOG"], "a") as log:
    log.write(json.dumps([sys.argv[0], *sys.argv[1:]]) + "\\n")
if sys.argv[1:3] == ["-m", "venv"]:
    folder = Path(sys.argv[3]) / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "pip", "ddp-invariants"):
        shutil.copy(sys.argv[0], folder / name)
"""
"""A stand-in for every program of a step. It writes its words to a log; as Python it makes venvs."""


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """Return a folder with a program `python` that is a stub."""
    folder = tmp_path / "stubs"
    folder.mkdir()
    (folder / "python").write_text(STUB)
    (folder / "python").chmod(0o755)
    return folder


def evaluated(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the expressions of GitHub in it replaced."""
    return re.sub(r"\$\{\{ (.+?) \}\}", lambda match: values[match[1]], text)


def calls(
    stubs: Path, steps: Sequence[Any], values: Mapping[str, str], environment: Mapping[str, str]
) -> list[list[str]]:
    """Run the `run` steps whose condition holds, as a runner would, and return the stubs' calls."""
    at = stubs.parent
    for step in steps:
        condition = step.get("if", "").removeprefix("inputs.command == ").strip("'")
        if "run" not in step or condition not in ("", values.get("inputs.command")):
            continue
        own = {name: evaluated(text, values) for name, text in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
            cwd=at,
            env={
                "PATH": f"{stubs}:/usr/bin:/bin",
                "LOG": str(at / "log"),
                "RUNNER_TEMP": str(at),
                **environment,
                **own,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (at / "log").read_text().splitlines()]


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of a command line of this suite; this version must accept it."""
    with main.make_context("ddp-invariants", ["rules"]) as context:
        command = main.get_command(context, words[0])
        assert command is not None
        return command.make_context(words[0], [*words[1:]], parent=click.Context(main)).params


def suites(listed: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """Yield the words of each call of this suite."""
    return (words[1:] for words in listed if words[0].endswith("ddp-invariants"))


@pytest.mark.parametrize(
    ("new", "installed"),
    [
        (
            "nightly",
            ["--pre", "torch", "--index-url", "https://download.pytorch.org/whl/nightly/cpu"],
        ),
        ("2.15.0", ["torch==2.15.0", "--index-url", "https://download.pytorch.org/whl/cpu"]),
    ],
)
def test_the_workflow_of_an_upgrade_runs_as_it_is_written(
    stubs: Path, new: str, installed: list[str]
) -> None:
    """`init --upgrade` writes a workflow whose steps run, and whose command this version accepts.

    Both environments get builds for CPUs. The report is kept, and the accepted changes are read.
    """
    at = stubs.parent
    done = CliRunner().invoke(main, ["init", str(at), "--upgrade"])
    assert done.exit_code == 0, done.output
    plain = yaml.safe_load((at / ".github/workflows/torch-upgrade.yml").read_text(encoding="utf-8"))
    job = plain["jobs"]["compare"]
    environment = {
        name: evaluated(text, {"inputs.new || 'nightly'": new}) for name, text in job["env"].items()
    }
    listed = calls(stubs, job["steps"], {}, environment)
    pips = [words for words in listed if words[0].endswith("pip")]
    assert ["new/bin/pip", "install", *installed] in pips
    assert ["old/bin/pip", "install", f"torch=={environment['OLD']}"] == pips[0][:3]
    assert all(
        "whl/cpu" in " ".join(words) or "whl/nightly/cpu" in " ".join(words)
        for words in pips
        if "torch" in words[2]
    )
    (words,) = suites(listed)
    given = parsed(words)
    assert (given["old"], given["new"]) == ("old/bin/python", "new/bin/python")
    assert accepted_changes(at / given["accept"], dt.date(2026, 11, 20)) == ()
    assert (at / "upgrade" / "report.json").exists()
    kept = job["steps"][-1]
    assert kept["if"] == "always()"
    assert given["scripts"].is_relative_to(kept["with"]["path"])
    # YAML 1.1 reads the key `on` as a truth value.
    assert plain[True]["schedule"]
    assert any(step.get("uses", "").startswith("actions/cache@") for step in job["steps"])


def test_the_example_is_the_workflow_that_init_writes() -> None:
    """`examples/upgrade.yml` is generated: `python tests/helpers/readme.py` writes it anew."""
    assert WORKFLOW.read_text(encoding="utf-8") == workflow()


def test_nothing_is_written_over_and_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """A second call keeps both files; a file in place of a folder is a usage error."""
    assert CliRunner().invoke(main, ["init", str(tmp_path), "--upgrade"]).exit_code == 0
    again = CliRunner().invoke(main, ["init", str(tmp_path), "--upgrade"])
    assert (again.exit_code, again.output.count("kept: ")) == (64, 2)
    other = tmp_path / "other"
    other.mkdir()
    (other / ".github").write_text("")
    (other / "accepted.toml").write_text("")
    refused = CliRunner().invoke(main, ["init", str(other), "--upgrade"])
    assert refused.exit_code == 64
    assert "torch-upgrade.yml: " in refused.output
    assert "Traceback" not in refused.output


@pytest.mark.parametrize("command", ["certify", "compare"])
def test_the_action_runs_either_command(stubs: Path, command: str) -> None:
    """The action installs builds for CPUs and the suite itself, and runs the command it is given.

    It takes at most five lines of a workflow.
    """
    plain = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    lines = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8")
    (shown,) = [
        block
        for block in re.findall(r"```yaml\n(.*?)```", lines, re.DOTALL)
        if f"command: {command}" in block
    ]
    assert len(shown.splitlines()) <= 5
    given = yaml.safe_load(shown)[0]["with"]
    assert given.keys() <= plain["inputs"].keys()
    values = {name: each["default"] for name, each in plain["inputs"].items()} | given
    named = {f"inputs.{name}": value for name, value in values.items()}
    listed = calls(stubs, plain["runs"]["steps"], {**named, "github.action_path": "/suite"}, {})
    pips = [words for words in listed if words[0].endswith("pip")]
    assert all(
        words[-1].startswith("https://download.pytorch.org/whl/") and words[-1].endswith("/cpu")
        for words in pips
        if any(word.startswith("torch") for word in words)
    )
    assert any(words[1:3] == ["install", "/suite[pages]"] for words in pips)
    (words,) = suites(listed)
    assert words[0] == command
    assert parsed(words)
    assert shlex.split(given["arguments"])[-1] in words


def test_a_comparison_stands_on_the_page_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a CI job the report is added to the page of the job; a page that cannot be written is told."""
    side = Environment("python", "2.13.0", "2.0", "3.12")
    result = side, side, gated([], 3, ())
    monkeypatch.setattr(compare._Comparison, "with_interpreter", lambda *_: result)
    page = tmp_path / "page.md"
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    done = CliRunner().invoke(main, ["compare", "--old", "python", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)
    text = page.read_text()
    assert text.startswith("before\n### Upgrade\n\n```text\nold  torch 2.13.0")
    assert re.search(r"\nSAME: .+\n```\n\Z", text)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    done = CliRunner().invoke(main, ["compare", "--old", "python"])
    assert done.exit_code == 0
    assert "could not be written: Is a directory" in done.stderr
