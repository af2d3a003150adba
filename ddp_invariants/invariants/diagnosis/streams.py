"""Why random numbers repeat, by where they do: between ranks, from step to step, or from something on."""

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
    """Two forwards that are to draw other numbers: of two ranks at one micro-step, or of one rank at two.

    Attributes:
        rank, micro: Of one, which is the first.
        other_rank, other_micro: Of the other.
        one, other: What they drew, in equal numbers.
    """

    rank: int
    micro: int
    other_rank: int
    other_micro: int
    one: Tensors
    other: Tensors

    @property
    def of_two_ranks(self) -> bool:
        """Whether it is of two ranks, not of two micro-steps."""
        return self.micro == self.other_micro

    @property
    def bits(self) -> int:
        """How many random bits each of the two drew."""
        return self.one.layout.starts[-1]

    @property
    def alike(self) -> bool:
        """Whether they drew the same."""
        return self.one.bits == self.other.bits


@dataclass(frozen=True)
class _Guess:
    """A cause, and which forwards draw the same by it.

    Attributes:
        cause: The cause.
        since: The micro-step from which on all ranks draw the same; None where they never do.
        every: After how many micro-steps a rank draws the same again; None for never.
    """

    cause: Cause
    since: int | None = 0
    every: int | None = None

    def repeats(self, pair: Pair) -> bool:
        """Whether two forwards draw the same."""
        if pair.of_two_ranks:
            return self.since is not None and pair.micro >= self.since
        return self.every is not None and (pair.other_micro - pair.micro) % self.every == 0


def of_the_generator(view: EvidenceView, failure: Failure, compared: list[Pair]) -> Failure:
    """A breach with what predicts all that repeats, and nothing else."""
    return caused(
        failure,
        [
            guess.cause
            for guess in _guesses(view.case, compared)
            if all(pair.alike == guess.repeats(pair) for pair in compared)
        ],
    )


def _guesses(case: TrainingCase, compared: list[Pair]) -> Iterator[_Guess]:
    first = next((pair.one for pair in compared if (pair.rank, pair.micro) == (0, 0)), None)
    of_rank_0 = first is not None and _is_of(first, numbers.seed(case, case.outside))
    yield _Guess(
        Cause("state of rank 0", "all ranks were given the state of rank 0's generator")
        if of_rank_0
        else Cause("seeded alike", "every rank is seeded alike")
    )
    # Where a step is one micro-step, in every step says it.
    for every, what in (
        (case.accumulation, "step"),
        *([(1, "forward")] if case.accumulation > 1 else []),
    ):
        yield _Guess(
            Cause(
                f"seeded alike in every {what}",
                f"every rank is seeded alike, and anew in every {what}",
            ),
            0,
            every,
        )
        yield _Guess(
            Cause(f"seeded anew in every {what}", f"each rank is seeded anew in every {what}"),
            None,
            every,
        )
    for one in case.between_steps:
        yield _Guess(
            Cause(
                f"seeded alike after {one.kind}",
                f"every rank is seeded alike from step {one.step} on, after this: {one.kind}",
            ),
            one.step * case.accumulation,
        )


def _is_of(drawn: Tensors, seed: int) -> bool:
    """Whether these are the first numbers of torch's default generator after that seed.

    It is the Mersenne Twister of numpy's RandomState, of which torch.rand takes the last 24 bits;
    the first of these says whether a number is below a half.
    """
    words = np.random.RandomState(seed % 2**32).randint(
        0, 2**32, drawn.layout.starts[-1], np.uint32
    )
    below_P = (words >> np.uint32(23)) & 1 == 0
    return bool((2 * below_P == drawn.values_P).all())
