"""The stepper, which drives the implementation under test through the steps of a case."""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ddp_invariants.ranks.training.closure import StepClosure
from ddp_invariants.ranks.training.effect import Effect
from ddp_invariants.ranks.training.effects import effects_of
from ddp_invariants.ranks.training.observer import observer_of
from ddp_invariants.ranks.training.passes import PASSES, Quiet
from ddp_invariants.ranks.training.plain import train_plainly
from ddp_invariants.ranks.training.program import Batch, Program
from ddp_invariants.ranks.training.recorder import Record
from ddp_invariants.ranks.training.setup import Position, Setup
from ddp_invariants.ranks.training.trained import Trained
from ddp_invariants.ranks.training.twin import Twin
from ddp_invariants.situations.closure import Closure


@dataclass(frozen=True)
class Computed:
    """The facts about a step's passes that are noted after its update.

    Attributes:
        start: How many collectives each group had sent before the passes.
        quiet: The same for each backward without communication.
        gradient_bytes: The bytes of gradients held before the update.
    """

    start: list[int]
    quiet: Quiet
    gradient_bytes: int


class Stepper:
    """The course of one rank's run through a case.

    Attributes:
        setup: The fixed parts of the run.
        position: The place the run has reached.
        program: The user's program around the model.
        trained: The model that the implementation under test trains.
        twin: Its unwrapped twin.
        observer: The notes of the run.
        loss: The loss of the running step's last forward, if a closure returns it.
    """

    loss: Tensor | None = None

    def __init__(self, setup: Setup) -> None:
        self.setup, self.position = setup, Position()
        self.program = Program(setup, effects_of(setup))
        record = Record()
        self.trained = Trained(setup.replica())
        self.twin = Twin(setup, self.program, self.position, record)
        self.observer = observer_of(setup, self.position, self.trained, self.twin, record)
        for effect in self.effects:
            effect.on_replica(self.trained.replica)
            effect.on_twin(self.twin.module)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """The effects of the case."""
        return self.program.effects

    @property
    def record(self) -> Record:
        """The record of the run."""
        return self.observer.record

    def run(self) -> None:
        """Run the whole case."""
        saved, trained = self.setup.saved, self.trained
        if saved is not None and saved.error is not None:
            self.position.phase = "the training before"
            raise saved.error
        trained.start(self.setup)
        self.observer.built()
        if trained.drive.whole_step:
            self._train_by_itself()
        else:
            self._train()
        self.position.phase = "teardown"
        trained.drive.teardown(self.setup.context)

    def _train(self) -> None:
        """Train with a wrapper."""
        setup, case = self.setup, self.setup.case
        self.begin()
        for effect in self.effects:
            effect.begin(self)
        with ExitStack() as contexts:
            for effect in self.effects:
                contexts.enter_context(effect.around_training(self))
            self.take_steps()
        self.position.phase, self.position.step = "last forward", case.steps
        # torch DDP reports an unused parameter of the last backward only in the next forward. Also,
        # sharded parameters are whole only in a forward.
        self.observer.watching = self.observer.sharded
        batch = self.program.batch(setup.dealt[-1][setup.rank], 0)
        self.program.forward(self.trained.forward, batch[0])
        self.observer.after_forwards()
        if case.world_size == 1 and setup.saved is None and case.passes == "alternate":
            train_plainly(self)

    def begin(self) -> None:
        """Wrap the replica and make its optimizer."""
        for effect in self.effects:
            effect.before_wrapping(self)
        self.observer.watch()
        context = self.setup.context
        for effect in self.effects:
            context = effect.on_optimizer(context)
        self.trained.wrapped, self.trained.optimizer = self.trained.drive.begin(context)
        self.observer.wrapped()
        self.record.facts["driven"] = self.trained.drive.driven
        self._require_own_parameters()

    def _require_own_parameters(self) -> None:
        """Check that the wrapper trains the parameters that are watched.

        Raises:
            TypeError: The wrapper trains a copy, so the suite would see no effect of the training.
        """
        parameters = getattr(self.trained.wrapped, "parameters", None)
        trained = {id(p) for p in parameters()} if callable(parameters) else set()
        if trained and not trained & {id(p) for p in self.trained.replica.parameters()}:
            raise TypeError(
                "the wrapper's parameters() are not the parameters of the module that it was given, "
                "so the suite cannot see the training: the wrapper trains a copy, or hides the "
                "parameters; write an adapter"
            )

    def take_steps(self) -> None:
        """Take all steps for which this rank has batches."""
        for step in range(self.setup.case.steps_of(self.setup.rank)):
            self.take_step(step)

    def take_step(self, step: int) -> None:
        """Take one step."""
        setup, count = self.setup, self.setup.case.accumulation
        self.position.step = step
        self.prepare(0)
        micro_steps = setup.dealt[step * count : (step + 1) * count]
        batches = [ranks[setup.rank] for ranks in micro_steps]
        for effect in self.effects:
            effect.before_step(self, batches[0])
        self._one_step(batches)

    def prepare(self, micro_step: int) -> None:
        """Prepare the replica and its twin for a micro-step."""
        for effect in self.effects:
            for replica in (self.trained.replica, self.twin.module):
                effect.before_pass(replica, self.position.step, micro_step)

    def in_training_again(self) -> None:
        """Let the effects act after the wrapper was put into training mode, or was made anew."""
        for effect in self.effects:
            effect.in_training_again(self)

    def forward(self, batch: Batch, *micro_steps: int) -> tuple[Tensor, Tensor]:
        """Run a forward, and note it as that of some micro-steps.

        Returns:
            The loss, and the tensor its backward starts from.
        """
        for effect in self.effects:
            effect.before_forward()
        losses = self.program.losses(self.trained.forward, batch, self.trained.replica)
        self._note_forward(*micro_steps)
        if self.setup.case.get(Closure) is not None:
            self.loss = losses[0]  # Kept in no other case: the graph behind it must go.
        return losses

    def backward(self, share: Tensor) -> None:
        """Run the backward of a micro-step as the effects of the case arrange it."""
        run = self.trained.backward
        for effect in self.effects:
            run = partial(effect.run_backward, run)
        run(share)

    def _note_forward(self, *micro_steps: int) -> None:
        first = self.position.step * self.setup.case.accumulation
        numbers = [first + micro_step for micro_step in micro_steps]
        for effect in self.effects:
            effect.after_forward(self.record, "drawn", *numbers)

    def _one_step(self, dealt: list[Any]) -> None:
        """Make one optimizer update."""
        trained, case, position = self.trained, self.setup.case, self.position
        position.phase, self.twin.followed = "a caught exception", True
        for effect in self.effects:
            effect.before_batch(self, dealt[0])
        position.phase = "before the batch"
        trained.drive.before_batch(trained.wrapped, trained.optimizer)
        if case.get(Closure) is None:
            computed = self.compute(dealt)
            position.phase = "optimizer step"
            if not any(effect.update(trained) for effect in self.effects):
                trained.step()
        else:
            computed = self._step_with_closure(dealt)
        for effect in self.effects:
            effect.after_update(self.record)
        if self.setup.declared.gradients == "hidden":
            # The optimizer's step may be the call that waits for communication.
            self.observer.ready()
        self.observer.mark(computed.start)
        self.record.facts.setdefault("quiet", []).append(computed.quiet)
        self.observer.updated(computed.gradient_bytes)

    def compute(self, dealt: list[Any]) -> Computed:
        """Compute a step's synchronised gradients, and prepare them for the update."""
        trained, case, position = self.trained, self.setup.case, self.position
        if not any(effect.clears for effect in self.effects):
            trained.clear_gradients(case.zero_grad, position.step)
        start = self.setup.session.counts()
        quiet = PASSES[case.passes](self, dealt)
        self.observer.synchronised()
        position.phase = "unscaling"
        for effect in self.effects:
            effect.on_gradients(trained)
        position.phase = "clipping"
        for effect in self.effects:
            effect.before_update(trained)
        return Computed(start, quiet, self.observer.gradient_bytes())

    def _step_with_closure(self, dealt: list[Any]) -> Computed:
        """Make the optimizer step by a closure that computes the gradients."""
        start, closure = self.setup.session.counts(), StepClosure(self, dealt)
        self.position.phase = "optimizer step"
        result = self.trained.step(closure)
        self.record.facts.setdefault("closures", []).append(
            [closure.calls, closure.returned(result)]
        )
        self.loss = None
        return closure.computed or Computed(start, [], 0)

    def _train_by_itself(self) -> None:
        """Train with an implementation that does whole steps."""
        setup, trained, observer = self.setup, self.trained, self.observer
        trained.drive.setup(setup.context)
        if "wrap" in trained.drive.driver.methods:
            trained.drive.wrap(trained.replica, setup.context)
        observer.wrapped()
        parameters = dict(observer.named)
        for step, dealt in enumerate(setup.dealt):
            self.position.step = step
            for effect in self.effects:
                effect.before_batch(self, dealt[setup.rank])
            batch = self.program.batch(dealt[setup.rank], step)
            observer.watching = True
            observer.at_forward()
            self.position.phase = "train_step"
            for effect in self.effects:
                effect.before_forward()
            start = setup.session.counts()
            for effect in self.effects:
                effect.before_gradient()
            loss = trained.drive.train_step(parameters, batch[0], batch[1], setup.context)
            observer.ready()
            observer.mark(start)
            self.record.tensors("updated", step, observer.named)
            self._note_forward(0)
            self.position.phase = "twin"
            if not isinstance(loss, Tensor):
                loss = torch.tensor(loss, dtype=torch.float64)
            self.twin.micro_step(0, batch, loss.detach())
