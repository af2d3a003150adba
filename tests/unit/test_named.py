"""The names of layers: unique, in order, and alike only where a case says so."""

import pickle
from copy import deepcopy
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from ddp_invariants.cases.case import TrainingCase, describe
from ddp_invariants.cases.features import features
from ddp_invariants.cases.layers import Layer, Model, Naming
from ddp_invariants.cases.program import Unused
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.export.calls import frozen, model
from ddp_invariants.invariants.init import OTHER_NAMES
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.search.crossing import crossed
from ddp_invariants.search.drawing import independent
from ddp_invariants.search.strategies import cases_for, training_cases
from ddp_invariants.situations.capability import BASE
from ddp_invariants.situations.unused import UnusedLayers

NAMINGS: tuple[Naming, ...] = get_args(Naming)
CONDITIONS = dict(zip(NAMINGS[1:], OTHER_NAMES, strict=True))
LAYERS = (
    Layer("embedding"),
    Layer("linear", 4, bias=True),
    Layer("linear", 4, tied=1, frozen=True),
    Layer("terms", 2),
    *(Layer("statistics"),) * 2,
    Layer("dropout"),
    *(Layer("linear", 4),) * 20,
)


def named(naming: Naming) -> TrainingCase:
    """Return a case with four layers of equal shapes, and with a scale if a naming needs one."""
    more = (Layer("scale"),) if naming == "rooted" else ()
    return replace(BASE, model=replace(BASE.model, layers=BASE.model.layers + more, naming=naming))


@pytest.mark.parametrize("naming", NAMINGS)
def test_tensors_are_registered_in_the_order_of_layers(naming: Naming) -> None:
    """Each name begins with the path of its layer, and lists of names keep the layers' order."""
    scales = (Layer("scale"), Layer("scale"), Layer("linear", 4))
    # A module lists its own parameters before those of its children.
    layers = scales[:1] + LAYERS[1:] if naming == "rooted" else LAYERS
    plan = Model(4, layers + scales, naming)
    replica = Replica(plan, np.ones(plan.numbers))
    for named_tensors in (replica.named_parameters(), replica.named_buffers()):
        indices = [plan.index_of(name) for name, _ in named_tensors]
        assert None not in indices
        assert indices == sorted(indices, key=lambda index: index or 0)
    names = {name for name, _ in replica.named_parameters()}
    assert plan.used(frozenset()) == names
    assert plan.unsaved <= {name for name, _ in replica.named_buffers()}
    assert [replica.get_submodule(plan.path(index)) for index in range(len(plan.layers))] == [
        *replica.stack
    ]
    assert len(replica.drawing) == 1


@pytest.mark.parametrize("naming", NAMINGS)
def test_names_are_alike_only_in_the_way_that_the_naming_says(naming: Naming) -> None:
    """Each naming is one that INIT-3 tells apart, and numbered layers are none of them."""
    plan = named(naming).model
    names = plan.used(frozenset())
    assert len(names) == 4 + (naming == "rooted")
    met = [condition for condition, is_met in OTHER_NAMES.items() if is_met(set(names))]
    assert met == ([CONDITIONS[naming]] if naming in CONDITIONS else [])


def test_a_name_of_no_layer_has_no_index() -> None:
    """A name must go on after the path, so that the first layer's is no start of the tenth's."""
    plan = Model(1, (Layer("scale"),) * 11)
    assert plan.index_of("layers.1.factor") == 1
    assert plan.index_of("layers.10.factor") == 10
    assert plan.index_of("layers.1") is None
    assert plan.index_of("module.layers.1.factor") is None


def test_an_unknown_naming_is_refused() -> None:
    """The message names the field and its values."""
    with pytest.raises(CaseError, match="naming is 'dotted', expected one of 'numbered', 'module'"):
        Model(1, (Layer("linear"),), "dotted")  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("naming", NAMINGS[1:])
def test_other_names_are_shown_and_made_simpler(naming: Naming) -> None:
    """A case says its naming, has it as a feature, and is tried with numbered layers."""
    case = named(naming)
    assert describe(case).count(f" naming={naming}") == 1
    assert "naming" not in describe(BASE)
    assert f"{naming} names" in features(case)
    cases = [each for each in simpler(case) if isinstance(each, TrainingCase)]
    assert replace(BASE, model=replace(case.model, naming="numbered")) in cases
    assert {each.model.naming for each in cases} == {naming, "numbered"}


