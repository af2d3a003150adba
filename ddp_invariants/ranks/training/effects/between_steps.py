"""The program's actions between two steps, besides training (`TrainingCase.between_steps`).

`_ACTIONS` has one function for each kind of action.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from ddp_invariants.cases.program import BetweenSteps, BetweenStepsKind
from ddp_invariants.implementation.adapter import Context
from ddp_invariants.implementation.declarations import SHARDED
from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.later_group import LaterGroup
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.ranks.training.setup import Setup
from ddp_invariants.ranks.training.trained import Trained
from ddp_invariants.situations import between_steps

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper

_Action = Callable[["Stepper", BetweenSteps, Any], None]
_PlainAction = Callable[[Trained, BetweenSteps], None]


@effect(lambda case: bool(case.between_steps))
class Actions(Effect):
    """The program's actions between two steps, in the order of the case."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        found = self.case.get(between_steps.Actions)
        self.replica: Replica | None = None
        self.later = LaterGroup(self._never_frozen) if found is not None and found.adds else None

    def _never_frozen(self, parameters: list[Tensor]) -> list[Tensor]:
        assert self.replica is not None
        frozen = {id(each) for each in self.replica.parameters() if not each.requires_grad}
        return [parameter for parameter in parameters if id(parameter) not in frozen]

    def on_replica(self, replica: Replica) -> None:
        """Keep the replica: wrapping it may replace its parameters."""
        self.replica = replica

    def on_optimizer(self, context: Context) -> Context:
        """Have the optimizer made without frozen layers, if the program adds them to it later.

        Raises:
            NotImplementedError: Ranks share the parameters.
        """
        if self.later is None:
            return context
        if self.setup.declared.zero == SHARDED:
            raise NotImplementedError("ranks share the parameters")
        return self.later.within(self.setup, context)

    def begin(self, stepper: "Stepper") -> None:
        """Check that the optimizer takes a group that is added, and options that are changed."""
        kinds = {action.kind for action in self.case.between_steps}
        if kinds & {"learning rate", "decay"}:
            stepper.trained.require_option("lr")
        if "decay" in kinds and self.case.optimizer.kind != "sgd":
            stepper.trained.require_option("betas")
        if self.later is not None:
            self.later.begin(stepper)

    def before_step(self, stepper: "Stepper", indices: Any) -> None:
        """Do the actions before this step."""
        for action in self.case.between_steps:
            if action.step == stepper.position.step:
                stepper.position.phase = f"{action.kind} before it"
                _ACTIONS[action.kind](stepper, action, indices)
                if action.kind == "unfreeze" and self.later is not None:
                    self.later.add(lambda parameter: parameter.requires_grad)

    def before_plain_step(self, step: int, plain: Trained) -> None:
        """Do the actions that change training without a wrapper."""
        for action in self.case.between_steps:
            if action.step == step and action.kind in _PLAIN:
                _PLAIN[action.kind](plain, action)


def _lower_rate(trained: Trained, _action: BetweenSteps) -> None:
    """Train at a quarter of the learning rate from now on."""
    trained.set_rates(lambda rate: rate / 4)


def _lower_decay(trained: Trained, _action: BetweenSteps) -> None:
    """Train with half of momentum, of Adam's `beta_1`, and of weight decay from now on."""
    optimizer = trained.optimizer
    for group in optimizer.param_groups:
        group.update(
            {name: group[name] / 2 for name in ("momentum", "weight_decay") if name in group}
        )
    # A group that was added later may lack what the optimizer was made with.
    made = optimizer.param_groups[0].get("betas")
    for group in optimizer.param_groups if made is not None else ():
        beta_1, beta_2 = group.get("betas", made)
        group["betas"] = (beta_1 / 2, beta_2)


@torch.no_grad()
def _halve(trained: Trained, _action: BetweenSteps) -> None:
    """Halve the trained parameters in place, which rounds nothing."""
    for parameter in trained.replica.parameters():
        if parameter.requires_grad:
            parameter.mul_(0.5)


def _freeze(trained: Trained, action: BetweenSteps) -> None:
    """Freeze a layer, or train it from now on."""
    trained.replica.freeze(action.layer, frozen=action.kind == "freeze")


def _as_plainly(stepper: "Stepper", action: BetweenSteps, _indices: Any) -> None:
    """Do the action on the optimizer of the trained model."""
    _PLAIN[action.kind](stepper.trained, action)


