"""Tests of the plan of a survey: what three hundred cases meet."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky

from conftest import TrialMaker
from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import HarnessError
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.records.evidence import Incident
from ddp_invariants.records.verdict import Failure, Finding, Inconclusive, Violation
from ddp_invariants.search import confirm
from ddp_invariants.search import search as search_module
from ddp_invariants.search.drawing import independent
from ddp_invariants.search.runner import Runner
from ddp_invariants.search.scale import LARGE, is_long
from ddp_invariants.search.search import SHRINK_HANGS, Asked, Search
from ddp_invariants.search.strategies import cases_for
from ddp_invariants.search.survey import Plan
from ddp_invariants.search.trial import Options
from ddp_invariants.situations import SITUATIONS
from ddp_invariants.situations.capability import BASE


def surveyed(plan: Plan, cases: int) -> set[Case]:
    """Return the cases that a survey by a plan draws, without running them."""
    known = set[Case]()
    for block in plan.blocks(lambda: cases - len(known)):

        def enter(asked: Asked) -> None:
            if len(known) < cases and asked.case not in known:
                known.add(asked.case)
                plan.add(asked)

        options = settings(
            max_examples=block.cases + 1,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        seed(block.name)(options(given(independent(block.asked))(enter)))()
    return known


def rules_of(*, samplers: bool) -> list[str]:
    """Return the rules that a survey draws for."""
    return [
        rule.id
        for rule in ALL_RULES.values()
        if rule.is_about_samplers == samplers and rule.applies != "observed"
    ]


def test_three_hundred_cases_meet_every_capability_situation_and_axis() -> None:
    """By chance, some would be met once in three hundred cases or never."""
    plan = Plan(rules_of(samplers=False), Scope())
    features = {feature.name for feature in plan.features}
    assert features >= TRAINING.keys()
    assert features >= {f"{name}: {each}" for name, c in TRAINING.items() for each in c.varieties}
    assert features >= {vars(kind)["kind"] for kind in SITUATIONS if not kind.capabilities()} - {
        "exchanged"
    }
    of_its_own = Scope(declared=Declarations(update="own"))
    assert "exchanged" in {
        feature.name for feature in Plan(rules_of(samplers=False), of_its_own).features
    }
    assert features >= {f"many {axis}" for axis in LARGE}
    assert len(surveyed(plan, 300)) == 300
    rare = {name: plan.met[name] for name in features if plan.met[name] < 2}
    assert not rare
    assert all(plan.drawn[rule] for rule in plan.rules)


def test_a_survey_within_limits_aims_at_nothing_beyond_them() -> None:
    """A feature that no case can have costs one attempt, and the cases are as many."""
    plan = Plan(rules_of(samplers=False), Scope(max_world_size=2, without=frozenset({"clipping"})))
    assert "clipping" not in {feature.name for feature in plan.features}
    assert len(surveyed(plan, 40)) == 40


def test_a_survey_of_samplers_takes_the_rules_in_turn() -> None:
    """Every rule that draws cases of its own draws some."""
    plan = Plan(rules_of(samplers=True), Scope())
    cases = surveyed(plan, 100)
    assert len(cases) == 100
    assert all(isinstance(case, ShardCase) for case in cases)
    assert all(plan.drawn[rule] for rule in plan.rules)


def test_a_survey_of_samplers_meets_long_datasets_in_every_way() -> None:
    """Ranks share long datasets unevenly, shuffled or not, with and without `drop_last`."""
    plan = Plan(rules_of(samplers=True), Scope())
    long = [
        case.data for case in surveyed(plan, 300) if isinstance(case, ShardCase) and is_long(case)
    ]
    assert plan.met["a long dataset"] == len(long)
    ways = Counter((data.shuffle, data.drop_last) for data in long)
    assert len(ways) == 4
    assert min(ways.values()) > 1
    without = Plan(rules_of(samplers=True), Scope(without=frozenset({"drop_last"})))
    assert not any(feature.name.endswith("drop_last") for feature in without.features)


def test_a_survey_goes_on_after_a_failure_that_did_not_repeat(
    make_trial: TrialMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first failure is not confirmed, as after a hang on a busy machine; the second one is."""
    confirmed = confirm.confirm
    tried: list[Case] = []

    def fails_once(trial: Runner, rule: str, failure: Failure, case: Case, *again: Any) -> None:
        tried.append(case)
        if len(tried) == 1:
            raise Inconclusive("seen, and not repeated")
        confirmed(trial, rule, failure, case, *again)

    monkeypatch.setattr(confirm, "confirm", fails_once)
    trial = make_trial(ddp="ddp_invariants.faults.bucketed:NeverDivides", scope=Scope())
    surveyed = trial.survey(["GRAD-2", "PARAM-3"], 40)
    assert surveyed.violation is not None
    assert not surveyed.reason
    assert len(tried) == 2
    assert 1 < surveyed.cases <= 40


