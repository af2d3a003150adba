"""A deep copy of the wrapper that is trained beside it (`situations.module_use`)."""

from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.ranks.training.recorder import Record
from ddp_invariants.ranks.training.shaped import described, tensors_in
from ddp_invariants.situations.module_use import COPIED_GRADIENTS, ModuleUse

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper

_STEPPING = frozenset({"before_batch", "forward", "backward", "after_backward"})
"""The methods of an adapter in a step. They may hold on to the wrapper or to its optimizer."""


@effect(lambda case: (use := case.get(ModuleUse)) is not None and "wrapper copies" in use.uses)
class WrapperCopies(Effect):
    """A step of a deep copy of the wrapper, while the wrapper's own gradients still exist."""

    rows: tuple[list[Any], ...] = ()

    def begin(self, stepper: "Stepper") -> None:
        """Check that nothing besides the wrapper takes part in a step.

        Raises:
            NotImplementedError: An object would go on with the original: the optimizer that wrapping
                was given or returned, or the caller's code.
        """
        drive = stepper.trained.drive
        if drive.brought is not None:
            raise NotImplementedError(
                "wrapping was given or returned an optimizer, and the copy has none"
            )
        if drive.driver.after is not None or _STEPPING & drive.driver.methods:
            raise NotImplementedError(
                "functions outside the wrapper run a step, and they are not copied"
            )

    def before_step(self, stepper: "Stepper", indices: Any) -> None:
        """Copy the wrapper before the second step, and train the copy."""
        if stepper.position.step != 1:
            return
        stepper.position.phase = "the training of a copy of the wrapper before it"
        module = stepper.trained.replica
        expected = list(_state(module))
        copy = _train_copy(stepper, stepper.program.batch(indices, 1)[0])
        self.rows = (["wrapper copies", 1, list(_state(module)), expected],)
        reduced = stepper.setup.declared.gradients == "all" and not stepper.observer.sharded
        if reduced and _says_how(type(stepper.trained.wrapped)):
            self.rows += ([COPIED_GRADIENTS, 1, list(_gradients(copy)), []],)

    def end(self, record: Record) -> None:
        """Hand over the notes."""
        record.facts.setdefault("uses", []).extend(self.rows)


def _train_copy(stepper: "Stepper", inputs: Tensor) -> Replica:
    """Train a deep copy of the wrapper for a step, and return the copy of its module.

    Raises:
        NotImplementedError: The copy of the wrapper has no copy of its module.
    """
    trained = stepper.trained
    drive, optimizer = trained.drive, trained.optimizer
    wrapped, module = deepcopy((trained.wrapped, trained.replica))
    if module not in (wrapped.modules() if isinstance(wrapped, nn.Module) else ()):
        raise NotImplementedError("a deep copy of the wrapper has no copy of its module")
    module.at_forward = None
    module.zero_grad()
    with torch.random.fork_rng(devices=()):
        drive.before_batch(wrapped, optimizer)
        outputs = tensors_in(drive.forward(wrapped, inputs))
        losses = [each.abs().double().sum() for each in outputs if each.requires_grad]
        drive.backward(wrapped, optimizer, torch.stack(losses).sum())
        drive.after_backward(wrapped, optimizer)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    return module


def _says_how(kind: type) -> bool:
    """Return whether a class says how to copy its objects.

    Otherwise a copy of a module has no hooks on its parameters, as torch documents, and trains
    alone. `__getstate__`, `__setstate__` and `__reduce__` may serve files alone, and say nothing.
    """
    return "__deepcopy__" in (name for each in kind.__mro__ for name in vars(each))


def _state(module: nn.Module) -> Iterator[str]:
    """Yield the parameters, buffers and gradients of a module in words."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        yield f"{name}: {described(tensor)}"
    yield from _gradients(module)


def _gradients(module: nn.Module) -> Iterator[str]:
    """Yield the gradients of a module in words."""
    for name, parameter in module.named_parameters():
        gradient = parameter.grad
        if gradient is not None and gradient.layout != torch.strided:
            gradient = gradient.to_dense()
        if gradient is not None:
            # A sum of two NaNs has the bits of the first one, which may differ between ranks.
            gradient = torch.where(gradient.isnan(), torch.nan, gradient)
        yield f"gradient of {name}: {'none' if gradient is None else described(gradient)}"