def _freeze_both(stepper: "Stepper", action: BetweenSteps, _indices: Any) -> None:
    """Freeze a layer, or train it from now on, in the replica and in its twin."""
    frozen, trained = action.kind == "freeze", stepper.trained
    # An optimizer's zero_grad may zero a gradient in place; a module's sets it to None if asked to.
    kept = trained.cleared_by_module and stepper.setup.case.zero_grad == "set_to_none"
    trained.replica.freeze(action.layer, frozen=frozen, clears=not kept)
    stepper.twin.module.freeze(action.layer, frozen=frozen)


def _cast(stepper: "Stepper", action: BetweenSteps, _indices: Any) -> None:
    """Cast parameters to a wider dtype and back, as around an export; no value changes.

    A wrapper that shards parameters extends `_apply`, which does the casts of `module.double()`. So
    does FSDP2's `replicate`, which shards nothing.
    """
    trained = stepper.trained
    if not action.keeps:
        trained.zero_grad()
    module = trained.wrapped if isinstance(trained.wrapped, nn.Module) else trained.replica
    buffers = {id(buffer) for buffer in (*module.buffers(), *trained.replica.buffers())}
    # With each tensor, so that its id stays its own. `_apply` meets a tied parameter twice.
    met: dict[int, tuple[Tensor, torch.dtype]] = {}

    def widen(tensor: Tensor) -> Tensor:
        if id(tensor) in buffers:
            return tensor
        _, dtype = met.setdefault(id(tensor), (tensor, tensor.dtype))
        twice = dtype.is_complex or dtype == torch.float64
        if tensor.is_sparse or (twice and not isinstance(tensor, nn.Parameter)):
            return tensor.clone()  # A gradient, which gets other memory, as by a cast.
        return tensor.to(torch.complex128 if twice else torch.float64)

    def narrow(tensor: Tensor) -> Tensor:
        if id(tensor) not in met or tensor.is_sparse:
            return tensor
        _, dtype = met[id(tensor)]
        # A tensor of one element calls itself contiguous, whatever its strides.
        return (
            tensor.to(dtype)
            if dtype != torch.float64
            else tensor.real.clone(memory_format=torch.contiguous_format)
        )

    if module is trained.wrapped and (
        stepper.setup.declared.zero == SHARDED or type(module)._apply is not nn.Module._apply
    ):
        module._apply(widen)
        module._apply(narrow)
    else:
        parameters = [*trained.replica.parameters()]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        with torch.no_grad():
            for convert in (widen, narrow):
                for tensor in (*parameters, *gradients):
                    tensor.data = convert(tensor)
    stepper.twin.moved = True


def _copy(stepper: "Stepper", _action: BetweenSteps, _indices: Any) -> None:
    """Take a deep copy of the wrapper, and keep it."""
    stepper.trained.copies.append(deepcopy(stepper.trained.wrapped))


@torch.no_grad()
def _write_buffers(stepper: "Stepper", _action: BetweenSteps, _indices: Any) -> None:
    """Write the program's own values into all buffers."""
    replica = stepper.trained.replica
    for buffer in replica.buffers():
        buffer.fill_(0.25 if buffer.is_floating_point() else 5)
    stepper.record.tensors("written buffers", stepper.position.step, replica.named_buffers())


def _write_weights(stepper: "Stepper", action: BetweenSteps, _indices: Any) -> None:
    """Halve the trained parameters, and note what the program wrote."""
    _halve(stepper.trained, action)
    stepper.record.tensors("written", stepper.position.step, stepper.observer.named)


def _prune(stepper: "Stepper", action: BetweenSteps, _indices: Any) -> None:
    """Prune a layer by a mask of ones, which moves its parameter to another name.

    Each forward computes the layer's weight from the parameter and the mask, and no bit changes.
    """
    layer = stepper.trained.replica.stack[action.layer]
    prune.identity(layer, "weight")
    stepper.observer.pruned[stepper.setup.case.model.full(action.layer, "weight")] = layer


