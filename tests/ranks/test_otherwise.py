"""An implementation that fails in its plain case is told in which other way it holds there."""

from dataclasses import replace
from pathlib import Path

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.certification import Implementation, certify
from ddp_invariants.discovery.probe import of_ddp
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import LoadFailure
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.processes.pool import Pool
from ddp_invariants.search.confirm import confirm
from ddp_invariants.situations.capability import BASE

FILE = '''
import torch
import torch.distributed as dist
from torch import nn


def mean(parameters):
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), 0)

    def forward(self, *inputs):
        return self.module(*inputs)


class Restarts(Wrapper):
    """Its `reset` is for a new fold, not for a new step."""

    def __init__(self, module):
        super().__init__(module)
        self.first = {name: value.clone() for name, value in module.state_dict().items()}

    def reset(self):
        self.module.load_state_dict(self.first)

    def sync_gradients(self):
        mean(self.module.parameters())


class Silent(Wrapper):
    """Its hook averages gradients, and `sync_gradients` squares the world size."""

    def __init__(self, module):
        super().__init__(module)
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(lambda each: self._average([each]))

    def _average(self, parameters):
        mean(parameters)

    def sync_gradients(self):
        for parameter in self.module.parameters():
            parameter.grad /= 2


class Engine(Wrapper):
    """Its step averages gradients before it updates."""

    def __init__(self, module, optimizer):
        super().__init__(module)
        self.optimizer = optimizer

    def backward(self, loss):
        loss.backward()

    def step(self):
        mean(self.module.parameters())
        self.optimizer.step()


class Averaging(torch.optim.SGD):
    """It leaves the first broadcast to the program."""

    def step(self, closure=None):
        loss = None if closure is None else closure()
        mean(parameter for group in self.param_groups for parameter in group["params"])
        super().step()
        return loss


class Adapter:
    """It halves the mean, and so is wrong in each way; the suite may not replace its method."""

    def wrap(self, module, context):
        return Restarts(module)

    def before_batch(self, wrapped, optimizer):
        pass

    def after_backward(self, wrapped, optimizer):
        mean(wrapped.parameters())
        for parameter in wrapped.parameters():
            parameter.grad /= 2


class Waits(Silent):
    """It waits for ever unless `sync_gradients` was called before."""

    def forward(self, *inputs):
        self.synchronised = not getattr(self, "begun", False)
        self.begun = True
        if not self.synchronised and not getattr(self, "called", False):
            dist.recv(torch.zeros(1), (dist.get_rank() + 1) % dist.get_world_size())
        return super().forward(*inputs)

    def sync_gradients(self):
        self.called = True
        super().sync_gradients()


class Forgets(Restarts):
    """It also loads another state than it is given."""

    def load_state_dict(self, state, **options):
        super().load_state_dict({name: value + 1 for name, value in state.items()}, **options)


class Queued(Wrapper):
    """Its hook queues `all_reduce_grads` for the end of backward; the mean of two means rounds."""

    def __init__(self, module):
        super().__init__(module)
        self.queued = False
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self.queue)

    def queue(self, parameter):
        if not self.queued:
            torch.autograd.Variable._execution_engine.queue_callback(self.all_reduce_grads)
        self.queued = True

    def all_reduce_grads(self):
        self.queued = False
        mean(self.module.parameters())


class Local(Wrapper):
    """It averages nothing."""


class Heavy(torch.optim.SGD):
    """SGD with a momentum of 0.9 that no argument sets and no group shows."""

    def __init__(self, params, lr):
        super().__init__(params, lr)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    old = self.state[parameter].get("momentum", 0.0)
                    self.state[parameter]["momentum"] = 0.9 * old + parameter.grad
                    parameter.sub_(self.state[parameter]["momentum"], alpha=group["lr"])

class Twice(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr)

    def step(self):
        super().step()
        super().step()

class Uneven:
    """A sampler that pads nothing."""

    def __init__(self, dataset, num_replicas, rank):
        self.indices = range(rank, len(dataset), num_replicas)

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        return iter(self.indices)


class Trainer(Wrapper):
    """It makes an optimizer of its own."""

    def __init__(self, module, lr):
        super().__init__(module)
        self.optimizer = torch.optim.SGD(module.parameters(), lr)

    def backward(self, loss):
        loss.backward()
        mean(self.module.parameters())

    def step(self):
        self.optimizer.step()

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)
'''
CALLED = "is then not called"
WAYS = {
    "Restarts": f"--start none (reset() {CALLED} before each batch)",
    "Silent": f"--finish none (sync_gradients() {CALLED} after backward)",
    "Engine": (
        'the declaration gradients = "hidden" '
        "(gradients are then averaged in the optimizer's step at the latest)"
    ),
    "Averaging": (
        'the declaration init = "seed" '
        "(the user's program then makes the ranks equal before it wraps the module)"
    ),
    "Adapter": "",
    "Waits": "",
    "Local": "",
}


@pytest.fixture(name="file")
def file_(tmp_path: Path) -> str:
    """Return the path of the implementations."""
    path = tmp_path / "driven.py"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def _named(file: str, name: str) -> Ddp:
    named = f"{file}:{name}"
    return Ddp("none", optimizer=named) if name == "Averaging" else Ddp(named)


