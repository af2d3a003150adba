"""Optimizers that take no class of torch get the case's settings, and are judged by their own update."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stored import stored_violation

from conftest import Run, TrialMaker
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, Optimizer, OptimizerKind
from ddp_invariants.cases.situation import Situation
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import LoadFailure
from ddp_invariants.export import script as export
from ddp_invariants.implementation.declarations import Declarations, declare
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants.state import FEWER
from ddp_invariants.processes.pool import Pool
from ddp_invariants.ranks.driving.settings import UPDATES, Settings
from ddp_invariants.records.evidence import TrainingEvidence
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.capability import BASE
from ddp_invariants.situations.resized import Resized
from ddp_invariants.situations.schedule import RateSchedule

CASE = replace(
    BASE, model=Model(2, (Layer("linear", 3), Layer("linear", 1))), steps=3, values="real"
)
PLANS = {
    "sgd": Optimizer(momentum=0.5, weight_decay=0.25, nesterov=True),
    "adam": Optimizer("adam", weight_decay=0.25),
    "adamw": Optimizer("adamw", log2_lr=-4),
}
OWN = """
import torch

class Own(torch.optim.Optimizer):
    declares = {"update": "adamw"}

    def __init__(self, params, learning_rate=1.0, betas=(0.5, 0.5), eps=1.0, weight_decay=0.5):
        settings = dict(lr=learning_rate, betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("inner", torch.optim.AdamW([parameter], **self.settings(group)))
                state["inner"].step()

    def settings(self, group):
        return {name: value for name, value in group.items() if name in self.defaults}

class Unusual(Own):
    def __init__(self, params, learning_rate=1.0, betas=(0.5, 0.5), eps=1.0, weight_decay=0.5):
        super().__init__(params, learning_rate, betas, eps, weight_decay)
        for group in self.param_groups:
            group["learning_rate"] = group.pop("lr")

    def settings(self, group):
        return {**super().settings(group), "lr": group["learning_rate"]}

class Fixed(Own):
    def settings(self, group):
        return {**super().settings(group), "lr": 2.0**-5}

class InOne(torch.optim.SGD):
    def __init__(self, params, optimizer_kwargs=None):
        super().__init__(params, **(optimizer_kwargs or {}))

class Both(torch.optim.SGD):
    def __init__(self, params, lr=1.0, optimizer_kwargs=None):
        super().__init__(params, lr, **(optimizer_kwargs or {}))

class Kernels(torch.optim.SGD):
    def __init__(self, params, lr, momentum=0.0, weight_decay=0.0, *, nesterov=False, foreach=False):
        assert foreach in (True, False)
        super().__init__(params, lr, momentum, 0.0, weight_decay, nesterov, foreach=foreach)

class Rateless(torch.optim.AdamW):
    def __init__(self, params, weight_decay=0.5):
        super().__init__(params, 0.5, weight_decay=weight_decay)

class Averaged(torch.optim.AdamW):
    def __init__(self, params, lr, weight_decay=0.5):
        super().__init__(params, lr, betas=(0.9, 0.95), weight_decay=weight_decay)

class OfNames(torch.optim.SGD):
    def __init__(self, named_parameters, lr):
        super().__init__([parameter for _, parameter in named_parameters], lr)

class WithNames(torch.optim.SGD):
    def __init__(self, params, named_params, lr):
        assert all(name.endswith(("weight", "bias")) for name, _ in named_params)
        super().__init__(params, lr)

class Undecayed(torch.optim.AdamW):
    def __init__(self, params, lr):
        super().__init__(params, lr, weight_decay=0.0)

class Decayed(torch.optim.AdamW):
    def __init__(self, params, lr):
        super().__init__(params, lr)

class Signed(torch.optim.Optimizer):
    def __init__(self, params, lr=1.0, momentum=0.75, weight_decay=0.5):
        assert (momentum, weight_decay) == (0.75, 0.5), "only the learning rate is the case's"
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad.sign(), alpha=group["lr"])

class AnyRate(Signed):
    def __init__(self, params, **settings):
        assert {*settings} == {"lr"}
        super().__init__(params, **settings)

class InOneOfItsOwn(Signed):
    def __init__(self, params, optimizer_kwargs):
        super().__init__(params, **optimizer_kwargs)

class Requiring(Signed):
    def __init__(self, params, lr, betas):
        super().__init__(params, lr)

class NoRate(Signed):
    def __init__(self, params):
        super().__init__(params, 2.0**-6)