def _assign(stepper: "Stepper", _action: BetweenSteps, _indices: Any) -> None:
    """Give the model its own values as new tensors, and make an optimizer of these.

    The new optimizer starts in the state of the old one.

    Raises:
        NotImplementedError: Wrapping brought the optimizer, which would go on with the tensors
            it knows.
    """
    trained = stepper.trained
    trained.zero_grad()
    if trained.drive.brought is not None:
        raise NotImplementedError(
            "wrapping returned an optimizer of its own, and the program cannot make it again"
        )
    trained.stateful.load_state_dict(deepcopy(trained.stateful.state_dict()), assign=True)
    state = deepcopy(trained.optimizer.state_dict())
    stepper.observer.watch()
    stepper.observer.renewed()
    trained.optimizer = trained.drive.make_optimizer(trained.wrapped, stepper.setup.context)
    trained.optimizer.load_state_dict(state)


def _save(stepper: "Stepper", _action: BetweenSteps, _indices: Any) -> None:
    """Save the model and its optimizer, as a program does now and then, and go on."""
    _saved(stepper.trained)


def _saved(trained: Trained) -> tuple[Any, Any]:
    """Return copies of the states of a model and of its optimizer."""
    return deepcopy((trained.stateful.state_dict(), trained.optimizer.state_dict()))


def _reload(stepper: "Stepper", _action: BetweenSteps, _indices: Any) -> None:
    """Save the model and its optimizer, make both anew as another process would, and load them."""
    setup, trained, step = stepper.setup, stepper.trained, stepper.position.step
    saved = _saved(trained)
    stepper.record.facts.setdefault("saved", []).append(sorted(saved[0]))
    trained.drive.teardown(setup.context)
    # The new replica starts from values of no rank, so that a tensor shows that is not loaded.
    trained.replica = setup.replica(step=step, rank=setup.rank + setup.case.world_size)
    for each in stepper.effects:
        each.on_replica(trained.replica)
        each.before_pass(trained.replica, step, 0)
    stepper.observer.watch()
    trained.start(setup)
    trained.wrapped, trained.optimizer = trained.drive.begin()
    stepper.in_training_again()
    trained.stateful.load_state_dict(saved[0])
    trained.optimizer.load_state_dict(saved[1])
    stepper.observer.restored()


def _evaluating(kind: BetweenStepsKind) -> AbstractContextManager[object]:
    """Return the context of a forward between steps."""
    if kind == "inference":
        return torch.inference_mode()
    return torch.set_grad_enabled(kind != "evaluation")


def _forward(stepper: "Stepper", action: BetweenSteps, indices: Any) -> None:
    """Run a forward of the next batch."""
    run_forward(stepper, action.kind, indices)


def run_forward(stepper: "Stepper", kind: BetweenStepsKind, indices: Any) -> None:
    """Run a forward of a batch, in evaluation or in training, without a backward."""
    trained, step = stepper.trained, stepper.position.step
    inputs = stepper.program.batch(indices, step)[0]
    module = trained.wrapped if isinstance(trained.wrapped, nn.Module) else trained.replica
    with _evaluating(kind):
        module.train(kind == "forward only")
        if kind == "forward only":
            stepper.in_training_again()
        training = trained.replica.training  # Some wrappers do not pass `eval` on to the module.
        for each in stepper.effects:
            each.before_forward()
        with ExitStack() as around:
            for each in stepper.effects if not training else ():
                around.enter_context(each.around_evaluation(stepper, inputs))
            stepper.program.forward(trained.forward, inputs)
        for each in stepper.effects if not training else ():
            each.after_forward(stepper.record, "evaluated", step)
        module.train()
        stepper.in_training_again()


_ACTIONS: dict[BetweenStepsKind, _Action] = {
    "learning rate": _as_plainly,
    "decay": _as_plainly,
    "freeze": _freeze_both,
    "unfreeze": _freeze_both,
    "cast": _cast,
    "copy": _copy,
    "buffers": _write_buffers,
    "weights": _write_weights,
    "prune": _prune,
    "assign": _assign,
    "reload": _reload,
    "save": _save,
    "evaluation": _forward,
    "evaluation with gradients": _forward,
    "inference": _forward,
    "forward only": _forward,
}
"""The function of each kind of action."""
_PLAIN: dict[BetweenStepsKind, _PlainAction] = {
    "learning rate": _lower_rate,
    "decay": _lower_decay,
    "freeze": _freeze,
    "unfreeze": _freeze,
    "weights": _halve,
}
"""The actions that change training without a wrapper, too."""
