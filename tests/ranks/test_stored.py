"""Stored failures: a rule's property judges them first, so that a fix is tried on what failed."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from entered import entered

from ddp_invariants.cases.case import Case, TrainingCase
from ddp_invariants.discovery.plain_case import plain_case
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.records import violation
from ddp_invariants.records.verdict import Failure, Violation
from ddp_invariants.search.stored import MOST, stored_cases
from ddp_invariants.situations.capability import BASE

FAULT = "ddp_invariants.faults.bucketed:NeverDivides"


def stored(folder: Path, case: Case, rule: str = "GRAD-2", ddp: str = FAULT, age: int = 0) -> Path:
    """Store a failure of so many seconds ago, and return its file."""
    of = violation.of(
        case,
        Failure(rule, "a fact", "somewhere", ""),
        Ddp(ddp),
        Sampler(),
        confirmed=(0, 0),
        repeat="",
        evidence=None,
    )
    path = folder / f"{of.id}.json"
    violation.write(of, path)
    os.utime(path, (10**9 - age, 10**9 - age))
    return path


def test_a_property_judges_its_stored_failures_before_it_draws(
    make_trial: Any, tmp_path: Path
) -> None:
    """One drawn case would not meet the failure; the stored case does, and is made smaller."""
    trial = make_trial(FAULT, cases=1)
    trial.options = replace(trial.options, database=tmp_path / "cases")
    case = replace(plain_case(trial.scope), steps=3)
    stored(tmp_path, case)
    judged = entered(trial)
    with pytest.raises(Violation) as caught:
        trial.certify("GRAD-2")
    assert judged[0] == case
    assert isinstance(caught.value.case, TrainingCase)
    assert caught.value.case.steps == 1
    assert "stored cases" in trial.stages


def test_a_stored_case_that_holds_again_is_one_case_more(make_trial: Any, tmp_path: Path) -> None:
    """After a fix the property goes on to draw."""
    trial = make_trial(cases=8)
    trial.options = replace(trial.options, database=tmp_path / "cases")
    case = plain_case(trial.scope)
    stored(tmp_path, case, ddp="reference")
    judged = entered(trial)
    trial.certify("GRAD-4")
    assert case not in judged  # It is a failure of another rule.
    trial.certify("GRAD-2")
    assert case in judged


def test_a_given_seed_alone_decides_the_cases(make_trial: Any, tmp_path: Path) -> None:
    """A session with --seed has no database, and gives the same cases whatever is stored."""
    trial = make_trial(cases=8)
    case = replace(BASE, steps=4)
    stored(tmp_path, case, ddp="reference")
    judged = entered(trial)
    trial.certify("GRAD-2")
    assert case not in judged


def test_only_readable_failures_within_the_scope_are_judged(
    make_trial: Any, tmp_path: Path
) -> None:
    """Others are another rule's, another implementation's, of more ranks, broken, or too many."""
    trial = make_trial(FAULT)
    cases = [replace(BASE, steps=steps) for steps in range(1, MOST + 3)]
    for age, case in enumerate(cases):
        stored(tmp_path, case, age=age)
    assert list(stored_cases(trial, "GRAD-2")) == cases[:MOST]
    assert not list(stored_cases(trial, "GRAD-3"))
    assert not list(stored_cases(make_trial(), "GRAD-2"))

    trial.under_test = replace(
        trial.under_test, scope=replace(trial.scope, without=frozenset({"sgd"}), max_world_size=1)
    )
    assert not list(stored_cases(trial, "GRAD-2"))


def test_a_broken_or_closed_file_is_left_out(make_trial: Any, tmp_path: Path) -> None:
    """A file of another version, or one being written, ends no session."""
    trial = make_trial(FAULT)
    (tmp_path / "aaaaaa.json").write_text('{"rule": "GRAD-2"')
    (tmp_path / "bbbbbb.json").write_bytes(b'\xff\xfe"rule": "GRAD-2"')
    (tmp_path / "cccccc.json").symlink_to(tmp_path / "gone")
    assert list(stored_cases(trial, "GRAD-2")) == []
    case = stored(tmp_path, BASE)
    assert list(stored_cases(trial, "GRAD-2")) == [BASE]
    case.unlink()
    trial.options = replace(trial.options, store=tmp_path / "nowhere")
    assert list(stored_cases(trial, "GRAD-2")) == []
