"""Optimizers that update float32 copies of parameters of low precision, under the reference's wrapper.

Source: Micikevicius et al. 2018, arXiv:1710.03740, section 3.1.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

_LOW = (torch.bfloat16, torch.float16)


class UpdatesCopies(Optimizer):
    """Right: copies of parameters of low precision are updated, saved, and rounded into the parameters."""

    declares: ClassVar[dict[str, Any]] = {"main": "float32"}

    def __init__(self, params: Any, optimizer_class: type[Optimizer], **options: Any) -> None:
        self._copies: dict[Tensor, Tensor] = {}
        self._inner: Optimizer | None = None
        usual: Any = optimizer_class
        super().__init__(params, usual([torch.zeros(1)], **options).defaults)
        self._inner = usual([self._copied(group) for group in self.param_groups], **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with copies."""
        super().add_param_group(param_group)
        if self._inner is not None:
            self._inner.add_param_group(self._copied(self.param_groups[-1]))

    def _copied(self, group: dict[str, Any]) -> dict[str, Any]:
        for parameter in group["params"]:
            if parameter.dtype in _LOW:
                self._copies[parameter] = parameter.detach().float()
        return {**group, "params": [self._copies.get(p, p) for p in group["params"]]}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the copies with the options of the groups, and round them."""
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        self._hand_options_on()
        for parameter, copy in self._copies.items():
            copy.grad = None if parameter.grad is None else parameter.grad.float()
        assert self._inner is not None
        self._inner.step()
        for parameter, copy in self._copies.items():
            if copy.grad is not None:
                parameter.copy_(copy)
        return loss

    def _hand_options_on(self) -> None:
        assert self._inner is not None
        for group, mine in zip(self.param_groups, self._inner.param_groups, strict=True):
            mine.update({name: value for name, value in group.items() if name != "params"})

    def state_dict(self) -> dict[str, Any]:
        """Return the state with the copies."""
        self._hand_options_on()
        assert self._inner is not None
        copies = [copy.clone() for copy in self._copies.values()]
        return {"inner": self._inner.state_dict(), "copies": copies}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state."""
        assert self._inner is not None
        self._inner.load_state_dict(state_dict["inner"])
        for group, mine in zip(self.param_groups, self._inner.param_groups, strict=True):
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


class CopiesAnew(UpdatesCopies):
    """The copies are made anew of the rounded parameters before each step, so that small updates are
    lost (no public incident found).

    PARAM-3.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for parameter, copy in self._copies.items():
            copy.copy_(parameter)
        return super().step(closure)