@pytest.mark.parametrize("naming", NAMINGS[1:])
def test_an_implementation_without_the_capability_gets_numbered_layers(naming: Naming) -> None:
    """One capability stands for each naming, can be added to a case, and is removed from it."""
    case = named(naming)
    numbered = replace(case, model=replace(case.model, naming="numbered"))
    (name,) = (
        name
        for name, capability in TRAINING.items()
        if capability.present(case) and not capability.present(numbered)
    )
    assert crossed(BASE, name, Scope()).model == case.model
    assert Scope(without=frozenset({name})).fit(case) == numbered
    assert TRAINING[name].conditions == {CONDITIONS[naming]}


@pytest.mark.parametrize("naming", NAMINGS)
def test_names_of_frozen_and_unused_parameters_are_those_of_the_module(naming: Naming) -> None:
    """The case, the oracle and a script compute names without the module."""
    layers = (Layer("linear", 4), Layer("scale", frozen=True), Layer("linear", 4))
    case = replace(BASE, model=Model(4, layers, naming))
    path = case.model.path
    factor = "factor" if naming == "rooted" else f"{path(1)}.factor"
    assert case.frozen(0) == {factor} == {*frozen(case)}
    unused = case.with_situation(UnusedLayers((Unused(2),)))
    passed = unused.model.used(unused.never_used(0, 0))
    assert passed == {f"{path(0)}.weight", factor}


@pytest.mark.parametrize("naming", NAMINGS)
def test_a_script_registers_layers_under_the_same_names(naming: Naming) -> None:
    """The lines make each container once, before its first layer."""
    _, building, forward = model(named(naming))
    expected = {
        "numbered": ["self.layers = nn.ModuleList()", "self.layers.append(", "self.layers[1](x)"],
        "module": ["self.module = nn.ModuleList()", "self.module.append(", "self.module[1](x)"],
        "underscored": ["self.block0 = nn.Module()", "self.block0.layer =", "self.block0_layer(x)"],
        "joined": ["self.block0 = nn.Module()", "self.block0.layer =", "self.block0layer(x)"],
        "cased": ["self.layer0 =", "self.Layer0 =", "self.Layer0(x)"],
        "rooted": ["self.layers = nn.ModuleList()", "self.layers.append(", "self.layers[1](x)"],
    }[naming]
    assert building[0].startswith(expected[0])
    assert building[1].startswith(expected[1])
    assert expected[2] in forward[1]
    containers = {"underscored": 2, "joined": 2, "cased": 0}.get(naming, 1)
    assert sum(line.endswith("()") for line in building) == containers
    if naming == "rooted":
        assert building[-2].startswith("self.factor = nn.Parameter(")
        assert forward[-1] == "x = x.to(self.factor.dtype) * self.factor"


def test_a_module_holds_the_factor_of_its_first_real_scale() -> None:
    """A complex scale keeps its own; a copy's layer takes the factor of the copy."""
    layers = (Layer("linear", 4), Layer("scale", dtype="complex64"), *(Layer("scale"),) * 2)
    assert [Model(4, layers[:count], "rooted").rooted for count in (2, 3, 4)] == [None, 2, 2]
    assert Model(4, layers).rooted is None
    replica = Replica(Model(1, (Layer("scale"),), "rooted"), np.full(1, 3.0))
    assert [name for name, _ in replica.named_parameters()] == ["factor"]
    pickled = pickle.loads(pickle.dumps(replica))  # noqa: S301 - made here
    for copied in (deepcopy(replica), pickled):
        with torch.no_grad():
            copied.factor.fill_(5)
        assert copied(torch.ones(1, 1)).item() == 5
    assert replica(torch.ones(1, 1)).item() == 3


def share(strategy: object, cases: int) -> float:
    """Return how many of some drawn cases have other names."""
    drawn: list[TrainingCase] = []

    @seed(0)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(independent(strategy))  # type: ignore[arg-type]  # a strategy for cases
    def draw(case: TrainingCase) -> None:
        drawn.append(case)

    draw()
    return sum(case.model.naming != "numbered" for case in drawn) / len(drawn)


def test_a_few_per_cent_of_cases_have_other_names_and_a_third_of_inits_own() -> None:
    """INIT-3 draws them often, and every other rule meets them now and then."""
    assert 0 < share(training_cases(Scope()), 200) < 0.12
    assert share(cases_for("INIT-3", Scope()), 100) > 0.2
