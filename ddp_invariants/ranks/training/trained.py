"""The model under test: its replica, the wrapper around it, its optimizer and the calls that drive them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ddp_invariants.cases.case import ZeroGrad
from ddp_invariants.ranks.driving.drive import Drive
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.ranks.training.setup import Setup

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.closure import StepClosure


class Trained:
    """The model under test: its replica, the wrapper around it, its optimizer and their calls.

    Attributes:
        replica: This rank's copy of the model.
        drive: The calls; set by `start`.
        wrapped: The wrapper that the program calls.
        optimizer: Its optimizer.
        copies: Deep copies of the wrapper. They are kept, since they may have hooks of their own.
        cleared_by_module: True if the wrapper's `zero_grad` clears gradients, not the optimizer's.
    """

    drive: Drive
    cleared_by_module = False

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.wrapped: Any = None
        self.optimizer: Any = None
        self.copies: list[Any] = []

    def start(self, setup: Setup) -> None:
        """Make the calls of a case for the replica."""
        self.drive = setup.driver.start(setup.context, self.replica)

    @property
    def stateful(self) -> Any:
        """The object whose state is saved and loaded: the wrapper if it has one, or the replica."""
        has_state = all(
            callable(getattr(self.wrapped, name, None))
            for name in ("state_dict", "load_state_dict")
        )
        return self.wrapped if has_state else self.replica

    def require_option(self, name: str) -> None:
        """Check that each group of the optimizer has an option under torch's name, as schedulers expect.

        Raises:
            NotImplementedError: A group lacks it.
        """
        if any(name not in group for group in self.optimizer.param_groups):
            raise NotImplementedError(f"a group of the optimizer's parameters has no {name!r}")

    def set_rates(self, rate_of: Callable[[float], float]) -> None:
        """Set each group's learning rate to a function of what it is, in place if it is a tensor."""
        filled: set[int] = set()
        for group in self.optimizer.param_groups:
            rate = group["lr"]
            if not isinstance(rate, Tensor):
                group["lr"] = rate_of(rate)
            elif id(rate) not in filled:  # Groups may share a tensor.
                filled.add(id(rate))
                rate.fill_(rate_of(float(rate)))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a forward of the wrapper."""
        return self.drive.forward(self.wrapped, *args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Run a backward."""
        self.drive.backward(self.wrapped, self.optimizer, loss)

    @property
    def runs_backward(self) -> bool:
        """True if the wrapper is an engine, which runs backward for its own model."""
        return self.drive.runs_backward(self.wrapped)

    def after_backward(self) -> None:
        """Call what finishes a backward that is synchronised."""
        self.drive.after_backward(self.wrapped, self.optimizer)

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        if self.cleared_by_module:
            self.drive.zero_grad_of_module(self.wrapped, set_to_none)
        else:
            self.drive.zero_grad(self.wrapped, self.optimizer, set_to_none)

    def clear_gradients(self, way: ZeroGrad, step: int) -> None:
        """Clear the gradients before a step as a case says."""
        if way == "never":
            return
        self.zero_grad(set_to_none=way == "set_to_none")
        if way == "mixed":
            for number, parameter in enumerate(self.replica.parameters()):
                if (number + step) % 2 == 0:
                    parameter.grad = None

    def recover(self) -> None:
        """Recover from an exception that all ranks have caught."""
        self.drive.recover(self.wrapped)

    def clip(self, norm: float) -> None:
        """Scale all gradients together down to a norm."""
        self.drive.clip(self.wrapped, self.optimizer, norm)

    def step(self, closure: "StepClosure | None" = None) -> object:
        """Make the optimizer step, and return its result.

        Args:
            closure: The function that computes loss and gradients; None if they exist already.
        """
        if closure is not None:
            return self.drive.step_with_closure(self.wrapped, self.optimizer, closure)
        return self.drive.step(self.wrapped, self.optimizer)


class Plain(Trained):
    """The same model without a wrapper, for a world of one rank."""

    def __init__(self, replica: Replica, optimizer: Any) -> None:
        super().__init__(replica)
        self.optimizer = optimizer

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def clip(self, norm: float) -> None:
        """Scale all gradients together down to a norm."""
        nn.utils.clip_grad_norm_(self.replica.parameters(), norm)

    def step(self, closure: "StepClosure | None" = None) -> object:
        """Make the optimizer step."""
        return self.optimizer.step(closure)
