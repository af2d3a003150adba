"""A wrapped module has the hooks, names, modes, copies and states of the unwrapped one."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.dtypes import Dtype
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data, Optimizer
from ddp_invariants.cases.situation import Situation
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.records.verdict import Failure, Finding
from ddp_invariants.situations.evaluated_layer import EvaluatedLayer
from ddp_invariants.situations.module_use import ModuleUse, Use

CASE = TrainingCase(
    Model(2, (Layer("linear", 3, bias=True), Layer("scale", frozen=True), Layer("linear", 2))),
    steps=2,
    data=Data(samples=12, batch_size=3),
)
RULES = {
    "names": "MOD-2",
    "modes": "MOD-2",
    "hooks": "MOD-1",
    "copies": "MOD-3",
    "wrapper copies": "MOD-3",
    "states": "MOD-4",
}
FAULTS: dict[str, Use] = {
    "CallsForward": "hooks",
    "LooksFirst": "hooks",
    "RemovesHooks": "hooks",
    "KeepsTheMode": "modes",
    "AppliesToItself": "modes",
    "ListsWhatIsTrained": "names",
    "BindsForward": "copies",
    "SharesParameters": "copies",
    "CopiesItsPlan": "wrapper copies",
    "SharesMeans": "wrapper copies",
    "KeepsASnapshot": "states",
}

SUMMING = """
    def after_backward(self, wrapped, optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
"""
ADAPTER = """
import torch.distributed as dist

class Summing:
    def wrap(self, module, context):
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), 0)
        self.held = module
        return module

    AFTER
"""
"""An adapter whose calls sum gradients, or hold the module, beside the wrapper."""


def _failures(findings: dict[str, Finding]) -> dict[str, Failure]:
    """Return the failures of rules, less that of a wrapper which communicates after backward."""
    return {
        rule: each.failure for rule, each in findings.items() if each.failure and rule != "COMM-5"
    }


@pytest.mark.parametrize(
    "ddp",
    [
        "reference",
        "torch",
        "ddp_invariants.faults.modules:NamedAsTheModule",
        "ddp_invariants.faults.modules:SavesTheModule",
        "ddp_invariants.faults.modules:HooksBesideOthers",
        "ddp_invariants.faults.modules:KeepsMeans",
        "ddp_invariants.faults.modules:PicklesNoHandles",
    ],
)
def test_a_right_wrapper_is_still_a_module(make_trial: TrialMaker, ddp: str) -> None:
    """No rule fails in any use, and the rule about the use is judged."""
    trial = make_trial(ddp=ddp, scope=Scope())
    for uses in (*((use,) for use in get_args(Use)), get_args(Use)):
        findings = trial.findings(CASE.with_situation(ModuleUse(uses)))
        assert _failures(findings) == {}, uses
        assert all(findings[RULES[use]].compared for use in uses if use in RULES)
        assert findings["PARAM-3"].compared


def test_a_copy_takes_a_batch_of_another_size_than_the_step_before(make_trial: TrialMaker) -> None:
    """A copy with dropout does not use the numbers that were drawn for an earlier batch."""
    case = replace(
        CASE,
        model=Model(2, (Layer("linear", 2), Layer("dropout"))),
        data=Data(samples=10, batch_size=3),
        situations=(ModuleUse(("copies", "wrapper copies")),),
    )
    findings = make_trial(scope=Scope()).findings(case)
    assert _failures(findings) == {}
    assert findings["MOD-3"].compared


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows_in_its_use_alone(make_trial: TrialMaker, fault: str) -> None:
    """Plain training shows nothing; the use of the module violates the rule."""
    trial = make_trial(ddp=f"ddp_invariants.faults.modules:{fault}", scope=Scope())
    plain = trial.findings(CASE)
    assert _failures(plain) == {}
    use = FAULTS[fault]
    assert trial.findings(CASE.with_situation(ModuleUse((use,))))[RULES[use]].failure is not None


def test_averaging_the_first_group_alone_shows_with_a_second_group(
    make_trial: TrialMaker,
) -> None:
    """The parameters of the second group then differ between ranks."""
    trial = make_trial(
        ddp="ddp_invariants.faults.modules:first_group_only",
        scope=Scope(declared=Declarations(gradients="hidden")),
    )
    assert trial.findings(CASE)["PARAM-1"].failure is None
    findings = trial.findings(CASE.with_situation(ModuleUse(("groups",))))
    assert findings["PARAM-1"].failure is not None


@pytest.mark.parametrize(
    "more",
    [
        "",
        "def before_batch(self, wrapped, optimizer): self.optimizer = optimizer",
        "def forward(self, wrapped, *args): return self.held(*args)",
        "def backward(self, wrapped, optimizer, loss): loss.backward()",
    ],
)
def test_no_copy_is_trained_by_calls_that_hold_the_original(
    make_trial: TrialMaker, tmp_path: Path, more: str
) -> None:
    """An adapter that sums over the optimizer's parameters would sum those of the original."""
    path = tmp_path / "adapter.py"
    path.write_text(ADAPTER.replace("AFTER", more or SUMMING))
    scope = Scope(declared=Declarations(reduction="sum", unsupported=("unused",)))
    trial = make_trial(ddp=f"{path}:Summing", scope=scope)
    case = replace(CASE, world_size=3)
    if not more:
        plain = trial.findings(case)
        assert _failures(plain) == {}
        assert plain["PARAM-3"].compared
    finding = trial.findings(case.with_situation(ModuleUse(("wrapper copies",))))["MOD-3"]
    assert finding.failure is None
    assert not finding.compared


