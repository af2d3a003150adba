"""Every situation is known, refuses what cannot be, survives JSON and is drawn where an option asks for it."""

import ast
import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from torch import nn
from torch.nn.utils import prune

from ddp_invariants import situations
from ddp_invariants.cases.case import TrainingCase, describe, to_json
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, Unused
from ddp_invariants.cases.situation import Situation
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.search.strategies import training_cases
from ddp_invariants.situations import SITUATIONS, from_plain
from ddp_invariants.situations.autocast import Autocast
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.capability import BASE
from ddp_invariants.situations.clipping import Clipping
from ddp_invariants.situations.direct_forwards import DirectForwards
from ddp_invariants.situations.draft import MOMENTS
from ddp_invariants.situations.module_use import ModuleUse
from ddp_invariants.situations.passes import PassOrder
from ddp_invariants.situations.unused import UnusedLayers

FOLDER = Path(situations.__file__).parent
CASE = TrainingCase(Model(1, (Layer("linear"),)))
ASKED: dict[str, object] = {
    "perturbed": ("withheld",),
    "injected_failures": ("forward error",),
    "between_steps": ("evaluation",),
    "scaled": 1,
    "autocast": 1,
    "call_shapes": ("all",),
}
"""Values of options that ask for a situation; of the other options, True does."""


def test_every_class_of_a_situation_is_registered() -> None:
    """A module in the folder that `SITUATIONS` leaves out would never be drawn, nor read from a file."""
    names = {
        node.name
        for path in FOLDER.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "Situation" for base in node.bases)
    }
    assert names == {kind.__name__ for kind in SITUATIONS}
    assert len({name for kind in SITUATIONS for name in kind.options}) == sum(
        len(kind.options) for kind in SITUATIONS
    )
    assert {kind.moment for kind in SITUATIONS} <= {"", *MOMENTS}


def test_modules_of_situations_import_the_standard_library_alone() -> None:
    """Ranks read them: they have neither Hypothesis nor pydantic, and the controller has no torch."""
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            imported = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for name in imported:
                assert name.partition(".")[0] not in {"torch", "numpy", "hypothesis", "pydantic"}


@pytest.mark.parametrize("kind", SITUATIONS, ids=lambda kind: kind.__name__)
def test_a_situation_survives_json_and_can_be_taken_out(kind: type[Situation]) -> None:
    """In the probes of its capabilities; what it makes simpler is of its own kind."""
    probes = [TRAINING[name].probe for name in kind.capabilities()]
    for probe in probes:
        found = probe.get(kind)
        assert found is not None
        assert from_plain(json.loads(to_json(probe))) == probe
        assert found.words in describe(probe)
        assert all(isinstance(simpler, kind) and simpler != found for simpler in found.simpler())
        assert probe.without(kind).get(kind) is None
        assert probe.without(kind).with_situation(found) == probe


