"""Shards of many sampler cases as one list of integers: its writer (rank) and its reader (controller)."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.errors import EvidenceError
from ddp_invariants.records.indices import Indices, array_of


class Dealing(NamedTuple):
    """The answer to one case.

    Attributes:
        epochs: By epoch and rank, the indices.
        lengths: By rank, the sampler's `len` in indices; -1 without one.
    """

    epochs: list[list[Sequence[int]]]
    lengths: list[int]


REFUSED = -2
"""Number in place of a case's first count of indices, if the sampler raised."""


def in_one_row(dealings: Iterable[Dealing | None]) -> list[int]:
    """Return all numbers of some answers: the lengths, then each shard after its number of indices."""
    row = list[int]()
    for dealing in dealings:
        if dealing is None:
            row.append(REFUSED)
            continue
        row += dealing.lengths
        for shards in dealing.epochs:
            for shard in shards:
                row.append(len(shard))
                row += shard
    return row


def from_one_row(cases: Iterable[ShardCase], row: Any) -> list[Dealing | None]:
    """Return the answers to some cases; None for each that the sampler raised on.

    Raises:
        EvidenceError: The row is of another form.
    """
    if not isinstance(row, list | Indices):
        raise EvidenceError("a rank sent no row of shards")
    numbers = array_of(row)
    dealings, start = list[Dealing | None](), 0
    try:
        for case in cases:
            if numbers[start] == REFUSED:
                dealings.append(None)
                start += 1
                continue
            lengths = numbers[start : start + case.world_size].tolist()
            start += case.world_size
            epochs = list[list[Sequence[int]]]()
            for _ in case.epochs:
                shards, start = _shards(case.world_size, numbers, start)
                epochs.append(shards)
            dealings.append(Dealing(epochs, lengths))
    except IndexError as error:
        raise EvidenceError("a rank sent too few shards") from error
    return dealings


def _shards(
    ranks: int, numbers: np.ndarray[Any, np.dtype[np.int64]], start: int
) -> tuple[list[Sequence[int]], int]:
    shards = list[Sequence[int]]()
    for _ in range(ranks):
        count = int(numbers[start])
        shards.append(Indices(numbers[start + 1 : start + 1 + count]))
        start += 1 + count
    return shards, start
