"""The rows of the rule table agree with one another."""

from collections.abc import Callable
from dataclasses import fields, replace
from inspect import getsource, signature
from typing import Any

import pytest

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.declarations import CAPABILITIES, Declarations, Update
from ddp_invariants.invariants import ALL_RULES, SHIPPED, root_failure
from ddp_invariants.invariants.draws import Draws, ShardDraws
from ddp_invariants.invariants.exclusions import LOSSY
from ddp_invariants.invariants.init import SOURCE_CHANGED
from ddp_invariants.invariants.view import training
from ddp_invariants.processes.backends import Backend
from ddp_invariants.records.verdict import Cause, Failure
from ddp_invariants.search.confirm import underlying
from ddp_invariants.search.models import models
from ddp_invariants.search.strategies import shard_cases, training_cases
from ddp_invariants.situations import OPTIONS

CAUSES_FIRST = [
    "COMM-1",
    "LIVE-2",
    "LIVE-3",
    "LIVE-1",
    "COMM-3",
    "GPU-1",
    "LIVE-8",
    "COMM-2",
    "INIT-3",
    "INIT-1",
    "INIT-2",
    "INIT-4",
    "BUF-1",
    "RNG-1",
    "CALL-1",
    "LOSS-1",
    "BUF-2",
    "LOSS-2",
    "LOSS-3",
    "CALL-2",
    "CALL-3",
    "CALL-4",
    "MOD-1",
    "MOD-2",
    "MOD-3",
    "MOD-4",
    "PARAM-4",
    "STATE-1",
    "STATE-2",
    "GRAD-4",
    "PARAM-5",
    "LIVE-5",
    "LIVE-6",
    "LIVE-7",
    "GRAD-7",
    "PARAM-6",
    "GRAD-9",
    "GRAD-11",
    "GRAD-8",
    "GRAD-13",
    "GRAD-1",
    "GRAD-5",
    "GRAD-2",
    "GRAD-3",
    "GRAD-6",
    "GRAD-12",
    "GRAD-10",
    "PARAM-1",
    "PARAM-2",
    "PARAM-3",
    "PARAM-7",
    "COMM-4",
    "COMM-5",
    "LIVE-4",
    "MEM-1",
    "SHARD-5",
    "SHARD-4",
    "SHARD-1",
    "SHARD-2",
    "SHARD-3",
    "SHARD-6",
    "SHARD-8",
    "SHARD-9",
    "SHARD-10",
    "SHARD-7",
    "COMM-6",
]


def failures() -> dict[str, Failure]:
    """Return a failure of every rule of the package."""
    return {rule: Failure(rule, "a fact", "a place", "a value") for rule in SHIPPED}


def in_order(seen: dict[str, Failure]) -> list[str]:
    """Return the rules in the order in which their failures explain one another."""
    left, order = list(seen.values()), []
    while (first := root_failure(left)) is not None:
        left.remove(first)
        order.append(first.rule)
    return order


def test_the_rows_make_the_order_of_causes() -> None:
    """The order decides which rule a violation is reported as."""
    assert in_order(failures()) == CAUSES_FIRST


def test_arguments_that_are_not_checked_explain_no_lost_sample_nor_the_reverse() -> None:
    """A sampler that loses samples was told to begin with its missing checks of arguments."""
    seen = failures()
    root = root_failure([seen["SHARD-7"], seen["SHARD-2"]])
    assert root is not None
    assert root.rule == "SHARD-2"
    runner: Any = None  # It runs nothing.
    assert underlying(runner, seen["SHARD-7"], ShardCase()) == (seen["SHARD-7"], ShardCase())


@pytest.mark.parametrize(
    ("rule", "changes", "after"),
    [
        ("INIT-3", {"fact": SOURCE_CHANGED}, "INIT-4"),
        ("GRAD-5", {"causes": (Cause("bfloat16", "rounded"),)}, "GRAD-2"),
    ],
)
def test_a_failure_of_its_own_kind_has_another_place(
    rule: str, changes: dict[str, object], after: str
) -> None:
    """Such a failure comes right after the rule that explains it; the others keep their order."""
    seen = failures()
    order = in_order({**seen, rule: replace(seen[rule], **changes)})  # type: ignore[arg-type]  # two fields' values
    assert order[order.index(after) + 1] == rule
    assert [one for one in order if one != rule] == [one for one in CAUSES_FIRST if one != rule]


@pytest.mark.parametrize("rule", [rule for rule in SHIPPED if rule != "COMM-6"])
def test_when_a_rule_applies_agrees_with_its_exclusions(rule: str) -> None:
    """A plain DDP is excluded from a `declared` rule; a DDP without capabilities from a `capability` one."""
    declares_nothing = Scope(backend=Backend("gloo-cuda", "cuda"))
    offers_nothing = Scope(without=frozenset(CAPABILITIES))
    applies = "capability" if offers_nothing.excluded(rule) else "always"
    applies = "declared" if declares_nothing.excluded(rule) else applies
    assert ALL_RULES[rule].applies == applies


@pytest.mark.parametrize("rule", SHIPPED)
def test_a_row_has_a_source_and_tells_its_reasons_apart(rule: str) -> None:
    """Two exclusions of one rule have different reasons."""
    reasons = [exclusion.reason for exclusion in ALL_RULES[rule].exclusions]
    assert ALL_RULES[rule].source
    assert len(set(reasons)) == len(reasons)


COMPARING = ("mean_at", "mean_with", "mean_of_the_local_gradients", "every_step", "trajectory_of")
"""Names of functions that compare reduced gradients, or what follows from them, with what is expected."""


@pytest.mark.parametrize("rule", training.rules)
def test_a_lossy_declaration_excuses_what_compares_with_expected_values(rule: str) -> None:
    """A row says what its judge compares, and the excuse follows; agreement is always asked for."""
    row = training.rules[rule]
    compares = any(name in getsource(row.judge).partition(":")[2] for name in COMPARING)
    assert not compares or {"values", "trajectory"} & {*row.of_reduced}
    update: Update = "own" if rule == "PARAM-7" else ""
    lossy = Scope(declared=Declarations(exactness="lossy", update=update))
    excused = bool(row.of_reduced) and "agreement" not in row.of_reduced
    assert (LOSSY in row.exclusions) is excused
    assert (row.why_excluded(lossy) == LOSSY.reason) is excused


def options_of(*strategies: Callable[..., object]) -> dict[str, object]:
    """Return the options of strategies with their defaults."""
    return {
        name: parameter.default
        for strategy in strategies
        for name, parameter in signature(strategy).parameters.items()
    }


@pytest.mark.parametrize(
    ("draws", "options"),
    [
        (Draws, options_of(training_cases, models) | {"of_situations": ()}),
        (ShardDraws, options_of(shard_cases)),
    ],
)
def test_what_a_row_draws_are_options_of_the_strategy(
    draws: type, options: dict[str, object]
) -> None:
    """Every field is an option with the same default; the world sizes a row always states."""
    for field in fields(draws):
        assert field.name in options
        assert field.name == "world_sizes" or field.default == options[field.name]


def test_a_row_states_the_options_of_situations_and_no_others() -> None:
    """Rows draw alike if their options are equal, stated or not; an unknown option is refused."""
    for name, default in OPTIONS.items():
        assert Draws(**{name: default}) == Draws()
        assert Draws(**{name: "other"}).options == Draws().options | {name: "other"}
    with pytest.raises(TypeError, match="'schedulled'"):
        Draws(schedulled=True)
