"""A second wrapper in the same program (`situations.second`)."""

import gc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.recorder import Record
from ddp_invariants.ranks.training.setup import Setup
from ddp_invariants.ranks.training.trained import Trained
from ddp_invariants.situations import second

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper

Backward = Callable[[Tensor], None]


@effect(lambda case: case.get(second.SecondWrapper) is not None)
class SecondWrapper(Effect):
    """A second wrapper in the same program."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        plan = self.case.get(second.SecondWrapper)
        assert plan is not None
        self._use, self._case = plan.use, plan.other(self.case)
        self._other: Stepper | None = None
        self._first: Trained | None = None
        self._noted: Record | None = None
        self._step, self._paused = 0, ExitStack()

    def before_wrapping(self, stepper: "Stepper") -> None:
        """Train another model to its end, or the same one for a step."""
        if self._use == "before":
            stepper_of_other = self._made(stepper)
            stepper_of_other.run()
            del stepper_of_other
            gc.collect()
        elif self._use == "smaller":
            self._first = self._wrapped_over_fewer()
        elif self._use in second.SAME:
            self._train_the_same(stepper)

    def begin(self, stepper: "Stepper") -> None:
        """Wrap the other model, or delete the first wrapper of the same one."""
        if self._use == "dropped":
            self._first = None
            gc.collect()
        if self._use == "unused" or self._use in second.BESIDE:
            self._other = made = self._made(stepper)
            made.trained.start(made.setup)
            made.observer.built()
            made.begin()

    def before_batch(self, stepper: "Stepper", _indices: Any) -> None:
        """Make the other model's step first, where the two take turns."""
        self._step = stepper.position.step
        if self._use in ("in turn", "paused") and self._other is not None:
            self._other.take_step(self._step)
        if self._use == "paused" and self._other is not None:
            other = self._other.trained
            self._paused.enter_context(other.drive.accumulate(other.wrapped))

    def after_update(self, record: Record) -> None:
        """Let the other model's wrapper communicate again."""
        del record
        self._paused.close()

    def run_backward(self, backward: Backward, share: Tensor) -> None:
        """Make the other model's step before or around this backward."""
        second_stepper = self._other
        if second_stepper is None or self._use in ("unused", "in turn", "paused"):
            backward(share)
        elif self._use == "inside":
            second_stepper.take_step(self._step)
            backward(share)
        else:
            # An engine's backward serves its own model alone, so the program calls both.
            alone = second_stepper.trained.runs_backward
            order = _crossed if self._use == "crossed" or alone else _joint
            meanwhile = _Meanwhile(second_stepper.setup, partial(order, backward, share))
            effects = second_stepper.effects
            second_stepper.program.effects = (*effects, meanwhile)
            second_stepper.take_step(self._step)
            second_stepper.program.effects = effects

    def end(self, record: Record) -> None:
        """Note the evidence of the other model behind that of the case's own."""
        self._paused.close()
        if self._noted is None:
            return
        header, start = self._noted.header(), len(record.blob)
        record.blob += self._noted.blob
        header["records"] = [
            (moment, step, layout, start + offset, size)
            for moment, step, layout, offset, size in header["records"]
        ]
        record.facts["beside"] = {**header, "sent": [], "groups": [], "changed": [], "left": []}

    def _made(self, stepper: "Stepper") -> "Stepper":
        """Return a stepper for the other model."""
        setup = self.setup
        made = type(stepper)(Setup(self._case, setup.rank, setup.driver, setup.session))
        self._noted = made.record
        return made

    def _wrapped_over_fewer(self) -> Trained | None:
        """Wrap another model over a group of all ranks but the last; None on that one."""
        ranks = list(range(self.case.world_size - 1))
        group = dist.new_group(ranks)
        if self.setup.rank not in ranks:
            return None
        case = replace(self._case, world_size=len(ranks))
        setup = Setup(case, self.setup.rank, self.setup.driver, self.setup.session)
        trained = Trained(setup.replica())
        trained.drive = setup.driver.start(replace(setup.context, group=group), trained.replica)
        trained.wrapped, trained.optimizer = trained.drive.begin()
        return trained

    def _train_the_same(self, stepper: "Stepper") -> None:
        """Wrap the replica, train it for a step, and give it its first values again."""
        setup, replica = self.setup, stepper.trained.replica
        values = [tensor.detach().clone() for tensor in _tensors(replica)]
        first = Trained(replica)
        first.start(setup)
        first.wrapped, first.optimizer = first.drive.begin()
        if first.wrapped is replica:
            raise NotImplementedError(
                "wrapping hooks the module in place, and no call removes the hooks"
            )
        first.drive.before_batch(first.wrapped, first.optimizer)
        first.zero_grad()
        batch = stepper.program.batch(setup.dealt[0][setup.rank], 0)
        outputs = stepper.program.forward(first.forward, batch[0])
        _, share = stepper.program.loss(outputs, batch, replica)
        first.backward(share)
        first.after_backward()
        first.step()
        first.zero_grad()
        first.drive.teardown(setup.context)
        with torch.no_grad():
            for tensor, value in zip(_tensors(replica), values, strict=True):
                tensor.copy_(value)
        if self._use in ("kept", "dropped"):
            self._first = first
        del first, share
        gc.collect()


class _Meanwhile(Effect):
    """The backward of the other model, in the order that the program runs both."""

    def __init__(self, setup: Setup, arrange: Callable[[Backward, Tensor], None]) -> None:
        super().__init__(setup)
        self._arrange = arrange

    def run_backward(self, backward: Backward, share: Tensor) -> None:
        """Run both backwards."""
        self._arrange(backward, share)


def _crossed(backward: Backward, share: Tensor, of_other: Backward, second_share: Tensor) -> None:
    """Run both backwards, each for itself, in the order of their forwards."""
    backward(share)
    of_other(second_share)


def _joint(backward: Backward, share: Tensor, _of_other: Backward, second_share: Tensor) -> None:
    """Run one backward of the sum of both losses."""
    backward(share + second_share)


def _tensors(replica: Any) -> list[Tensor]:
    return [*replica.parameters(), *replica.buffers()]
