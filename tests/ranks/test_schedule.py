"""A learning rate that a schedule sets before every step is the rate of that step."""

from dataclasses import replace
from pathlib import Path

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, Data, Optimizer
from ddp_invariants.cases.situation import Situation
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.group_options import GroupOptions
from ddp_invariants.situations.schedule import RateSchedule
from ddp_invariants.situations.tensor_rate import TENSOR_RATE, TensorRate

EXAMPLES = Path(__file__).parents[2] / "examples"
WRAPPER = '''
from torch.nn.parallel import DistributedDataParallel


class KeepsTheFirstRate:
    """The optimizer steps with the learning rate it was built with."""

    def wrap(self, model, context):
        return DistributedDataParallel(model)

    def make_optimizer(self, wrapped, context):
        optimizer = context.optimizer(wrapped.parameters())
        first = [group["lr"] for group in optimizer.param_groups]

        def restore(optimizer, *_):
            for group, rate in zip(optimizer.param_groups, first):
                group["lr"] = rate

        optimizer.register_step_pre_hook(restore)
        return optimizer
'''
CASE = TrainingCase(
    Model(2, (Layer("linear", 2),)),
    steps=3,
    data=Data(samples=8, batch_size=2),
    situations=(RateSchedule((0, -1)),),
)


@pytest.mark.parametrize(
    "optimizer",
    [Optimizer(), Optimizer(momentum=0.5), Optimizer("adamw", weight_decay=0.25)],
    ids=["sgd", "momentum", "adamw"],
)
def test_a_right_wrapper_follows_a_schedule(make_trial: TrialMaker, optimizer: Optimizer) -> None:
    """PARAM-3 judges each step by the rate of that step."""
    trial = make_trial(ddp="torch", scope=Scope())
    findings = trial.findings(replace(CASE, optimizer=optimizer))
    assert {rule: finding.failure for rule, finding in findings.items() if finding.failure} == {}
    assert "a scheduled learning rate" in findings["PARAM-3"].met


def test_an_optimizer_that_keeps_its_first_rate_violates_param_3(
    make_trial: TrialMaker, tmp_path: Path
) -> None:
    """The failure is at the first step whose rate differs from the first rate."""
    path = tmp_path / "wrapper.py"
    path.write_text(WRAPPER, encoding="utf-8")
    findings = make_trial(ddp=f"{path}:KeepsTheFirstRate", scope=Scope()).findings(CASE)
    failure = findings["PARAM-3"].failure
    assert failure is not None
    assert "after step 1" in failure.where


@pytest.mark.parametrize("factors", [(), (0,), (-1, -1), (0, 1), (0, -9)])
def test_a_schedule_that_changes_nothing_or_too_much_is_refused(factors: tuple[int, ...]) -> None:
    """The factors must differ, and none may raise the rate above the case's own."""
    with pytest.raises(CaseError, match="schedule"):
        CASE.with_situation(RateSchedule(factors))


def test_a_schedule_and_an_action_that_changes_the_rate_are_refused_together() -> None:
    """The order of the two is not defined, so a case cannot have both."""
    with pytest.raises(CaseError, match="changes the learning rate"):
        CASE.with_situation(Actions((BetweenSteps("learning rate"),)))


@pytest.mark.parametrize(
    "changes", [RateSchedule((0, -3)), Actions((BetweenSteps("learning rate", 1),))], ids=str
)
@pytest.mark.parametrize(
    "ddp",
    [
        Ddp(),
        Ddp("torch"),
        Ddp(optimizer="torch.distributed.optim:ZeroRedundancyOptimizer"),
        Ddp(optimizer="ddp_invariants.faults.optimizers:Owned"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "optimizer",
    [Optimizer(momentum=0.5), Optimizer("adamw"), Optimizer("adam", kernels="fused")],
    ids=str,
)
def test_a_rate_in_a_tensor_is_filled_in_place(
    make_trial: TrialMaker, ddp: Ddp, changes: Situation, optimizer: Optimizer
) -> None:
    """PARAM-3 judges each step by the number that the tensor has then, and PARAM-4 to the last bit."""
    trial = make_trial(ddp=ddp, scope=Scope())
    wide = Model(1, (Layer("linear", 30, bias=True), Layer("linear", 4)))
    for world_size, model in ((2, CASE.model), (1, wide)):
        case = replace(CASE, model=model, optimizer=optimizer, world_size=world_size, steps=5)
        findings = trial.findings(replace(case, situations=(changes, TensorRate())))
        assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
        assert TENSOR_RATE in findings["PARAM-3"].met


def test_an_optimizer_that_keeps_a_number_is_not_judged_with_a_tensor(
    make_trial: TrialMaker, tmp_path: Path
) -> None:
    """An adapter may make its optimizer of the plain number."""
    path = tmp_path / "numbered.py"
    path.write_text(
        WRAPPER.replace(
            "context.optimizer(wrapped.parameters())",
            "context.optimizer_class(wrapped.parameters(), lr=context.lr)",
        ),
        encoding="utf-8",
    )
    case = CASE.with_situation(TensorRate())
    findings = make_trial(ddp=f"{path}:KeepsTheFirstRate", scope=Scope()).findings(case)
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
    assert TENSOR_RATE not in findings["PARAM-3"].met


def test_a_tensor_is_refused_where_torch_refuses_it_or_groups_have_rates() -> None:
    """Torch's foreach kernels take no tensor."""
    with pytest.raises(CaseError, match="foreach"):
        replace(CASE, optimizer=Optimizer(kernels="foreach")).with_situation(TensorRate())
    with pytest.raises(CaseError, match="tensor_rate"):
        replace(CASE, situations=(GroupOptions(), TensorRate()))


def test_a_sharded_optimizer_saves_the_rate_that_was_set_since_its_last_step(
    make_trial: TrialMaker,
) -> None:
    """The example keeps an inner optimizer, to which the rate must go before its state is saved."""
    ddp = Ddp("none", optimizer=f"{EXAMPLES / 'zero.py'}:Zero1")
    actions = Actions((BetweenSteps("learning rate", 1), BetweenSteps("reload", 1)))
    findings = make_trial(ddp=ddp, scope=Scope()).findings(replace(CASE, situations=(actions,)))
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
    assert findings["PARAM-3"].compared
