"""Tests of cases that aim at conditions which a rule has not met."""

from hypothesis import Phase, given, settings

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.state import MORE
from ddp_invariants.search.aiming import aimed
from ddp_invariants.search.strategies import cases_for

DRAWN = {rule: cases_for(rule, Scope()) for rule in ("MOD-1", "STATE-2", "SHARD-9")}


def test_aimed_cases_contain_what_the_condition_is_about() -> None:
    """Every case has the capability, which one case in seven has otherwise."""
    (hooks,) = (
        condition
        for condition in TRAINING["module_hooks"].conditions
        if condition in ALL_RULES["MOD-1"].needs
    )
    cases: list[TrainingCase] = []
    aiming = aimed(DRAWN["MOD-1"], [hooks])
    assert aiming is not None

    @settings(max_examples=20, database=None, phases=(Phase.generate,))
    @given(aiming)
    def draw(case: TrainingCase) -> None:
        cases.append(case)

    draw()
    assert len(cases) >= 10
    assert all(map(TRAINING["module_hooks"].present, cases))


def test_a_variety_is_aimed_at_too() -> None:
    """A capability that shows in two ways meets one condition in each."""
    saved: set[bool] = set()
    aiming = aimed(DRAWN["STATE-2"], [MORE])
    assert aiming is not None

    # Hypothesis repeats parts of earlier examples, so that a few examples may all be alike.
    @settings(max_examples=100, database=None, phases=(Phase.generate,))
    @given(aiming)
    def draw(case: TrainingCase) -> None:
        assert case.saved_by is not None
        saved.add(case.saved_by > case.world_size)

    draw()
    assert True in saved


def test_nothing_aims_at_a_condition_of_no_capability() -> None:
    """Conditions of values, or of samplers, are met by chance alone."""
    assert aimed(DRAWN["SHARD-9"], ["another world size"]) is None
    assert aimed(DRAWN["MOD-1"], ["a case on which the rule is judged"]) is None