def test_a_survey_whose_failures_never_repeat_says_why(
    make_trial: TrialMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends after three failures, and counts the cases of all attempts."""
    tried: list[Case] = []

    def fails(trial: Runner, rule: str, failure: Failure, case: Case, *again: Any) -> None:
        del trial, rule, failure, again
        tried.append(case)
        raise Inconclusive("seen, and not repeated")

    monkeypatch.setattr(confirm, "confirm", fails)
    trial = make_trial(ddp="ddp_invariants.faults.bucketed:NeverDivides", scope=Scope())
    surveyed = trial.survey(["GRAD-2"], 40)
    assert surveyed.violation is None
    assert surveyed.reason == "seen, and not repeated"
    assert len(tried) == 3


def test_a_harness_that_fails_in_several_ways_is_no_flaky_case() -> None:
    """Hypothesis tries a failing case again; the harness's first words are kept.

    A failure of the harness while a failing case is made smaller hides no violation.
    """
    runner: Any = SimpleNamespace(options=Options())
    search, failed = Search(runner, "GRAD-2"), list[HarnessError]()

    def look_at(_asked: Asked, **_: object) -> None:
        failed.append(HarnessError(f"failure {len(failed)}"))
        # At two places: to Hypothesis these are two failures.
        if len(failed) == 1:
            raise failed[0]
        raise failed[-1]

    search.look_at = look_at  # type: ignore[method-assign, assignment]  # no ranks
    cases: Any = cases_for("GRAD-2", Scope())
    with pytest.raises(Flaky) as ended:
        search.drive("it", cases.map(lambda case: Asked("GRAD-2", case)), 5)
    with pytest.raises(HarnessError, match="failure"):
        search.require_failing(ended.value)
    assert len(failed) > 1
    search.failing[Asked("GRAD-2", BASE)] = Failure("GRAD-2", "it is wrong", "here", "nothing")
    search.require_failing(ended.value)


def test_no_case_is_drawn_that_would_not_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis ends as soon as the search runs no more cases to shrink the first one."""
    monkeypatch.setattr(search_module, "SHRINK_RUNS", 8)
    failure = Failure("GRAD-2", "it is wrong", "here", "nothing")
    ran, looked_at = list[Case](), list[Case]()

    def findings(case: Case, **_: object) -> dict[str, Finding]:
        ran.append(case)  # Only the first case fails, so that Hypothesis goes on trying.
        return {"GRAD-2": Finding("GRAD-2", failure=failure if len(ran) == 1 else None)}

    runner: Any = SimpleNamespace(
        options=Options(),
        findings=findings,
        counts=lambda *_: True,
        enter=lambda *_: None,
        simulated=False,
        lifeless=None,
        hung=False,
    )
    search = Search(runner, "GRAD-2")
    judge = search.look_at

    def look_at(asked: Asked, **_: object) -> None:
        looked_at.append(asked.case)
        judge(asked)

    search.look_at = look_at  # type: ignore[method-assign]  # to count
    cases: Any = cases_for("GRAD-2", Scope())
    with pytest.raises(Violation) as ended:
        search.drive("it", cases.map(lambda case: Asked("GRAD-2", case)), 5)
    assert ended.value.case == ran[0]
    assert 1 < len(ran) <= 5
    assert len(looked_at) < 2 * len(ran) + 5


@pytest.mark.parametrize("costly", [False, True])
def test_only_hangs_that_cost_a_deadline_are_bounded(*, costly: bool) -> None:
    """A simulation knows a deadlock at once, so that such a case becomes as small as others."""
    failure = Failure("LIVE-1", "ranks hang", "here", "nothing")
    ran = list[Case]()

    def findings(case: Case, **_: object) -> dict[str, Finding]:
        ran.append(case)
        return {"LIVE-1": Finding("LIVE-1", failure=failure)}

    incident = Incident("hung", {0: "it waits"}, {}, 0.0, costly=costly)
    runner: Any = SimpleNamespace(
        options=Options(),
        scope=Scope(),
        places=SimpleNamespace(simulates=lambda _: False),
        evidence=SimpleNamespace(incident=incident),
        findings=findings,
        failures=lambda *_: [failure],
        counts=lambda *_: True,
        enter=lambda *_: None,
        simulated=True,
        lifeless=None,
        hung=True,
    )
    layers = (Layer("linear", outputs=3, bias=True), Layer("norm"), Layer("statistics"))
    large = replace(BASE, model=Model(5, 3 * layers), values="real", bucket_cap=1)
    search = Search(runner, "LIVE-1")
    with pytest.raises(Violation):
        search.look_at(Asked("LIVE-1", large))
    _, smallest = search.simplest()
    assert (len(ran) == SHRINK_HANGS + 1) == costly
    assert isinstance(smallest, TrainingCase)
    assert (len(smallest.model.layers) == 1) != costly