class Empty(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr)
        for group in self.param_groups:
            group["maximize"] = None

class Twice(OfNames):
    def __init__(self, named_parameters, lr):
        super().__init__(named_parameters, 2 * lr)

class Named(torch.optim.SGD):
    def __init__(self, params, lr=1.0, momentum=0.75):
        super().__init__(params, lr, momentum)

class OfAClass:
    def __init__(self, params, optimizer_class, lr=1.0, **optimizer_kwargs):
        self.inner = optimizer_class(params, lr=lr, **optimizer_kwargs)
        self.step, self.zero_grad = self.inner.step, self.inner.zero_grad

def made(params, lr):
    return torch.optim.SGD(params, lr)
"""
"""Optimizers whose defaults differ from torch's, and a function that makes one."""


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_settings_are_those_of_torch(kind: OptimizerKind) -> None:
    """What a callable names is passed, though the case has torch's default; other kernels are not."""
    names = ["learning_rate", "momentum", "betas", "eps", "amsgrad", "weight_decay", "foreach"]
    plain, torchs = Optimizer(kind), UPDATES[kind]
    passed = Settings(names, {}).of(torchs, plain.arguments)
    expected = {"learning_rate": plain.lr, **plain.settings}
    assert passed == {name: expected[name] for name in names if name in expected}
    assert Settings([], {}, "**").of(torchs, plain.arguments) == plain.arguments
    others = {name: value for name, value in plain.arguments.items() if name != "lr"}
    both = Settings(["lr"], {}, "options").of(torchs, plain.arguments)
    assert both == {"lr": plain.lr, "options": others}
    made = torchs([torch.nn.Parameter(torch.zeros(1))], **plain.arguments)
    assert plain.settings.items() <= made.defaults.items()


def test_a_setting_without_a_name_is_refused_unless_it_does_nothing() -> None:
    """A momentum of zero is none."""
    settings, kind = Settings(["lr"], {}), torch.optim.SGD
    assert settings.of(kind, Optimizer().arguments) == {"lr": Optimizer().lr}
    with pytest.raises(NotImplementedError, match="it takes no momentum"):
        settings.of(kind, Optimizer(momentum=0.5).arguments)
    with pytest.raises(NotImplementedError, match="it takes no lr"):
        Settings(["momentum"], {}).of(kind, Optimizer().arguments)


@pytest.mark.parametrize("others", ["", "**", "options"])
def test_a_setting_that_is_given_must_be_the_cases(others: str) -> None:
    """It is passed once, by the user's value."""
    fixed = Settings(["lr", "momentum"], {"momentum": 0.5}, others)
    passed = fixed.of(torch.optim.SGD, Optimizer(momentum=0.5).arguments)
    assert "momentum" not in {**passed, **passed.get("options", {})}
    with pytest.raises(
        NotImplementedError, match="its momentum is given, and the case has another"
    ):
        fixed.of(torch.optim.SGD, Optimizer().arguments)
    assert not any("momentum" in row[0] for row in fixed.source())


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("torch.optim:SGD", ("sgd",)),
        ("torch.optim:Adam", ("adam",)),
        ("torch.optim:AdamW", ("adamw",)),
        ("Own", ("adamw",)),
        ("InOne", ("sgd",)),
        ("Both", ("sgd",)),
        ("Kernels", ("sgd",)),
        ("OfNames", ("sgd",)),
        ("WithNames", ("sgd",)),
        ("Undecayed", ("adamw",)),
        ("Empty", ("sgd",)),
        ("OfAClass", ("sgd", "adam", "adamw")),
    ],
)
def test_an_optimizer_is_judged_by_the_update_it_makes(
    make_trial: TrialMaker, pool: Pool, tmp_path: Path, name: str, kinds: tuple[str, ...]
) -> None:
    """It offers no other update, and its own moves the parameters as torch's does."""
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    ddp = Ddp(optimizer=name if ":" in name else f"{path}:{name}")
    scope = Scope(without=frozenset(pool.describe(ddp)["lacks"]))
    assert {kind for kind in PLANS if scope.has(kind)} == {*kinds}
    trial = make_trial(ddp=ddp, scope=scope)
    for plan in PLANS.values():
        case = scope.fit(replace(CASE, optimizer=plan))
        assert case.optimizer.kind in kinds
        findings = trial.findings(case)
        assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
        assert findings["PARAM-3"].compared


