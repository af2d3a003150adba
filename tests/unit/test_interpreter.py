"""Tests of the refusal of interpreters and names, before `compare` probes anything."""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from ddp_invariants.cli import compare, main
from ddp_invariants.errors import LoadFailure, NamingError
from ddp_invariants.upgrades import interpreter, sides


def program(path: Path, text: str) -> str:
    """Write a shell script, and return its path."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('echo "$@"; echo "$@" >&2; exit 2', "is no Python interpreter"),
        ('echo "$@"', "is no Python interpreter"),
        ("echo 3.11.oops", "is no Python interpreter"),
        ("exit 0", "is no Python interpreter"),
        ("printf '\\377\\376'", "is no Python interpreter"),
        ("cat", "is no Python interpreter"),
        ("sleep 60", "cannot be used as a Python interpreter: it gave no answer within 1 s"),
        ("echo 3.10.4", "is Python 3.10.4; ranks need 3.11 or newer"),
        ("echo 2.7.18", "is Python 2.7.18; ranks need 3.11 or newer"),
        (
            "case $3 in *numpy*) echo 'ModuleNotFoundError: no numpy' >&2; exit 1;; esac\necho 3.12.1",
            "cannot import torch and numpy: ModuleNotFoundError: no numpy",
        ),
    ],
)
def test_a_program_that_cannot_serve_is_refused_in_one_sentence(
    tmp_path: Path, text: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program, an old Python and a Python without numpy are told apart.

    No sentence repeats the source with which the program was asked.
    """
    monkeypatch.setattr(interpreter, "ANSWERING", 1.0 if "sleep" in text else 20.0)
    path = program(tmp_path / "python", text)
    with pytest.raises(NamingError) as refused:
        interpreter.side(path)
    assert str(refused.value) == f"{path} {sentence}"


def test_a_path_that_cannot_be_run_is_refused_by_every_command(tmp_path: Path) -> None:
    """A missing file, a folder and a file without permission end with status 64 and a sentence."""
    (tmp_path / "file").write_text("")
    for path, reason in (
        ("none", "No such file or directory"),
        (".", "Permission denied"),
        ("file", "Permission denied"),
    ):
        python = str(tmp_path / path)
        for words in (
            ["compare", "--old", python],
            ["compare", "--old", sys.executable, "--new", python],
            ["record", "--out", str(tmp_path / "out"), "--python", python],
        ):
            done = CliRunner().invoke(main, words)
            assert (done.exit_code, done.output) == (
                64,
                f"ddp-invariants: {python} cannot be run as a Python interpreter: {reason}\n",
            )


def test_a_name_that_one_side_cannot_load_is_refused_before_any_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both sides load the names first; the sentence says under which interpreter one failed."""

    def describe(address: str, implementation: object) -> None:
        if address == "new":
            raise LoadFailure(f"{implementation}: there is no module")

    def pool(address: str) -> Any:
        return nullcontext(SimpleNamespace(describe=lambda named: describe(address, named)))

    def probed(*_: object) -> None:
        raise AssertionError("a side was probed")

    monkeypatch.setattr(interpreter, "side", str)
    monkeypatch.setattr(
        compare, "Hosts", lambda python: nullcontext(SimpleNamespace(addresses=python))
    )
    monkeypatch.setattr(compare, "Pool", pool)
    monkeypatch.setattr(sides, "Sides", probed)
    done = CliRunner().invoke(main, ["compare", "--old", "old", "--new", "new", "--ddp", "a.b:C"])
    assert (done.exit_code, done.output) == (
        64,
        "ddp-invariants: under new: a.b:C: there is no module\n",
    )