@pytest.mark.parametrize("kind", SITUATIONS, ids=lambda kind: kind.__name__)
def test_a_situation_is_drawn_where_its_option_asks_for_it(kind: type[Situation]) -> None:
    """In some case; a situation without an option is drawn with others."""
    options: dict[str, object] = {name: ASKED.get(name, True) for name in kind.options}
    if not options:
        options = {"passes": True} if kind.__name__ == "Penalty" else {"accumulated": True}
    find(
        training_cases(Scope(), least_steps=2, **options),  # type: ignore[arg-type]  # as asked
        lambda case: case.get(kind) is not None,
        settings=settings(
            max_examples=500,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_unused_layers_give_way_to_actions_that_exclude_them() -> None:
    """A drawn case never ends a search because nothing would be trained."""
    two = replace(CASE, model=Model(1, (Layer("linear"),) * 2), steps=2)
    unused = two.with_situation(UnusedLayers((Unused(0, step=0),)))
    actions = Actions((BetweenSteps("freeze", 1, 1),))
    with pytest.raises(CaseError):
        unused.with_situation(actions)
    fitted = actions.fitted(unused)
    assert fitted.get(Actions) == actions
    assert fitted.get(UnusedLayers) is None


@pytest.mark.parametrize(
    ("layer", "others", "words"),
    [
        (Layer("linear", layout="transposed"), (), "which is contiguous"),
        (Layer("linear", twice=True), (), "used once a forward"),
        (Layer("linear", dtype="complex64"), (), "a real weight"),
        (Layer("scale"), (), "linear layers"),
        (Layer("linear"), (BetweenSteps("reload", 1),), "none that loads or copies tensors"),
        (Layer("linear"), (BetweenSteps("buffers", 1),), "none that loads or copies tensors"),
        (Layer("linear"), (BetweenSteps("prune", 1),), "each layer pruned once"),
    ],
)
def test_only_a_layer_is_pruned_whose_bits_stay(
    layer: Layer, others: tuple[BetweenSteps, ...], words: str
) -> None:
    """Pruning makes a layer's weight anew in each forward, and gives its parameter another name."""
    case = replace(CASE, model=Model(1, (layer,)), steps=2)
    with pytest.raises(CaseError, match=words):
        case.with_situation(Actions((BetweenSteps("prune", 1), *others)))


def test_a_pruned_layer_is_called_and_never_run_without_its_hooks() -> None:
    """A hook of the layer computes its weight."""
    case = replace(CASE, model=Model(1, (Layer("linear"),)), steps=2)
    pruned = case.with_situation(Actions((BetweenSteps("prune", 1),)))
    with pytest.raises(CaseError, match="none of direct forwards"):
        pruned.with_situation(DirectForwards())


def test_a_pruned_layer_has_one_forward_in_each_backward() -> None:
    """Each forward computes the weight anew, so two of them have other tensors than one."""
    case = replace(CASE, model=Model(1, (Layer("linear"),)), steps=2, accumulation=2)
    pruned = case.with_situation(Actions((BetweenSteps("prune", 1),)))
    with pytest.raises(CaseError, match="alternate if a layer is pruned"):
        pruned.with_situation(PassOrder("joint"))


def test_no_module_is_copied_whose_layer_is_pruned() -> None:
    """A copy of the computed weight is refused by torch, whatever wraps the module."""
    case = replace(CASE, model=Model(1, (Layer("linear"),)), steps=2)
    pruned = case.with_situation(Actions((BetweenSteps("prune", 1),)))
    layer = nn.Linear(1, 1)
    prune.identity(layer, "weight")
    with pytest.raises(RuntimeError, match="graph leaves"):
        deepcopy(layer)
    for use in ("copies", "wrapper copies"):
        with pytest.raises(CaseError, match="no copies if a layer is pruned"):
            pruned.with_situation(ModuleUse((use,)))
    uses = ModuleUse(("names", "copies", "wrapper copies"))
    assert uses.fitted(pruned).get(ModuleUse) == ModuleUse(("names",))


def test_an_option_that_no_situation_has_is_refused() -> None:
    """Silently ignored, it would let a rule pass that never met what it is about."""
    with pytest.raises(TypeError, match="has no option 'cliped'"):
        find(training_cases(Scope(), cliped=True), lambda _: True)


def test_a_case_lists_its_situations_in_one_order() -> None:
    """The same case has one JSON form and one id, in whichever order situations were added."""
    first = replace(BASE, situations=(Autocast(), Clipping(1.0)))
    assert first == BASE.with_situation(Clipping(1.0)).with_situation(Autocast())
    assert [type(each) for each in first.situations] == [Clipping, Autocast]


def test_a_case_with_two_situations_of_one_kind_is_refused() -> None:
    """Nothing says which of the two holds."""
    with pytest.raises(CaseError, match=r"situations is .*, expected at most one of each kind"):
        replace(CASE, situations=(Clipping(1.0), Clipping(2.0)))


def test_an_unknown_kind_is_refused_in_one_sentence() -> None:
    """It names the kinds that there are."""
    plain = json.loads(to_json(CASE))
    plain["situations"] = [{"kind": "eclipse"}]
    with pytest.raises(CaseError, match=r"^kind is 'eclipse', expected one of 'poison', "):
        from_plain(plain)
