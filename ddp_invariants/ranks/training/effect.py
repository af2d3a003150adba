"""The base class of effects: the hooks by which a situation of a case changes what a rank does.

An effect is a class in a module of `effects/`. The decorator `@effect` registers the class beside
its definition, and no other file lists it. No effect may depend on the order in which the hooks of
one moment run.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self, TypeVar

from torch import Tensor

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.numbers import FloatArray
from ddp_invariants.implementation.adapter import Context
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.ranks.training.recorder import Record
from ddp_invariants.ranks.training.setup import Setup

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.program import Batch
    from ddp_invariants.ranks.training.stepper import Stepper
    from ddp_invariants.ranks.training.trained import Trained


class Effect:
    """The effect of a situation on one rank. Every hook does nothing by default.

    Args:
        setup: The fixed parts of the run.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.case = setup, setup.case

    def __deepcopy__(self, _memo: object) -> Self:
        """Return this object: a wrapper may deep-copy a replica whose hooks refer to it."""
        return self

    # The modules.

    def on_replica(self, replica: Replica) -> None:
        """Prepare a replica before it is wrapped."""

    def on_twin(self, twin: Replica) -> None:
        """Prepare the unwrapped twin."""

    # The run.

    def before_wrapping(self, stepper: "Stepper") -> None:
        """Act before the replica is wrapped."""

    def on_optimizer(self, context: Context) -> Context:
        """Return the facts with which the optimizer of the model under test is made."""
        return context

    def begin(self, stepper: "Stepper") -> None:
        """Act after wrapping, before the first step."""

    def around_training(self, stepper: "Stepper") -> AbstractContextManager[object]:
        """Return the context in which all steps run."""
        del stepper
        return nullcontext()

    def before_step(self, stepper: "Stepper", indices: Any) -> None:
        """Act between two steps; `indices` is the next step's first batch."""

    def in_training_again(self, stepper: "Stepper") -> None:
        """Act after the program has put the wrapper into training mode, or has made it anew."""

    def around_evaluation(
        self, stepper: "Stepper", inputs: Tensor
    ) -> AbstractContextManager[object]:
        """Return the context of an evaluation of the wrapper on some inputs."""
        del stepper, inputs
        return nullcontext()

    def before_batch(self, stepper: "Stepper", indices: Any) -> None:
        """Act as a step begins; `indices` is its first batch."""

    def begin_again(self) -> None:
        """Return to the state before the first step: plain training follows."""

    def end(self, record: Record) -> None:
        """Note what is known once the run is over, also after an exception."""

    # A forward and its backward.

    def before_pass(self, replica: Replica, step: int, micro_step: int) -> None:
        """Prepare a replica for a micro-step."""

    def on_samples(self, inputs_BD: FloatArray, step: int) -> None:
        """Change the numbers of a batch in place. Shape (B, D in), float64."""

    def on_inputs(self, inputs: Tensor) -> None:
        """Change the inputs of a batch in place. Shape (B, D in)."""

    def before_forward(self) -> None:
        """Act before a forward whose random numbers are noted."""

    def around_forward(self) -> AbstractContextManager[object]:
        """Return the context in which every forward runs."""
        return nullcontext()

    @property
    def clears(self) -> bool:
        """True if the effect clears the gradients of each step in place of the program."""
        return False

    def before_loss(self, batch: "Batch") -> None:
        """Learn the batch of the next forward, of which the loss is computed."""

    def through(self, module: Callable[..., Any]) -> Callable[[Tensor], Any]:
        """Return the function of a batch's inputs by which the program calls a module."""
        return module

    def after_forward(self, record: Record, moment: str, *numbers: int) -> None:
        """Note the forward of a moment, under one or more numbers."""

    def repeat(self, replica: Replica, number: int, inputs: Tensor) -> bool:
        """Have a replica's next forward repeat that of a micro-step; return whether it can."""
        del replica, number, inputs
        return True

    def on_loss(self, loss: Tensor, outputs: Tensor, batch: "Batch", replica: Replica) -> Tensor:
        """Return a micro-step's loss, given the outputs that a replica has computed of a batch."""
        del outputs, batch, replica
        return loss

    def on_share(self, share: Tensor) -> Tensor:
        """Return the tensor that backward starts from, given a micro-step's share of the loss."""
        return share

    def run_backward(self, backward: Callable[[Tensor], None], share: Tensor) -> None:
        """Run the backward of a micro-step, and what the program does around it."""
        backward(share)

    def before_gradient(self) -> None:
        """Act before a backward, and each time a gradient has been computed."""

    def inside_no_sync(self, stepper: "Stepper") -> None:
        """Act inside a `no_sync`, before its forward."""

    def before_synchronised_pass(self, stepper: "Stepper") -> None:
        """Act before the pass that communicates, where the others do not."""

    # The update.

    def when_ready(self, record: Record, step: int) -> None:
        """Act when all communication of a step must have ended."""

    def on_gradients(self, trained: "Trained") -> None:
        """Change synchronised gradients before anything else does."""

    def before_update(self, trained: "Trained") -> None:
        """Change gradients right before the optimizer steps."""

    def update(self, trained: "Trained") -> bool:
        """Make the optimizer step; return False to leave that to the implementation."""
        del trained
        return False

    def after_update(self, record: Record) -> None:
        """Note the state after a step of the model under test."""

    def before_plain_step(self, step: int, plain: "Trained") -> None:
        """Act between two steps of training without a wrapper."""


Kind = TypeVar("Kind", bound=type[Effect])

_REGISTERED: dict[type[Effect], Callable[[TrainingCase], bool]] = {}


def effect(concerns: Callable[[TrainingCase], bool]) -> Callable[[Kind], Kind]:
    """Register a class of effects, for the cases for which a test holds."""

    def register(kind: Kind) -> Kind:
        _REGISTERED[kind] = concerns
        return kind

    return register


def effects_of(setup: Setup) -> tuple[Effect, ...]:
    """Return the effects that a run's case has."""
    return tuple(kind(setup) for kind, concerns in _REGISTERED.items() if concerns(setup.case))