def test_a_sharded_optimizer_that_nobody_declares_is_not_accused(make_trial: TrialMaker) -> None:
    """Each rank holds the momentum of its own parameters, and all parameters are right."""
    trial = make_trial(ddp="ddp_invariants.faults.modules:steps_its_own", scope=Scope())
    findings = trial.findings(replace(CASE, optimizer=Optimizer(momentum=0.5)))
    assert _failures(findings) == {}
    assert "declare optimizer = own" in findings["PARAM-2"].unjudged
    assert findings["PARAM-3"].compared


@pytest.mark.parametrize(
    ("optimizer", "is_right"),
    [
        ("ddp_invariants.faults.optimizers:Owned", True),
        ("torch.distributed.optim:ZeroRedundancyOptimizer", True),
        ("ddp_invariants.faults.optimizers:DividesOnce", False),
    ],
)
def test_an_optimizer_under_test_gets_a_group_after_it_was_made(
    make_trial: TrialMaker, optimizer: str, *, is_right: bool
) -> None:
    """Parameters of the added group move as the others do."""
    trial = make_trial(ddp=Ddp(optimizer=optimizer), scope=Scope())
    findings = trial.findings(CASE.with_situation(ModuleUse(("groups",))))
    assert findings["PARAM-3"].compared
    failures = _failures(findings)
    assert ("PARAM-3" in failures) is not is_right, failures
    assert is_right or "no update was made" in failures["PARAM-3"].perhaps


HOOKING = """
import torch
import torch.distributed as dist

class OnParameters(torch.optim.SGD):
    def add_param_group(self, group):
        super().add_param_group(group)
        for parameter in self.param_groups[-1]["params"]:
            dist.broadcast(parameter.detach(), 0)
            self.hook(parameter)

    def hook(self, parameter):
        parameter.register_post_accumulate_grad_hook(mean)

class OnAccumulators(OnParameters):
    def hook(self, parameter):
        accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        accumulator.register_hook(lambda *_: mean(parameter))
        self.kept = [*getattr(self, "kept", ()), accumulator]

class OfTheStart(torch.optim.SGD):
    def __init__(self, params, lr, **options):
        super().__init__(params, lr=lr, **options)
        for group in self.param_groups:
            for parameter in group["params"]:
                dist.broadcast(parameter.detach(), 0)
                parameter.register_post_accumulate_grad_hook(mean)

def mean(parameter):
    dist.all_reduce(parameter.grad)
    parameter.grad.div_(dist.get_world_size())
"""
"""Optimizers that need no wrapper, since hooks average gradients; the last forgets added groups."""


@pytest.mark.parametrize(
    ("optimizer", "is_right"),
    [("OnParameters", True), ("OnAccumulators", True), ("OfTheStart", False)],
)
def test_an_optimizer_that_hooks_parameters_is_made_once(
    make_trial: TrialMaker, tmp_path: Path, optimizer: str, *, is_right: bool
) -> None:
    """The hooks of another one would average each gradient again."""
    (tmp_path / "hooking.py").write_text(HOOKING, encoding="utf-8")
    hooking = Ddp("none", optimizer=str(tmp_path / f"hooking.py:{optimizer}"))
    trial = make_trial(ddp=hooking, scope=Scope())
    plain = replace(CASE, model=Model(2, (Layer("linear", 2), Layer("linear", 2))))
    assert _failures(trial.findings(plain)) == {}
    grouped = trial.findings(plain.with_situation(ModuleUse(("groups",))))
    assert grouped["GRAD-1"].compared or grouped["PARAM-3"].compared or not is_right
    assert (_failures(grouped) == {}) is is_right


