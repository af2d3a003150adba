"""Random numbers: those of layers are noted and given to the twin, those of the program noted."""

import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.layers.dropout import Dropout, NotedDropout
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.ranks.training.recorder import Record
from ddp_invariants.ranks.training.setup import Setup

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper

_NUMBERS = 2
"""Numbers that a program draws at once: together they never repeat by chance."""


@effect(lambda case: bool(case.draws))
class Draws(Effect):
    """The random numbers that layers draw in forwards."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._noticed: list[tuple[int, Tensor]] = []
        self._drawn: dict[int, list[Tensor] | None] = {}
        self._state = torch.get_rng_state()

    def on_replica(self, replica: Replica) -> None:
        """Notice every number that a forward of the replica draws."""
        for place, layer in enumerate(self._drawing(replica)):
            layer.at_draw = partial(self._notice, place)

    def _drawing(self, replica: Replica) -> list[NotedDropout]:
        """Return the layers of a replica that draw in the case's forwards."""
        layers = zip(self.case.model.draws, replica.drawing, strict=True)
        return [layer for index, layer in layers if index in self.case.draws]

    def _notice(self, place: int, factors: Tensor) -> None:
        self._noticed.append((place, factors))

    def before_forward(self) -> None:
        """Forget numbers drawn before, and keep the state of the default generator."""
        self._noticed = []
        self._state = torch.get_rng_state()

    def after_forward(self, record: Record, moment: str, *numbers: int) -> None:
        """Note the numbers drawn, or nothing unless each layer drew exactly once."""
        layers = self.case.draws
        noticed, self._noticed = self._noticed, []
        factors: list[Tensor] | None = None
        if [place for place, _ in noticed] == list(range(len(layers))):
            # After a transformation (torch.func) the tensors made inside cannot be read.
            with suppress(RuntimeError):
                factors = [
                    torch.from_numpy(tensor.numpy(force=True).copy()) for _, tensor in noticed
                ]
        kept = [None] * len(layers) if factors is None else [f.to(torch.uint8) for f in factors]
        names = [self.case.model.path(index) for index in layers]
        if moment == "drawn" and factors is not None and self._is_replayable(factors):
            replayed = record.facts.setdefault("replayed", [])
            replayed.append([numbers[0], self._replayed(factors)])
        for number in numbers:
            if moment == "drawn":
                self._drawn[number] = factors
            record.tensors(moment, number, zip(names, kept, strict=True))

    def _is_replayable(self, factors: list[Tensor]) -> bool:
        """Return whether the default generator of torch must give the factors once more.

        A device has another generator, and so has code that is compiled. A layer in evaluation
        draws nothing.
        """
        compiled = "torch._dynamo.utils" in sys.modules and bool(
            sys.modules["torch._dynamo.utils"].counters["frames"]
        )
        evaluated = any(bool((each == 1).all()) for each in factors)
        return not (self.setup.rank_device.on_device or compiled or evaluated)

    def _replayed(self, factors: list[Tensor]) -> bool:
        """Return whether the generator gives the factors from its state at the program's call."""
        generator = torch.Generator()
        generator.set_state(self._state)
        return all(each.equal(Dropout.draw(each.shape, each.device, generator)) for each in factors)

    def repeat(self, replica: Replica, number: int, inputs: Tensor) -> bool:
        """Have a replica's next forward draw the numbers of a micro-step.

        Return False if they are not known for just these samples: a wrapper may give its module
        more samples than the program gave the wrapper, to fill a batch up.
        """
        drawn = self._drawn[number]
        if drawn is None or any(len(factors) != len(inputs) for factors in drawn):
            return False
        for layer, factors in zip(self._drawing(replica), drawn, strict=True):
            layer.given = factors
        return True


@effect(lambda _: True)
class ProgramDraws(Effect):
    """Random numbers that the program draws before each step, as it does to augment its data."""

    def before_batch(self, stepper: "Stepper", indices: Any) -> None:
        """Draw before a step."""
        del indices
        _draw(stepper.record, stepper.position.step)

    def end(self, record: Record) -> None:
        """Draw after the last step."""
        _draw(record, self.case.steps)


def _draw(record: Record, step: int) -> None:
    # An exported script draws as many before each step.
    numbers = torch.empty(_NUMBERS, dtype=torch.int64, device="cpu").random_().tolist()
    record.facts.setdefault("program_draws", []).append((step, numbers))
