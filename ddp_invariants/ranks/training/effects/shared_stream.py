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
    """Generators of Python and numpy with one seed on all ranks, and the numbers drawn from them."""

    def begin(self, stepper: "Stepper") -> None:
        """Seed the generators."""
        del stepper
        random.seed(self.case.seed)
        np.random.seed(self.case.seed % 2**32)  # noqa: NPY002 - the generator that programs share

    def before_batch(self, stepper: "Stepper", indices: Any) -> None:
        """Draw before a step."""
        del indices
        _draw(stepper.record, stepper.position.step)

    def end(self, record: Record) -> None:
        """Draw after the last step."""
        _draw(record, self.case.steps)


def _draw(record: Record, step: int) -> None:
    numbers = [random.getrandbits(63), int(np.random.randint(2**63 - 1))]  # noqa: NPY002 - as above
    record.facts.setdefault("shared_draws", []).append((step, numbers))
