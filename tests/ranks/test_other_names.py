"""Layers with other names: right wrappers hold, and a script repeats what a wrong one does."""

from dataclasses import replace
from pathlib import Path

import pytest
from stored import stored_violation

from conftest import Run, TrialMaker
from ddp_invariants.cases.layers import Layer, Model, Naming
from ddp_invariants.cases.program import BetweenSteps, Data, Optimizer
from ddp_invariants.discovery import probe
from ddp_invariants.discovery.result import Standing
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.export import script as export
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants.init import OTHER_NAMES
from ddp_invariants.processes.pool import Pool
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.capability import BASE
from ddp_invariants.situations.module_use import ModuleUse

NAMINGS: tuple[Naming, ...] = ("module", "underscored", "joined", "cased")
LAYERS = (
    Layer("linear", 4, bias=True, layout="strided"),
    Layer("linear", 4, frozen=True),
    Layer("dropout"),
    Layer("terms", 2),
    Layer("statistics"),
    Layer("statistics"),
    Layer("linear", 4, tied=0),
)
RELOADED = Actions((BetweenSteps("reload", 1),))
REFUSES = """
from ddp_invariants.reference.ddp import DistributedDataParallel


class Refuses(DistributedDataParallel):
    def __init__(self, module, process_group=None, bucket_cap_mb=25.0):
        names = [name.replace(".", "_") for name, _ in module.named_parameters()]
        if len({*names}) < len(names):
            raise ValueError("two names are alike")
        super().__init__(module, process_group, bucket_cap_mb)
"""


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize(
    "ddp", ["reference", "torch", "ddp_invariants.faults.named:KeepsNamesApart"]
)
def test_right_wrappers_hold_with_other_names(
    make_trial: TrialMaker, ddp: str, naming: Naming
) -> None:
    """All rules hold, also after a reload and with the wrapper's own lists of names."""
    case = replace(BASE, model=Model(4, LAYERS, naming), steps=3, optimizer=Optimizer(momentum=0.5))
    trial = make_trial(ddp=ddp, scope=Scope())
    for situation in (RELOADED, ModuleUse(("names", "modes", "hooks", "copies"))):
        findings = trial.findings(case.with_situation(situation))
        failed = {rule: each.failure for rule, each in findings.items() if each.failure}
        # One of them communicates at the end of backward, or leaves buffers to each rank.
        assert failed.keys() <= {"COMM-5", "BUF-1"}
        assert findings["INIT-3"].met >= {[*OTHER_NAMES][NAMINGS.index(naming)]}
        assert findings["GRAD-3"].compared > 0


@pytest.mark.parametrize(
    ("fault", "rule", "naming", "words"),
    [
        ("KeysWithUnderscores", "GRAD-1", "underscored", "'block0.layer.weight'"),
        ("KeysWithoutDots", "INIT-1", "joined", "'block0.layer.weight'"),
        ("KeysInLowerCase", "GRAD-1", "cased", "'layer0.weight'"),
    ],
)
def test_a_script_has_the_same_names(
    pool: Pool, run: Run, fault: str, rule: str, naming: Naming, words: str
) -> None:
    """The script shows the violation under the names of the case, and none of a right wrapper."""
    case = replace(
        BASE, model=Model(1, (Layer("linear"), Layer("linear")), naming), data=Data(samples=4)
    )
    stored = stored_violation(pool, case, rule, ddp=f"ddp_invariants.faults.named:{fault}")
    text = export.script(pool, stored)
    status, output = run(text)
    assert (status, output.partition(":")[0]) == (1, rule), output
    assert words in output
    assert run(text.replace(fault, "KeepsNamesApart")) == (0, "not reproduced\n")


def test_names_that_an_implementation_refuses_are_not_drawn(pool: Pool, tmp_path: Path) -> None:
    """A probe finds the refusal of one naming, and the others are drawn."""
    path = tmp_path / "refuses.py"
    path.write_text(REFUSES)
    found = probe.discover(pool, Ddp(f"{path}:Refuses"), Sampler(), 4, sides={"ddp"})
    standings = {each.capability: each.standing for each in found.ddp_probes}
    assert standings["alike_underscored"] is Standing.REFUSED
    assert standings["alike_joined"] is standings["named_module"] is Standing.RIGHT
    scope = found.scope(4)
    case = replace(BASE, model=replace(BASE.model, naming="underscored"))
    assert scope.fit(case) == BASE
    assert scope.unclaimed >= {"names equal with underscores for dots"}