def test_an_optimizer_with_a_rate_of_its_own_is_wrong(
    make_trial: TrialMaker, pool: Pool, run: Run, tmp_path: Path
) -> None:
    """A script makes it with the same settings, and shows the same."""
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    case = replace(CASE, optimizer=PLANS["adamw"])
    right = make_trial(ddp=Ddp(optimizer=f"{path}:Own"), scope=Scope()).findings(case)
    assert {rule: each.failure for rule, each in right.items() if each.failure} == {}
    fixed = Ddp(optimizer=f"{path}:Fixed")
    text = export.script(pool, stored_violation(pool, case, "PARAM-3", ddp=fixed))
    assert "learning_rate=0.0625, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0)" in text
    status, output = run(text)
    assert (status, output.partition(":")[0]) == (1, "PARAM-3"), output
    assert run(text.replace(":Fixed", ":Own")) == (0, "not reproduced\n")


@pytest.mark.parametrize(
    ("name", "plan", "words"),
    [
        ("Named", Optimizer(weight_decay=0.25), "it takes no weight_decay, and the case has one"),
        (
            "Averaged",
            PLANS["adamw"],
            "it has betas = (0.9, 0.95), which no argument sets, and the case has (0.9, 0.999)",
        ),
        (
            "Decayed",
            PLANS["adamw"],
            "it has weight_decay = 0.01, which no argument sets, and the case has 0.0",
        ),
    ],
)
def test_an_optimizer_refuses_settings_that_it_does_not_name(
    make_trial: TrialMaker, pool: Pool, tmp_path: Path, name: str, plan: Optimizer, words: str
) -> None:
    """All ranks refuse, and no rule fails. Cases without the settings are drawn."""
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    ddp = Ddp(optimizer=f"{path}:{name}")
    trial = make_trial(ddp=ddp, scope=Scope())
    findings = trial.really(replace(CASE, optimizer=plan))
    assert {rule for rule, each in findings.items() if each.failure} == set()
    assert isinstance(trial.evidence, TrainingEvidence)
    raised = {rank.raised.message for rank in trial.evidence.ranks if rank.raised}
    assert raised == {f"--opt {path}:{name}: {words}"}
    assert {"maximize", "foreach", "fused", "amsgrad"} <= {*pool.describe(ddp)["lacks"]}


@pytest.mark.parametrize(
    "situation", [RateSchedule((0, -1)), Actions((BetweenSteps("learning rate", 1),))]
)
def test_a_rate_that_is_kept_under_another_name_does_not_change(
    make_trial: TrialMaker, tmp_path: Path, situation: Situation
) -> None:
    """A scheduler of torch would fail, too. The refusal is the suite's, so it is no crash."""
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    trial = make_trial(ddp=Ddp(optimizer=f"{path}:Unusual"), scope=Scope())
    case = replace(CASE, optimizer=PLANS["adamw"])
    assert trial.findings(case)["PARAM-3"].compared
    findings = trial.really(case.with_situation(situation))
    assert {rule for rule, each in findings.items() if each.failure} == set()
    assert isinstance(trial.evidence, TrainingEvidence)
    raised = {rank.raised.message for rank in trial.evidence.ranks if rank.raised}
    assert raised == {"a group of the optimizer's parameters has no 'lr'"}


def test_a_script_hands_on_names(pool: Pool, run: Run, tmp_path: Path) -> None:
    """It calls the optimizer as the ranks do."""
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    stored = stored_violation(pool, CASE, "PARAM-3", ddp=Ddp(optimizer=f"{path}:Twice"))
    text = export.script(pool, stored)
    status, output = run(text)
    assert (status, output.partition(":")[0]) == (1, "PARAM-3"), output
    assert run(text.replace(":Twice", ":OfNames")) == (0, "not reproduced\n")


WRAPPERS = """
import torch
from ddp_invariants.reference.ddp import DistributedDataParallel

def without(module):
    return DistributedDataParallel(module), None

def of_a_class(module, optim, optim_args):
    return DistributedDataParallel(module), optim(module.parameters(), **optim_args)

def outer(module, optimizer_class, optimizer_kwargs, lr=1.0):
    inner = optimizer_class(module.parameters(), **optimizer_kwargs)
    assert lr == 1.0
    return DistributedDataParallel(module), inner

def after(module, lr):
    assert lr == 2.0**-6
"""
"""Functions that wrap, and one that the program calls after backward."""


