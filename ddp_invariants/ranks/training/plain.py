"""Training without any wrapper, in a world of one rank, where a wrapper may change nothing."""

from typing import TYPE_CHECKING

from ddp_invariants.ranks.training.layout import lay_out
from ddp_invariants.ranks.training.trained import Plain

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


def train_plainly(stepper: "Stepper") -> None:
    """Take a run's steps again, without its wrapper, and note the parameters after each."""
    setup, case, program = stepper.setup, stepper.setup.case, stepper.program
    plain = setup.replica()
    lay_out(plain, stepper.twin.layouts)
    optimizer = setup.context.optimizer(plain.parameters())
    trained = Plain(plain, optimizer)
    for effect in stepper.effects:
        effect.begin_again()
    for number, dealt in enumerate(setup.dealt):
        step, micro_step = divmod(number, case.accumulation)
        stepper.position.step = step
        for effect in stepper.effects:
            effect.before_pass(plain, step, micro_step)
        batch = program.batch(dealt[0], step)
        if not all(s.repeat(plain, number, batch[0]) for s in stepper.effects):
            return
        if micro_step == 0:
            for effect in stepper.effects:
                effect.before_plain_step(step, trained)
            trained.clear_gradients(case.zero_grad, step)
        program.loss(program.forward(plain, batch[0]), batch, plain)[1].backward()
        if micro_step == case.accumulation - 1:
            _update(stepper, trained, step)


def _update(stepper: "Stepper", trained: Plain, step: int) -> None:
    """Make the optimizer step."""
    for effect in stepper.effects:
        effect.on_gradients(trained)
    for effect in stepper.effects:
        effect.before_update(trained)
    if not any(effect.update(trained) for effect in stepper.effects):
        trained.step()
    stepper.record.tensors("plain", step, trained.replica.named_parameters())