@pytest.mark.parametrize("name", [*WAYS])
def test_the_way_is_told_in_which_the_plain_case_holds(pool: Pool, file: str, name: str) -> None:
    """An implementation that is wrong in each way gets none."""
    ddp = _named(file, name)
    found = of_ddp(pool, ddp, pool.describe(ddp), 2)
    assert found.plain_failure is not None
    assert " ".join(found.plain_failure.otherwise) == WAYS[name]


def test_a_violation_says_so(file: str) -> None:
    """Its last lines say what to write."""
    with pytest.raises(AssertionError) as violation:
        certify(Implementation(ddp=f"{file}:Engine"), rules=["GRAD-1"])
    text = " ".join(str(violation.value).split())
    told = "unless the suite drives it wrongly: the case holds with"
    assert f'{told} the declaration gradients = "hidden"' in text


def test_a_violation_of_a_larger_case_says_so(make_trial: TrialMaker, file: str) -> None:
    """The plain case has two ranks, whose second mean is exact; that of eight rounds."""
    trial = make_trial(ddp=Ddp(f"{file}:Queued"), scope=Scope(max_world_size=8))
    data = Data(samples=32, batch_size=2)
    case = replace(BASE, world_size=8, values="scarce", data=data)
    failure = trial.findings(case)["GRAD-2"].failure
    assert failure is not None
    with pytest.raises(AssertionError) as violation:
        confirm(trial, "GRAD-2", failure, case)
    text = " ".join(str(violation.value).split())
    assert "the case holds with --finish none (all_reduce_grads() is then not called" in text


def test_a_case_whose_gradients_are_zero_in_another_way_does_not_hold_there(
    make_trial: TrialMaker,
) -> None:
    """With equal initial parameters, the only gradient of this case is zero, on both ranks."""
    trial = make_trial(ddp="ddp_invariants.faults.bucketed:NeverDivides")
    trial.options = replace(trial.options, broken="GRAD-2")
    model = Model(1, (Layer("linear", outputs=1, bias=False),))
    case = replace(BASE, model=model, data=Data(samples=2, batch_size=1), steps=1)
    failure = trial.findings(case)["GRAD-2"].failure
    assert failure is not None
    with pytest.raises(AssertionError) as violation:
        confirm(trial, "GRAD-2", failure, case)
    assert "unless" not in str(violation.value)


def test_another_violation_does_not_say_so(file: str) -> None:
    """Its reason is another one."""
    with pytest.raises(AssertionError) as violation:
        certify(Implementation(ddp=f"{file}:Forgets"), rules=["STATE-1"])
    assert "STATE-1 violated" in str(violation.value)
    assert "unless" not in str(violation.value)


IN_THE_FILE = ("Uneven", "Heavy", "Twice")


@pytest.mark.parametrize(
    ("implementation", "rule", "declared"),
    [
        (
            Implementation(sampler="Uneven"),
            "SHARD-1",
            'unless you declare padding = "none" in a [sampler] table (docs/adapter.md): ',
        ),
        (
            Implementation(ddp="ddp_invariants.faults.bucketed:RoundsToBfloat16"),
            "GRAD-2",
            'unless you declare exactness = "bfloat16" in a [ddp] table (docs/adapter.md): ',
        ),
        (
            Implementation(opt="Heavy"),
            "PARAM-3",
            'unless you declare update = "own" in a [ddp] table (docs/adapter.md): ',
        ),
        (Implementation(opt="Twice"), "PARAM-3", ""),
        (Implementation(sampler="ddp_invariants.faults.strided:DropsTheTail"), "SHARD-2", ""),
        (Implementation(sampler="ddp_invariants.faults.batches:LenOfTheShard"), "SHARD-6", ""),
        (Implementation(ddp="ddp_invariants.faults.bucketed:NeverDivides"), "GRAD-2", ""),
    ],
    ids=[
        "Uneven",
        "RoundsToBfloat16",
        "Heavy",
        "Twice",
        "DropsTheTail",
        "LenOfTheShard",
        "NeverDivides",
    ],
)
def test_a_violation_names_a_declaration_with_which_it_is_none(
    file: str, implementation: Implementation, rule: str, declared: str
) -> None:
    """The evidence is judged again under other declarations; a fault in each of them gets no name."""
    named = {name: getattr(implementation, name) for name in ("sampler", "opt")}
    here = {name: f"{file}:{own}" for name, own in named.items() if own in IN_THE_FILE}
    implementation = replace(implementation, **here)
    with pytest.raises(AssertionError) as violation:
        certify(implementation, rules=[rule])
    text = " ".join(str(violation.value).split())
    assert f"{rule} violated" in text
    assert declared.strip() in text
    assert ("unless you declare" in text) == bool(declared)


def test_an_engine_with_an_optimizer_of_its_own_declares_its_update(pool: Pool, file: str) -> None:
    """Then no case has settings that the engine cannot be given."""
    trainer = _named(file, "Trainer")
    with pytest.raises(LoadFailure, match="it makes an optimizer of its own"):
        pool.describe(trainer)
    declared = Ddp(trainer.name, declares={"update": "sgd"})
    lacks = pool.describe(declared)["lacks"]
    assert {"momentum", "weight_decay", "adam", "adamw"} <= {*lacks}
    assert of_ddp(pool, declared, pool.describe(declared), 2).plain_failure is None