@pytest.mark.parametrize(
    "named",
    [
        ("without", ""),
        ("of_a_class", ""),
        ("outer", ""),
        ("without", "after"),
    ],
)
def test_what_wraps_gets_an_optimizer_in_each_usual_form(
    make_trial: TrialMaker, tmp_path: Path, named: tuple[str, str]
) -> None:
    """Momentum reaches the optimizer; a rate may be that of an outer one."""
    path = tmp_path / "wrappers.py"
    path.write_text(WRAPPERS, encoding="utf-8")
    wraps, after = named
    ddp = Ddp(f"{path}:{wraps}", after=f"{path}:{after}" if after else "")
    findings = make_trial(ddp=ddp, scope=Scope()).findings(
        replace(CASE, optimizer=Optimizer(momentum=0.5))
    )
    assert {rule for rule, each in findings.items() if each.failure} <= {"COMM-5"}
    assert findings["PARAM-3"].compared


def test_an_update_that_is_not_known_is_asked_for(pool: Pool, tmp_path: Path) -> None:
    """One sentence says how to declare it."""
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    made = Ddp(optimizer=f"{path}:made")
    with pytest.raises(LoadFailure, match="does not know which update it makes") as failure:
        pool.describe(made)
    assert 'declares = {"update": "adamw"}, or "own" if it makes none' in str(failure.value)
    declared = pool.describe(replace(made, declares={"update": "sgd"}))
    assert {"adam", "adamw", "adam_constants", "amsgrad"} <= {*declared["lacks"]}
    with pytest.raises(LoadFailure, match="it takes no lr by a usual name"):
        pool.describe(Ddp(optimizer=f"{path}:Rateless"))


@pytest.mark.parametrize("name", ["Signed", "AnyRate", "NoRate", "InOneOfItsOwn"])
def test_an_update_of_its_own_gets_the_learning_rate_alone(
    name: str, pool: Pool, make_trial: TrialMaker, tmp_path: Path
) -> None:
    """Its other settings keep their defaults, and its parameters are compared between ranks."""
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    made = Ddp(optimizer=f"{path}:{name}", declares={"update": "own"})
    described = pool.describe(made)
    rate = {"NoRate": "none", "InOneOfItsOwn": "any other in optimizer_kwargs"}.get(name, "lr")
    assert f"--opt settings of the case's optimizer: {rate}" in described["driven"]
    assert {"momentum", "adamw", "weight_decay", "decay", "foreach"} <= {*described["lacks"]}
    declared = declare(Declarations, described["declares"])
    assert (declared.update, declared.optimizer, declared.gradients) == ("own", "own", "all")
    findings = make_trial(ddp=made, scope=Scope(declared=declared)).really(CASE)
    assert {rule for rule, each in findings.items() if each.failure} <= {"PARAM-3"}
    assert findings["PARAM-1"].compared
    assert findings["GRAD-2"].compared


def test_an_update_of_its_own_asks_for_required_settings(pool: Pool, tmp_path: Path) -> None:
    """No case has betas for it; the user gives them."""
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    made = Ddp(optimizer=f"{path}:Requiring", declares={"update": "own"})
    with pytest.raises(LoadFailure, match="give it with --opt-arg betas=VALUE"):
        pool.describe(made)
    given = replace(made, optimizer_arguments=(("betas", "(0.5, 0.5)"),))
    assert "--opt settings of the case's optimizer: lr" in pool.describe(given)["driven"]


def test_another_update_is_refused_whatever_the_case(make_trial: TrialMaker) -> None:
    """A stored case may have an optimizer that no search would draw."""
    trial = make_trial(ddp=Ddp(optimizer="torch.optim:AdamW"), scope=Scope())
    findings = trial.really(CASE)
    assert {rule for rule, each in findings.items() if each.failure} == set()
    assert isinstance(trial.evidence, TrainingEvidence)
    raised = {rank.raised.message for rank in trial.evidence.ranks if rank.raised}
    assert raised == {"it makes the updates of AdamW alone"}


def test_another_number_of_ranks_loads_an_optimizer_of_its_own(make_trial: TrialMaker) -> None:
    """Its momentum is not known, so its updates prove nothing; without momentum they do."""
    ddp = Ddp(optimizer="torch.optim:SGD", declares={"supports": ["resized"]})
    trial = make_trial(ddp=ddp, scope=Scope(declared=Declarations(optimizer="own")))
    for momentum in (0.0, 0.5):
        case = replace(CASE, optimizer=Optimizer(momentum=momentum)).with_situation(Resized(1))
        findings = trial.findings(case)
        assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
        assert (FEWER in findings["STATE-2"].met) is (momentum == 0)
        assert findings["STATE-2"].compared > findings["STATE-1"].compared
