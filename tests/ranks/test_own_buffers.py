"""Wrappers that a program asks to leave each rank its own buffers."""

from dataclasses import replace
from pathlib import Path

import pytest
from stored import stored_violation

from conftest import Run, TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, InjectedFailure
from ddp_invariants.cases.situation import Situation
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.required import RANKS
from ddp_invariants.discovery.result import Standing
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.export import script as export
from ddp_invariants.export.calls import call_text
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.capability import BASE
from ddp_invariants.situations.evaluated_layer import EvaluatedLayer
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.module_use import ModuleUse
from ddp_invariants.situations.own_buffers import OWN_BUFFERS, OwnBuffers
from ddp_invariants.situations.resized import Resized
from ddp_invariants.situations.second import SecondWrapper
from ddp_invariants.upgrades.corpus import drawn_cases

LAYERS = (Layer("linear", 4), Layer("statistics"), Layer("batch_norm"), Layer("linear", 4))
CASE = replace(BASE, model=Model(4, LAYERS), steps=4).with_situation(OwnBuffers())
ADAPTER = """
from ddp_invariants.reference.ddp import DistributedDataParallel


class Adapter:
    declares = {"supports": [SUPPORTED]}

    def wrap(self, module, context):
        return DistributedDataParallel(
            module, context.group, broadcast_buffers=not context.own_buffers
        )
"""
DOUBLES = """
    def after_backward(self, wrapped, optimizer):
        for parameter in wrapped.parameters():
            parameter.grad *= 2
"""


@pytest.mark.parametrize("ddp", ["reference", "torch"])
def test_right_wrappers_leave_each_rank_its_own_buffers(make_trial: TrialMaker, ddp: str) -> None:
    """The rule judges it, and those about equal buffers say why they do not."""
    for world_size in (2, 3):
        findings = make_trial(ddp=ddp, scope=Scope()).findings(replace(CASE, world_size=world_size))
        assert not {rule for rule, each in findings.items() if each.failure}
        assert OWN_BUFFERS in findings["BUF-2"].met
        for rule in ("BUF-1", "INIT-2"):
            assert not findings[rule].about
            assert "asks for no broadcasts of buffers" in findings[rule].unjudged


@pytest.mark.parametrize(
    "other",
    [
        Actions((BetweenSteps("reload", 1),)),
        Actions((BetweenSteps("evaluation", 1), BetweenSteps("forward only", 2))),
        Actions((BetweenSteps("buffers", 2),)),
        Resized(1),
        SecondWrapper("in turn"),
        EvaluatedLayer(2),
        FailureInjection(InjectedFailure("forward error", 1)),
        SecondWrapper("kept"),
        ModuleUse(("names", "modes", "hooks", "copies", "wrapper copies")),
    ],
)
@pytest.mark.parametrize("ddp", ["reference", "torch"])
def test_they_do_so_in_other_situations(make_trial: TrialMaker, ddp: str, other: Situation) -> None:
    """A new wrapper, another model and a program that writes to them leave each rank its own."""
    findings = make_trial(ddp=ddp, scope=Scope()).findings(CASE.with_situation(other))
    assert not {rule for rule, each in findings.items() if each.failure}
    assert findings["BUF-2"].compared > 0


def test_a_broadcast_all_the_same_is_named(make_trial: TrialMaker) -> None:
    """The buffers of another rank are no failure without the argument."""
    trial = make_trial(ddp="ddp_invariants.faults.buffers:IgnoresTheArgument", scope=Scope())
    failure = trial.findings(CASE)["BUF-2"].failure
    assert failure is not None
    assert "told to leave alone" in failure.perhaps
    assert trial.findings(CASE.without(OwnBuffers))["BUF-2"].failure is None


@pytest.mark.parametrize("supported", [True, False])
def test_an_adapter_is_told_if_it_supports_own_buffers(
    pool: Pool, tmp_path: Path, *, supported: bool
) -> None:
    """Without the claim no case has them."""
    file = tmp_path / "adapter.py"
    file.write_text(ADAPTER.replace("SUPPORTED", '"own_buffers"' if supported else ""))
    probes = discover(pool, Ddp(f"{file}:Adapter"), Sampler(), 4).ddp_probes
    standings = {probe.capability: probe.standing for probe in probes}
    assert standings["own_buffers"] is (Standing.RIGHT if supported else Standing.ABSENT)


def test_an_argument_of_the_user_rules_such_cases_out_and_stays(pool: Pool) -> None:
    """A wrapper without such an argument has no such cases either."""
    for ddp in (
        Ddp("torch", (("forward_sync_buffers", "False"), ("broadcast_buffers", "None"))),
        Ddp("reference", (("broadcast_buffers", "True"),)),
        Ddp("fsdp2"),
    ):
        assert "own_buffers" in pool.describe(ddp)["lacks"]


def test_a_probe_of_buffers_has_no_such_case() -> None:
    """Rules about equal buffers step aside in it, so it would hide that buffers are wrong."""
    assert not OwnBuffers().joins
    capability = TRAINING["own_buffers"]
    assert capability.present(CASE)
    assert not capability.present(TRAINING["buffers"].removed(CASE))


def test_unset_buffers_are_no_such_case() -> None:
    """Without a broadcast they would stay unset."""
    with pytest.raises(CaseError, match="without broadcasts of buffers"):
        replace(CASE, init="unset")


def test_one_rank_cannot_meet_the_condition() -> None:
    """A session on one rank does not ask for it."""
    assert RANKS[OWN_BUFFERS] == 2


def test_a_comparison_of_versions_draws_no_such_case() -> None:
    """Versions of torch start differently with the argument, and some warn."""
    drawn = drawn_cases(Scope(), 200, "0")
    assert not any(isinstance(case, TrainingCase) and case.get(OwnBuffers) for case in drawn)


def test_a_script_tells_an_adapter(pool: Pool, run: Run, tmp_path: Path) -> None:
    """The context of a script has the field, also in a case without the situation."""
    file = tmp_path / "adapter.py"
    file.write_text(f"{ADAPTER.replace('SUPPORTED', repr('own_buffers'))}{DOUBLES}")
    case = replace(BASE, model=Model(2, (Layer("linear"), Layer("statistics"))))
    for each in (case, case.with_situation(OwnBuffers())):
        stored = stored_violation(pool, each, "GRAD-2", ddp=f"{file}:Adapter")
        status, output = run(export.script(pool, stored))
        assert (status, output.partition(":")[0]) == (1, "GRAD-2"), output


def test_a_script_passes_the_argument(pool: Pool) -> None:
    """Only the script of such a case has it."""
    rows = pool.describe(Ddp("reference"))["source"]["wrap"]
    assert "broadcast_buffers=False" in call_text("Wrapper", "model", rows, CASE)
    plain = call_text("Wrapper", "model", rows, CASE.without(OwnBuffers))
    assert "broadcast_buffers" not in plain
