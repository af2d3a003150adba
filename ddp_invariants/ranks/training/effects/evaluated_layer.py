"""A layer in evaluation mode while the rest of the model trains (`situations.evaluated_layer`)."""

from typing import TYPE_CHECKING

from torch import nn

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.ranks.training.parts import modes, present
from ddp_invariants.ranks.training.recorder import Record
from ddp_invariants.ranks.training.setup import Setup
from ddp_invariants.situations import evaluated_layer

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.get(evaluated_layer.EvaluatedLayer) is not None)
class EvaluatedLayer(Effect):
    """The mode of one layer, of the module under test and of every module that repeats its steps."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        plan = self.case.get(evaluated_layer.EvaluatedLayer)
        assert plan is not None
        self.plan, self.switches_later = plan, plan.since > 0
        self.stepper: Stepper | None = None
        self.parts: dict[str, nn.Module] = {}

    def on_replica(self, replica: Replica) -> None:
        """Keep the parts of the replica by their names, and switch the layer if it is time."""
        self.parts = dict(replica.named_modules())
        if self.plan.before:
            replica.stack[self.plan.layer].eval()

    def begin(self, stepper: "Stepper") -> None:
        """Switch the layer of the wrapped replica if that is not done yet, and is due."""
        self.stepper = stepper
        if not self.plan.before:
            self.in_training_again(stepper)

    def in_training_again(self, stepper: "Stepper") -> None:
        """Switch the layer of the wrapped replica, as the program does after each `train()`."""
        if stepper.position.step >= self.plan.since:
            stepper.trained.replica.stack[self.plan.layer].eval()

    def before_pass(self, replica: Replica, step: int, micro_step: int) -> None:
        """Switch the layer of every replica once it is time, that of the wrapped one a single time.

        If a wrapper switches it back, the evidence must show that.
        """
        del micro_step
        if self.stepper is None or step < self.plan.since:
            return
        if replica is not self.stepper.trained.replica:
            replica.stack[self.plan.layer].eval()
        elif self.switches_later:
            self.switches_later = False
            replica.stack[self.plan.layer].eval()

    def after_update(self, record: Record) -> None:
        """Note the mode of each part after a step."""
        assert self.stepper is not None
        got = modes(present(self.parts, self.stepper.trained.replica))
        expected = modes(dict(self.stepper.twin.module.named_modules()))
        step = self.stepper.position.step
        record.facts.setdefault("uses", []).append([evaluated_layer.OF_LAYER, step, got, expected])
