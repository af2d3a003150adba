"""The levels of rules and cases: how ordinary a failure is."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from ddp_invariants.cases.case import Case, ShardCase
from ddp_invariants.cases.levels import LEVELS, highest
from ddp_invariants.cases.program import Data, InjectedFailure, Perturbation
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.levels import (
    level_of,
    needed_of_ordinary,
    ordinary,
    plainly,
    uncommon,
    unimplied,
    without,
)
from ddp_invariants.discovery.required import SAMPLING
from ddp_invariants.discovery.sampler_probe import SAMPLER_CASES
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.invariants import ALL_RULES, SHIPPED
from ddp_invariants.invariants.rule import Row
from ddp_invariants.search.strategies import cases_for
from ddp_invariants.situations.capability import BASE
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.nodes import Nodes
from ddp_invariants.situations.perturbation import Perturbed

CORE = [rule for rule in SHIPPED if ALL_RULES[rule].level == "core"]


def test_the_five_invariants_are_core_and_what_goes_beyond_them_is_not() -> None:
    """Order, timing and end of collectives count as core, since every result rests on them."""
    assert {ALL_RULES[rule].invariant for rule in CORE} == {
        *("INIT", "SHARD", "LOSS", "GRAD", "PARAM"),
        *("COMM", "LIVE"),
    }
    robust = [rule for rule in SHIPPED if ALL_RULES[rule].level == "robust"]
    assert robust == ["SHARD-7", "LIVE-2", "LIVE-3", "LIVE-4"]
    assert Row("GRAD-100", "a rule of a user's own").level == "extended"


def test_the_least_ordinary_level_is_the_highest() -> None:
    """Nothing uncommon leaves a failure at its rule's own level."""
    assert highest(()) == "core"
    assert [highest((level, "core")) for level in LEVELS] == list(LEVELS)
    assert level_of("GRAD-2", ()) == "core"
    assert level_of("GRAD-2", ("extended", "core")) == "extended"
    assert level_of("GRAD-9", ()) == "extended"
    assert level_of("SHARD-7", ("extended",)) == "robust"
    assert level_of("GRAD-999", ()) == "extended"


@pytest.mark.parametrize("name", TRAINING)
def test_a_probe_is_as_ordinary_as_its_capability(name: str) -> None:
    """The probe of a capability contains the capability, and nothing of a less ordinary level."""
    levels = uncommon(TRAINING[name].probe)
    if TRAINING[name].level == "core":
        assert levels == {}
    else:
        assert levels[name] == TRAINING[name].level == highest(levels.values())


@pytest.mark.parametrize("name", sorted(SAMPLING.keys() & SAMPLER_CASES.keys()))
def test_a_samplers_probe_is_as_ordinary_as_its_capability(name: str) -> None:
    """Shuffled, uneven and cut shards are ordinary; states, workers and unusual calls are not."""
    levels = uncommon(SAMPLER_CASES[name])
    assert levels == {} if name in ("shuffle", "drop_last", "uneven") else name in levels


@pytest.mark.parametrize(
    ("case", "names"),
    [
        (BASE, {}),
        (BASE.with_situation(Perturbed(Perturbation("withheld"))), {}),
        (BASE.with_situation(Nodes(2)), {"nodes": "extended"}),
        (
            BASE.with_situation(FailureInjection(InjectedFailure("death", step=1))),
            {"injected failure": "robust"},
        ),
        (ShardCase(3, Data(samples=2)), {"short": "extended"}),
    ],
)
def test_a_case_is_named_by_what_makes_it_less_ordinary(case: Case, names: object) -> None:
    """Any timing is ordinary; a situation without a capability has its own name."""
    assert uncommon(case) == names


@pytest.mark.parametrize("rule", CORE)
def test_the_ordinary_cases_of_a_core_rule_are_ordinary(rule: str) -> None:
    """A property of a core rule draws ordinary cases first, whatever else it draws later."""

    @settings(
        max_examples=25, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(cases_for(rule, ordinary(Scope(max_world_size=16))).map(plainly))
    def judge(case: Case) -> None:
        assert uncommon(case) == {}

    judge()


def test_a_capability_that_needs_another_is_named_alone() -> None:
    """A layer trained later is frozen at first, and a loss that reaches nothing leaves all unused."""
    assert unimplied({"frozen": "extended", "unfreeze": "extended"}) == {"unfreeze": "extended"}
    assert unimplied({"strided": "extended", "nodes": "extended"}) == {
        "strided": "extended",
        "nodes": "extended",
    }


@pytest.mark.parametrize("name", sorted(TRAINING))
def test_a_case_can_do_without_what_makes_it_less_ordinary(name: str) -> None:
    """A smallest case is tried without each part, to find the parts that a failure needs."""
    case = TRAINING[name].probe
    for part in uncommon(case):
        assert part not in uncommon(without(case, part, Scope()))


def test_ordinary_cases_need_not_meet_what_they_cannot() -> None:
    """A condition that only an uncommon capability meets is no condition of the core."""
    assert needed_of_ordinary(ALL_RULES["INIT-3"]) == ()
    assert needed_of_ordinary(ALL_RULES["GRAD-5"]) == (
        "zero_grad(set_to_none=True)",
        "zero_grad(set_to_none=False)",
    )
    assert "N < W" not in needed_of_ordinary(ALL_RULES["SHARD-1"])
    assert (
        replace(Scope(), without=frozenset({"bias"})).without
        < ordinary(Scope(without=frozenset({"bias"}))).without
    )
