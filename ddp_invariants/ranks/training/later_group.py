"""A group of parameters that a program adds to its optimizer after it has made the optimizer."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ddp_invariants.implementation.adapter import Context
from ddp_invariants.ranks.training.setup import Setup

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


class LaterGroup:
    """Parameters that an optimizer lacks from the start, until the program adds them.

    An optimizer under test is made of the others, for which its maker asks this object, and so is
    one that the wrapper is given. Any other one of torch's own gives them up before its first step.
    An adapter may make an optimizer of anything, which may differ from rank to rank, so any other
    optimizer of an adapter is left alone.

    Args:
        first: A function that returns those of some parameters which the optimizer has from the
            start, at least one.
    """

    def __init__(self, first: Callable[[list[Tensor]], list[Tensor]]) -> None:
        self._first = first
        self._left: list[Tensor] | None = None

    def within(self, setup: Setup, context: Context) -> Context:
        """Return the facts with which the optimizer is made."""
        driver = setup.driver
        given = driver.call is not None and driver.call.takes_optimizer
        made = driver.optimizer is not None or given
        return replace(context, groups=self) if made else context

    def __call__(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return the parameters that the optimizer has from the start."""
        every = list(parameters)
        chosen = self._first(every)
        kept = {id(parameter) for parameter in chosen}
        self._left = [parameter for parameter in every if id(parameter) not in kept]
        return chosen

    def begin(self, stepper: "Stepper") -> None:
        """Check that the optimizer lacks the parameters, and takes a group.

        Raises:
            NotImplementedError: It has them, or takes none.
        """
        self._trained, self._options = stepper.trained, stepper.setup.context.optimizer_arguments
        optimizer = stepper.trained.optimizer
        if self._left is None and stepper.setup.driver.optimizer is None and _is_plain(optimizer):
            (group,) = optimizer.param_groups
            group["params"] = self(group["params"])
        if self._left is None or not hasattr(optimizer, "add_param_group"):
            raise NotImplementedError(f"{type(optimizer).__name__} takes no group of parameters")

    def add(self, chosen: Callable[[Tensor], bool]) -> None:
        """Add some of the parameters as a group, with the options that the first group has now.

        Args:
            chosen: Whether to add a parameter.
        """
        left = self._left or []
        added = [parameter for parameter in left if chosen(parameter)]
        self._left = [parameter for parameter in left if not chosen(parameter)]
        if added:
            optimizer = self._trained.optimizer
            first: dict[str, Any] = next(iter(getattr(optimizer, "param_groups", ())), {})
            options = {name: first.get(name, value) for name, value in self._options.items()}
            optimizer.add_param_group({"params": added, **options})


def _is_plain(optimizer: Any) -> bool:
    """Return whether an optimizer is one of torch's own over one group."""
    own = type(optimizer).__module__.startswith("torch.optim.")
    return own and len(optimizer.param_groups) == 1
