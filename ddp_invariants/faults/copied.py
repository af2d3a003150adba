"""Optimizers that update float32 copies of parameters of low precision, under the reference's wrapper.

Source: Micikevicius et al. 2018, arXiv:1710.03740, section 3.1.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ddp_invariants.faults._outer import Around

_LOW = (torch.bfloat16, torch.float16)


class UpdatesCopies(Around):
    """Right: copies of parameters of low precision are updated, saved, and rounded into the parameters."""

    declares: ClassVar[dict[str, Any]] = {"main": "float32"}

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._copies: dict[Tensor, Tensor] = {}
        super().__init__(*arguments, **options)

    def inside(self, group: dict[str, Any]) -> dict[str, Any]:
        """Copy a new group's parameters of low precision, and return the copies in their places."""
        for parameter in group["params"]:
            if (copy := self.copy_of(parameter)) is not None:
                self._copies[parameter] = copy
        return {**group, "params": [self._copies.get(p, p) for p in group["params"]]}

    def copy_of(self, parameter: Tensor) -> Tensor | None:
        """Return what is updated in place of a parameter; None for the parameter itself."""
        return parameter.detach().float() if parameter.dtype in _LOW else None

    def step_inner(self, inner: Optimizer) -> None:
        """Update the copies, and round them."""
        for parameter, copy in self._copies.items():
            copy.grad = None if parameter.grad is None else parameter.grad.to(copy.dtype)
        inner.step()
        for parameter, copy in self._copies.items():
            if copy.grad is not None:
                parameter.copy_(copy)

    def state_dict(self) -> dict[str, Any]:
        """Return the state with the copies."""
        assert self.inner is not None
        self.hand_options_on(self.inner)
        copies = [copy.clone() for copy in self._copies.values()]
        return {"inner": self.inner.state_dict(), "copies": copies}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state."""
        assert self.inner is not None
        self.inner.load_state_dict(state_dict["inner"])
        for group, mine in zip(self.param_groups, self.inner.param_groups, strict=True):
            group.update({name: value for name, value in mine.items() if name != "params"})
        for copy, saved in zip(self._copies.values(), state_dict["copies"], strict=True):
            copy.copy_(saved)


class SavesRoundedCopies(UpdatesCopies):
    """A saved state holds the rounded parameters in place of their copies (no public incident found).

    PARAM-3.
    """

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "copies": [parameter.detach().float() for parameter in self._copies]}


class UpdatesItsCopies(UpdatesCopies):
    """Every parameter has a copy, so what the program writes to a parameter between two steps is lost
    (no public incident found).

    LIVE-5: a copy that lacks what the program wrote.
    """

    declares: ClassVar[dict[str, Any]] = {}

    def copy_of(self, parameter: Tensor) -> Tensor:
        return parameter.detach().clone()


class CopiesAnew(UpdatesCopies):
    """The copies are made anew of the rounded parameters before each step, so that small updates are
    lost (no public incident found).

    PARAM-3.
    """

    def step_inner(self, inner: Optimizer) -> None:
        for parameter, copy in self._copies.items():
            copy.copy_(parameter)
        super().step_inner(inner)
