"""Groups of parameters whose options in the optimizer differ (`situations.group_options`)."""

from typing import TYPE_CHECKING, Any

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.setup import Setup
from ddp_invariants.ranks.training.trained import Trained
from ddp_invariants.situations import group_options

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.get(group_options.GroupOptions) is not None)
class GroupOptions(Effect):
    """An optimizer over two groups; `Setup.context` gives it their options."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        found = self.case.get(group_options.GroupOptions)
        assert found is not None
        self._options = found
        self._second: dict[type[Trained], list[int]] = {}

    def begin(self, stepper: "Stepper") -> None:
        """Check that the optimizer was made of the groups.

        Raises:
            NotImplementedError: It was made otherwise.
        """
        del stepper
        groups = self.setup.context.groups
        assert groups is not None
        if not groups.made:
            raise NotImplementedError("the optimizer is made without groups of parameters")

    def before_batch(self, stepper: "Stepper", indices: Any) -> None:
        """Set the second group's learning rate of the step."""
        del indices
        self._set_rate(stepper.trained, stepper.position.step)

    def before_plain_step(self, step: int, plain: Trained) -> None:
        """Set the rate of the step of training without a wrapper."""
        self._set_rate(plain, step)

    def _set_rate(self, trained: Trained, step: int) -> None:
        if not self._options.log2_later:
            return
        if step == 0:
            self._second[type(trained)] = self._found(trained)
        for number in self._second[type(trained)]:
            trained.optimizer.param_groups[number]["lr"] = self._rate(step)

    def _found(self, trained: Trained) -> list[int]:
        """Return the indices of the groups with the second group's rate, before a step changes it.

        A rank may have no such group, and an optimizer may have divided one.
        """
        rates = {self._rate(step) for step in (0, 1)}
        groups = enumerate(getattr(trained.optimizer, "param_groups", ()))
        return [number for number, group in groups if group.get("lr") in rates]

    def _rate(self, step: int) -> float:
        return self._options.of_second(self.case.at(step).optimizer, step).lr
