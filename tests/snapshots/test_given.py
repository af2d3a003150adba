"""Tests with `@given`: properties of a rule, tests of one's own, and Hypothesis' own options."""

import json
import re
from pathlib import Path

import pytest

from conftest import Session
from ddp_invariants.cases.levels import LEVELS
from ddp_invariants.invariants import SHIPPED
from ddp_invariants.records import history

HALVES = "ddp_invariants.faults.bucketed:DividesByTwo"
PROPERTY = """
from hypothesis import example, given, settings
from ddp_invariants import cases_of


@settings(max_examples=7)
@given(case=cases_of("{rule}"))
def test_{test}_{name}(case, ranks):
    ranks.check("{rule}", case)
"""
OWN = """
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from ddp_invariants import cases_of


@settings(max_examples=5, deadline=None, suppress_health_check=[*HealthCheck], phases=[Phase.generate])
@given(case=cases_of("SHARD-2"), limit=st.integers(0, 0))
def test_there_is_no_epoch(case, limit, ranks):
    evidence = ranks.run(case)
    assert len(evidence.answers[0]["shards"]) <= limit, "it has epochs"


class TestOfAClass:
    @settings(max_examples=5, deadline=None, suppress_health_check=[*HealthCheck], phases=[Phase.generate])
    @given(case=cases_of("SHARD-1"))
    def test_a_rule_is_checked_in_passing(self, case, ranks):
        ranks.check("SHARD-1", case)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a folder with the plugin."""
    (tmp_path / "conftest.py").write_text(
        'pytest_plugins = ["ddp_invariants.plugin"]\n'
        "from hypothesis import settings\n"
        'settings.register_profile("nightly", max_examples=11)\n'
    )
    return tmp_path


def test_the_seed_and_the_profile_of_hypothesis_are_those_of_the_session(
    session: Session, own: Path
) -> None:
    """`--hypothesis-seed` is the seed; a profile and `@settings` give the number of cases."""
    (own / "test_one.py").write_text(
        PROPERTY.format(rule="COMM-6", test="comm6", name="as_settings_say")
    )
    (own / "test_two.py").write_text(
        PROPERTY.replace("@settings(max_examples=7)\n", "").format(
            rule="COMM-6", test="comm6", name="as_the_profile_says"
        )
    )
    options = ["--hypothesis-seed=23", "--hypothesis-profile=nightly", "--max-world-size=2"]
    done = session(
        "pytest", "-p", "no:cacheprovider", *options, "--hypothesis-show-statistics", at=own
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 23," in done.stdout
    assert "11 cases per property" in done.stdout
    assert re.findall(r"max_examples=(\d+)", done.stdout)[0] == "7"
    assert "  search COMM-6/0:" in done.stdout
    assert re.search(r"- Seconds by stage: drawn cases \d+\.\d", done.stdout)
    (past,) = history.read(own / history.FILE)
    assert (past.ddp, past.seed, past.rules["COMM-6"]) == ("reference", 23, "observed")
    assert past.levels.keys() == set(LEVELS)


def test_a_property_is_searched_shrunk_and_confirmed(session: Session, own: Path) -> None:
    """A failure of a property is told as that of a packaged one, and its example runs first."""
    text = PROPERTY.replace(
        "@settings(max_examples=7)",
        "@example(case=TrainingCase(Model(4, (Layer('linear', 2),)), world_size=3, seed=77))\n"
        "@settings(max_examples=1)",
    ).format(rule="GRAD-2", test="grad2", name="as_written")
    (own / "test_one.py").write_text(
        "from ddp_invariants.cases.case import TrainingCase\n"
        "from ddp_invariants.cases.layers import Layer, Model\n" + text
    )
    words = ["--ddp", HALVES, "--max-world-size=3", "--seed=1"]
    done = session("pytest", "-p", "no:cacheprovider", *words, at=own)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"GRAD-2 violated by {HALVES}: the gradient is not the mean" in done.stdout
    assert "confirmed in 3 of 3 runs in fresh processes" in done.stdout
    repeat = re.search(r"--replay (\S+\.json)", done.stdout)
    assert repeat is not None
    assert json.loads((own / repeat[1]).read_text())["case"]["world_size"] == 3


def test_a_test_that_names_no_rule_runs_as_hypothesis_runs_it(session: Session, own: Path) -> None:
    """Its assertion fails with Hypothesis' falsifying example, and a rule checked in passing holds."""
    (own / "test_own.py").write_text(OWN)
    done = session("pytest", "-p", "no:cacheprovider", "--max-world-size=2", "--seed=1", at=own)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "AssertionError: it has epochs" in done.stdout
    assert "case=ShardCase(" in done.stdout


def test_a_fuzzer_that_collects_the_properties_can_run_them(session: Session) -> None:
    """HypoFuzz does this: pytest only collects, and the fuzzer sets up the fixtures and draws."""
    done = session("tests.helpers.fuzzer", "properties/", "--seed=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\ncollected {len(SHIPPED)}\n" in done.stdout
    judged = re.search(r"^judged (\d+) cases of test_shard1_", done.stdout, re.MULTILINE)
    assert judged is not None
    assert int(judged[1]) >= 5


def test_a_strategy_drawn_outside_a_session_says_so(session: Session, own: Path) -> None:
    """Without `ranks` there is no implementation to draw for."""
    (own / "test_own.py").write_text(
        OWN.replace(", ranks", "").replace("    evidence = ranks.run(case)\n", "")
    )
    done = session("pytest", "-p", "no:cacheprovider", "--seed=1", "-k", "epoch", at=own)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "run the test with pytest and its fixture `ranks`" in done.stdout
