"""Tests of the versions of namespaces, and of the comparisons that they save."""

import json
import random
import types
from collections.abc import Callable

import pytest

from ddp_invariants.ranks import rounds, versions
from ddp_invariants.ranks.fingerprint import Fingerprint
from ddp_invariants.ranks.groups import isolation
from ddp_invariants.ranks.groups.isolation import Surroundings
from ddp_invariants.ranks.versions import Version


@pytest.fixture(params=["versions", "no versions"])
def _interpreter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test in this interpreter, and as in one that keeps no versions of dicts."""
    if request.param == "no versions":
        monkeypatch.setattr(versions, "_KEPT", False)
    monkeypatch.setattr(isolation, "_NAMES", [])


def _function() -> None:
    """Do nothing."""


@pytest.mark.skipif(not versions._KEPT, reason="this interpreter keeps no versions of dicts")
@pytest.mark.parametrize("of", [types.ModuleType("space"), type("Space", (), {})])
def test_each_change_of_a_namespace_gives_another_number(of: object) -> None:
    """An addition, another value and a removal change the number; a look at a value does not."""
    version = Version(vars(of))
    changes: list[Callable[[], object]] = [
        lambda: setattr(of, "name", _function),
        lambda: setattr(of, "name", print),
        lambda: delattr(of, "name"),
    ]
    numbers = [version.number()]
    for change in changes:
        change()
        numbers.append(version.number())
        assert "name" not in vars(of) or callable(vars(of)["name"])
        assert version.number() == numbers[-1]
    assert len({*numbers}) == 4


def test_without_versions_every_namespace_counts_as_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another interpreter compares the values each time."""
    monkeypatch.setattr(versions, "_KEPT", False)
    version = Version({})
    assert len({version.number() for _ in range(3)}) == 3


@pytest.mark.usefixtures("_interpreter")
def test_a_replaced_function_and_a_removed_name_are_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replaced function and a removed name are named once; an added name is no change."""
    surroundings = Surroundings()
    assert surroundings.changed() == []
    with monkeypatch.context() as patched:
        patched.setattr(json, "loads", _function)
        patched.setattr(random, "added", _function, raising=False)
        assert surroundings.changed() == ["names in json"]
        assert surroundings.changed() == []
        assert Surroundings().changed() == []
    assert surroundings.changed() == ["names in random", "names in json"]


def test_a_variable_that_is_set_anew_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of environment variables does not matter, but their values do."""
    monkeypatch.setenv("FIRST", "1")
    monkeypatch.setenv("SECOND", "2")
    surroundings = Surroundings()
    monkeypatch.delenv("FIRST")
    assert surroundings.changed() == ["environment"]
    monkeypatch.setenv("FIRST", "1")
    assert surroundings.changed() == []


@pytest.mark.usefixtures("_interpreter")
def test_the_harness_s_own_functions_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replaced function, method or code of the harness is named as long as it is replaced."""
    own = Fingerprint()
    assert own.altered() == []
    with monkeypatch.context() as patched:
        patched.setattr(rounds, "closed", _function)
        patched.setattr(rounds.Round, "train", _function)
        assert own.altered() == [
            "ddp_invariants.ranks.rounds.Round.train",
            "ddp_invariants.ranks.rounds.closed",
        ]
        assert len(own.altered()) == 2
    assert own.altered() == []
    with monkeypatch.context() as patched:
        patched.setattr(rounds._timing, "__code__", (lambda value: value).__code__)
        assert own.altered() == ["ddp_invariants.ranks.rounds._timing"]
    assert own.altered() == []
