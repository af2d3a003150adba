"""Causes of repeated random numbers: repeats between ranks, between steps, or from an event on."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ddp_invariants.cases import numbers
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import Tensors
from ddp_invariants.records.verdict import Cause, Failure


@dataclass(frozen=True)
class Pair:
    """Two forwards that must draw different numbers: of two ranks, or of two micro-steps of a rank.

    Attributes:
        rank, micro: The rank and micro-step of the first forward.
        other_rank, other_micro: The rank and micro-step of the second forward.
        first, second: The numbers that the first and the second forward drew; equally many.
    """

    rank: int
    micro: int
    other_rank: int
    other_micro: int
    first: Tensors
    second: Tensors

    @property
    def of_two_ranks(self) -> bool:
        """True for a pair of two ranks, False for a pair of two micro-steps."""
        return self.micro == self.other_micro

    @property
    def bits(self) -> int:
        """Number of random bits that each of the two forwards drew."""
        return self.first.layout.starts[-1]

    @property
    def alike(self) -> bool:
        """True if both forwards drew the same numbers."""
        return self.first.bits == self.second.bits


@dataclass(frozen=True)
class _Guess:
    """A cause, and the forwards that draw the same numbers under it.

    Attributes:
        cause: The cause.
        since: The micro-step from which on all ranks draw the same numbers; None for never.
        every: The number of micro-steps after which a rank repeats its numbers; None for never.
    """

    cause: Cause
    since: int | None = 0
    every: int | None = None

    def repeats(self, pair: Pair) -> bool:
        """Return whether two forwards draw the same numbers under this cause."""
        if pair.of_two_ranks:
            return self.since is not None and pair.micro >= self.since
        return self.every is not None and (pair.other_micro - pair.micro) % self.every == 0


def of_the_generator(view: EvidenceView, failure: Failure, compared: list[Pair]) -> Failure:
    """Add the causes that predict exactly the repeats that were seen."""
    return caused(
        failure,
        [
            guess.cause
            for guess in _guesses(view.case, compared)
            if all(pair.alike == guess.repeats(pair) for pair in compared)
        ],
    )


def _guesses(case: TrainingCase, compared: list[Pair]) -> Iterator[_Guess]:
    first = next((pair.first for pair in compared if (pair.rank, pair.micro) == (0, 0)), None)
    of_rank_0 = first is not None and _is_of(first, numbers.seed(case, case.outside))
    yield _Guess(
        Cause("state of rank 0", "all ranks were given the state of rank 0's generator")
        if of_rank_0
        else Cause("seeded alike", "every rank is seeded alike")
    )
    # If a step is one micro-step, "in every step" is enough.
    for every, unit in (
        (case.accumulation, "step"),
        *([(1, "forward")] if case.accumulation > 1 else []),
    ):
        yield _Guess(
            Cause(
                f"seeded alike in every {unit}",
                f"every rank is seeded alike, and anew in every {unit}",
            ),
            0,
            every,
        )
        yield _Guess(
            Cause(f"seeded anew in every {unit}", f"each rank is seeded anew in every {unit}"),
            None,
            every,
        )
    for action in case.between_steps:
        yield _Guess(
            Cause(
                f"seeded alike after {action.kind}",
                f"every rank is seeded alike from step {action.step} on, after this: {action.kind}",
            ),
            action.step * case.accumulation,
        )


def _is_of(drawn: Tensors, seed: int) -> bool:
    """Return whether these are the first numbers of torch's default generator after a seed.

    That generator is the Mersenne Twister of numpy's RandomState. PyTorch's rand takes the last 24
    bits of each word. The first of these bits says whether the number is below a half.
    """
    words = np.random.RandomState(seed % 2**32).randint(
        0, 2**32, drawn.layout.starts[-1], np.uint32
    )
    below_P = (words >> np.uint32(23)) & 1 == 0
    return bool((2 * below_P == drawn.values_P).all())
