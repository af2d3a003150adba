"""A group of parameters that a program adds to its optimizer after it has made the optimizer."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper

Choice = Callable[[list[Tensor]], list[Tensor]]
"""A function that returns some of the parameters it is given."""


class LaterGroup:
    """Parameters that the optimizer of the trained model lacks, until the program adds them.

    An optimizer under test may have divided its parameters among the ranks, so it is made anew. One
    of torch's own gives them up before its first step.

    Args:
        stepper: The run.
        first: The parameters that the optimizer has from the start, at least one.

    Raises:
        NotImplementedError: Wrapping brought the optimizer; or the optimizer takes no group, or hooks
            parameters, which would keep the hooks of the one before.
    """

    def __init__(self, stepper: "Stepper", first: Choice) -> None:
        trained, setup, chosen = stepper.trained, stepper.setup, _Chosen(first)
        if setup.driver.optimizer is None:
            _give_up(trained.optimizer, chosen)
        elif trained.drive.brought is not None:
            raise NotImplementedError(
                "wrapping returned an optimizer of its own, and the program cannot make it again"
            )
        else:
            hooks = _hooks(trained.replica)
            context = replace(setup.context, groups=chosen)
            optimizer = trained.drive.make_optimizer(trained.wrapped, context)
            kind = type(optimizer).__name__
            if chosen.left is None or not hasattr(optimizer, "add_param_group"):
                raise NotImplementedError(f"{kind} takes no group of parameters")
            if _hooks(trained.replica) > hooks:
                raise NotImplementedError(
                    f"{kind} hooks its parameters, and no call removes the hooks"
                )
            trained.optimizer = optimizer
        self._trained, self._left = trained, chosen.left or []
        self._options = setup.context.optimizer_arguments

    def add(self, chosen: Callable[[Tensor], bool]) -> None:
        """Add some of the parameters as a group, with the options that the first group has now.

        Args:
            chosen: Whether to add a parameter.
        """
        added = [parameter for parameter in self._left if chosen(parameter)]
        self._left = [parameter for parameter in self._left if not chosen(parameter)]
        if added:
            optimizer = self._trained.optimizer
            first: dict[str, Any] = next(iter(getattr(optimizer, "param_groups", ())), {})
            options = {name: first.get(name, value) for name, value in self._options.items()}
            optimizer.add_param_group({"params": added, **options})


class _Chosen:
    """A function that chooses some parameters for an optimizer.

    Attributes:
        left: The other parameters; None before it was called.
    """

    def __init__(self, first: Choice) -> None:
        self._first = first
        self.left: list[Tensor] | None = None

    def __call__(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return the chosen ones."""
        every = list(parameters)
        chosen = self._first(every)
        kept = {id(parameter) for parameter in chosen}
        self.left = [parameter for parameter in every if id(parameter) not in kept]
        return chosen


def _hooks(module: nn.Module) -> int:
    """Return the number of hooks on a module's parameters."""
    return sum(
        len(hooks or ())
        for parameter in module.parameters()
        for hooks in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
    )


def _give_up(optimizer: Any, chosen: _Chosen) -> None:
    """Leave only the chosen parameters in the one group of an optimizer of torch.

    Raises:
        NotImplementedError: The optimizer is not one of torch's own over one group.
    """
    if not type(optimizer).__module__.startswith("torch.optim.") or len(optimizer.param_groups) > 1:
        raise NotImplementedError(f"{type(optimizer).__name__} takes no group of parameters")
    (group,) = optimizer.param_groups
    group["params"] = chosen(group["params"])
