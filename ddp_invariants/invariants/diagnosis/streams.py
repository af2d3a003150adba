"""Causes of repeated random numbers: repeats between ranks, between steps, or from an event on."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ddp_invariants.cases import numbers
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import PROGRAM_BITS
from ddp_invariants.records.verdict import Cause, Failure


class Numbers(NamedTuple):
    """The random numbers of one drawing: their content, and the random bits in it."""

    content: bytes
    bits: int


@dataclass(frozen=True)
class Pair:
    """Two drawings that must differ: of two ranks at the same place, or of one rank at two places.

    Attributes:
        rank, micro: The rank and the place of the first drawing: a micro-step for a forward, a step
            for the program.
        other_rank, other_micro: The rank and the place of the second drawing.
        first, second: The numbers of the two drawings; equally many bits.
    """

    rank: int
    micro: int
    other_rank: int
    other_micro: int
    first: Numbers
    second: Numbers

    @property
    def of_two_ranks(self) -> bool:
        """True for a pair of two ranks, False for a pair of two places."""
        return self.micro == self.other_micro

    @property
    def bits(self) -> int:
        """Number of random bits in each of the two drawings."""
        return self.first.bits

    @property
    def alike(self) -> bool:
        """True if both drawings gave the same numbers."""
        return self.first == self.second


@dataclass(frozen=True)
class _Guess:
    """A cause, and the drawings that give the same numbers under it.

    Attributes:
        cause: The cause.
        since: The place from which on all ranks draw the same numbers; None for never.
        every: The number of places after which a rank repeats its numbers; None for never.
        begins: The place from which on a rank repeats its numbers.
    """

    cause: Cause
    since: int | None = 0
    every: int | None = None
    begins: int = 0

    def repeats(self, pair: Pair) -> bool:
        """Return whether two drawings give the same numbers under this cause."""
        if pair.of_two_ranks:
            return self.since is not None and pair.micro >= self.since
        repeats = self.every is not None and (pair.other_micro - pair.micro) % self.every == 0
        return repeats and pair.micro >= self.begins


_ALIKE_IN_EVERY = {
    unit: Cause(
        f"seeded alike in every {unit}", f"every rank is seeded alike, and anew in every {unit}"
    )
    for unit in ("step", "forward")
}
_ANEW_IN_EVERY = {
    unit: Cause(f"seeded anew in every {unit}", f"each rank is seeded anew in every {unit}")
    for unit in ("step", "forward")
}


def of_forwards(view: EvidenceView, failure: Failure, compared: list[Pair]) -> Failure:
    """Add the causes that predict exactly the repeats among forwards that were seen."""
    return _caused(failure, compared, _of_forwards(view))


def of_the_program(view: EvidenceView, failure: Failure, compared: list[Pair]) -> Failure:
    """Add the causes that predict exactly the repeats among the program's own draws."""
    since = min((pair.micro for pair in compared if pair.alike and pair.of_two_ranks), default=0)
    return _caused(failure, compared, _of_the_program(view, since))


def _caused(failure: Failure, compared: list[Pair], guesses: Iterable[_Guess]) -> Failure:
    return caused(
        failure,
        [
            guess.cause
            for guess in guesses
            if all(pair.alike == guess.repeats(pair) for pair in compared)
        ],
    )


def _of_forwards(view: EvidenceView) -> Iterator[_Guess]:
    case = view.case
    yield _Guess(_of_the_start(view))
    # If a step is one micro-step, "in every step" is enough.
    for every, unit in (
        (case.accumulation, "step"),
        *([(1, "forward")] if case.accumulation > 1 else []),
    ):
        yield _Guess(_ALIKE_IN_EVERY[unit], 0, every)
        yield _Guess(_ANEW_IN_EVERY[unit], None, every)
    for action in case.between_steps:
        yield _Guess(
            Cause(
                f"seeded alike after {action.kind}",
                f"every rank is seeded alike from step {action.step} on, after this: {action.kind}",
            ),
            action.step * case.accumulation,
        )


def _of_the_program(view: EvidenceView, since: int) -> Iterator[_Guess]:
    """Yield the causes of repeats in what a program draws before steps: from one step on, or in each."""
    if since == 0:
        yield _Guess(_of_the_start(view))
    else:
        yield _Guess(
            Cause("seeded alike in a step", f"every rank is seeded alike in step {since - 1}"),
            since,
        )
    # The first step draws before the wrapper has seeded in any.
    yield _Guess(_ALIKE_IN_EVERY["step"], 1, 1, 1)
    yield _Guess(_ANEW_IN_EVERY["step"], None, 1, 1)


def _of_the_start(view: EvidenceView) -> Cause:
    """Return the cause of equal numbers from the start on."""
    case, draws = view.case, view.evidence.ranks[-1].program_draws
    if draws and draws[0].numbers == _drawn_after(
        numbers.seed(case, case.members[0]), len(draws[0].numbers)
    ):
        return Cause("state of rank 0", "all ranks were given the state of rank 0's generator")
    return Cause("seeded alike", "every rank is seeded alike")


def _drawn_after(seed: int, count: int) -> list[int]:
    """Return the first numbers that a program draws from torch's default generator after a seed.

    That generator is the Mersenne Twister of numpy's RandomState. Two of its words make a number.
    """
    words = np.random.RandomState(seed % 2**32).randint(0, 2**32, (count, 2), np.uint32)
    return [(int(high) << 32 | int(low)) % 2**PROGRAM_BITS for high, low in words]
