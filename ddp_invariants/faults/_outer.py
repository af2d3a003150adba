"""The bases of optimizers that step another optimizer."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class Outer:
    """An optimizer whose parameters, state and gradients are those of another one."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        return self.optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


class Around(Optimizer):
    """An optimizer with an inner one over the same groups, of which a subclass may change the tensors.

    Attributes:
        inner: The inner optimizer; None until it is made.
    """

    def __init__(self, params: Any, optimizer_class: type[Optimizer], **options: Any) -> None:
        self.inner: Optimizer | None = None
        usual: Any = optimizer_class
        super().__init__(params, usual([torch.zeros(1)], **options).defaults)
        self.inner = usual([self.inside(group) for group in self.param_groups], **options)

    def inside(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return a group as the inner optimizer gets it."""
        return group

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to both optimizers."""
        super().add_param_group(param_group)
        if self.inner is not None:
            self.inner.add_param_group(self.inside(self.param_groups[-1]))

    def hand_options_on(self, inner: Optimizer) -> None:
        """Give the inner groups the options of the outer ones."""
        # A wrong optimizer may have a group without a counterpart.
        for group, mine in zip(self.param_groups, inner.param_groups, strict=False):
            mine.update({name: value for name, value in group.items() if name != "params"})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Compute the loss, and step with the options of the groups."""
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        assert self.inner is not None
        self.hand_options_on(self.inner)
        self.step_inner(self.inner)
        return loss

    def step_inner(self, inner: Optimizer) -> None:
        """Make the inner optimizer's step."""
        inner.step()
