"""A stream of random numbers that all ranks share (`situations.shared_stream`)."""

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.recorder import Record
from ddp_invariants.situations import shared_stream

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.get(shared_stream.SharedStream) is not None)
class SharedStream(Effect):
    """Generators of Python and numpy with one seed on all ranks, and the numbers drawn from them.

    Each draw seeds the generators anew. So a step that one rank makes twice, after an exception, is
    no difference in the next one.
    """

    drawn = -1
    """The last step before which numbers were drawn."""

    def begin(self, stepper: "Stepper") -> None:
        """Seed the generators."""
        del stepper
        self._seed(0)

    def before_batch(self, stepper: "Stepper", indices: Any) -> None:
        """Draw before a step."""
        del indices
        self._draw(stepper.record, stepper.position.step)

    def end(self, record: Record) -> None:
        """Draw after the last step, if the run got there."""
        if self.drawn == self.case.steps - 1:
            self._draw(record, self.case.steps)

    def _draw(self, record: Record, step: int) -> None:
        numbers = [random.getrandbits(63), int(np.random.randint(2**63 - 1))]  # noqa: NPY002 - as below
        record.facts.setdefault("shared_draws", []).append((step, numbers))
        self._seed(step + 1)
        self.drawn = step

    def _seed(self, step: int) -> None:
        random.seed(self.case.seed + step)
        np.random.seed((self.case.seed + step) % 2**32)  # noqa: NPY002 - programs share this generator