PARTS = """
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Part(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *inputs):
        return self.inner(*inputs)

class Parts:
    def wrap(self, module, context):
        layers = next(each for each in module.modules() if isinstance(each, nn.ModuleList))
        for index, layer in enumerate(layers):
            layers[index] = Part(layer)
        return DistributedDataParallel(module)
"""
"""An adapter that wraps each layer in place, and so inserts a module into the layers' names."""


@pytest.mark.parametrize("situation", [ModuleUse(("modes",)), EvaluatedLayer()])
def test_modes_reach_the_layers_that_a_wrapper_has_wrapped_in_place(
    make_trial: TrialMaker, tmp_path: Path, situation: Situation
) -> None:
    """The layers are the ones that the module had before, although their names are longer now."""
    path = tmp_path / "parts.py"
    path.write_text(PARTS)
    trial = make_trial(ddp=f"{path}:Parts", scope=Scope())
    finding = trial.findings(CASE.with_situation(situation))["MOD-2"]
    assert finding.failure is None
    assert finding.compared


SAVING = """
import copy
import torch
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference

class Widens(Reference):
    \"\"\"Saves parameters of low precision as float32; a load casts them back.\"\"\"

    def state_dict(self, *args, **options):
        state = super().state_dict(*args, **options)
        return {
            name: value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
            for name, value in state.items()
        }

class SavesTwice(Reference):
    \"\"\"Holds its module a second time, and saves clones of all values.\"\"\"

    def __init__(self, module, **options):
        super().__init__(module, **options)
        self.inner = module

    def state_dict(self, *args, **options):
        state = super().state_dict(*args, **options)
        return {name: value.detach().clone() for name, value in state.items()}

class Averages(Reference):
    \"\"\"Saves averages of the parameters before the parameters themselves.\"\"\"

    def state_dict(self, *args, **options):
        state = super().state_dict(*args, **options)
        averages = {f"averages.{name}": torch.full_like(value, 3) for name, value in state.items()}
        return {**getattr(self, "averages", averages), **state}

    def load_state_dict(self, state, *args, **options):
        self.averages = {
            name: value for name, value in state.items() if name.startswith("averages.")
        }
        own = {name: value for name, value in state.items() if name not in self.averages}
        return self.forget(own, *args, **options)

    def forget(self, own, *args, **options):
        return super().load_state_dict(own, *args, **options)

class ForgetsBesideAverages(Averages):
    def forget(self, own, *args, **options):
        pass
"""
"""Wrappers that save more than their module's parameters, or in another form."""


@pytest.mark.parametrize(
    ("name", "dtypes", "judged", "fails"),
    [
        ("Widens", ("float32", "bfloat16"), True, False),
        ("Widens", ("bfloat16", "bfloat16"), False, False),
        ("SavesTwice", ("float32", "float32"), True, False),
        ("Averages", ("float32", "float32"), True, False),
        ("ForgetsBesideAverages", ("float32", "float32"), True, True),
    ],
)
def test_what_a_state_holds_beside_the_parameters_is_not_accused(
    make_trial: TrialMaker,
    tmp_path: Path,
    name: str,
    dtypes: tuple[Dtype, Dtype],
    *,
    judged: bool,
    fails: bool,
) -> None:
    """Only parameters that are saved as they are tell anything; a load must reach these."""
    path = tmp_path / "saving.py"
    path.write_text(SAVING)
    layers = tuple(Layer("linear", 2, dtype=dtype) for dtype in dtypes)
    case = replace(CASE, model=Model(2, layers), situations=(ModuleUse(("states",)),))
    findings = make_trial(ddp=f"{path}:{name}", scope=Scope()).findings(case)
    assert (findings["MOD-4"].failure is not None) == fails, findings["MOD-4"].unjudged
    assert (findings["MOD-4"].compared > 0) == judged
    if not fails:
        assert _failures(findings) == {}
        assert findings["PARAM-3"].compared
