"""The split of a long run into parts that share no case: `--shard 3/10` is the third of ten.

A case is fixed by its fields, and its seed is one of them. The remainder of the seed, divided by the
number of parts, names the part that may draw the case. So no two parts draw the same case, whatever
their random draws are. The command `faults` splits no cases: each part makes some of the searches.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.errors import MergeError, NamingError

MOST = 1000
"""The largest number of parts."""
_SMALL = 2**15
"""Seeds of a sampler below this limit are often drawn, so they must stay different."""
_LARGE = 2**62
"""No seed of a sampler from this limit on is increased: 64 bits must hold it."""
_FORM = re.compile(r"([1-9]\d{0,3})/([1-9]\d{0,3})", re.ASCII)

Item = TypeVar("Item")


@dataclass(frozen=True)
class Split:
    """One part of a run that is split.

    Attributes:
        number: Its number, from 1.
        count: The number of parts; 1 for a run that is not split.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the part that a text such as `3/10` names.

        Raises:
            NamingError: The text names none.
        """
        form = _FORM.fullmatch(text)
        split = cls(*map(int, form.groups())) if form else None
        if split is None or not split.number <= split.count <= MOST:
            raise NamingError(
                f"--shard {text[:24]}: expected I/N, the I-th of N parts, such as 3/10; N is at "
                f"most {MOST}"
            )
        return split

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def is_whole(self) -> bool:
        """True if the run is not split."""
        return self.count == 1

    def cases(self, total: int) -> int:
        """Return how many of a property's cases this part draws.

        Raises:
            NamingError: There are fewer cases than parts.
        """
        if total < self.count:
            raise NamingError(
                f"--shard {self}: {total} cases per property cannot be split into {self.count} parts"
            )
        return len(range(self.number - 1, total, self.count))

    def deal(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return this part's items of a list that all parts have."""
        return items[self.number - 1 :: self.count]

    def owns(self, case: Case) -> bool:
        """Return whether this part may draw a case."""
        return abs(_seed(case)) % self.count == self.number - 1

    def own(self, case: Case) -> Case:
        """Return a case with a seed with which this part may draw the case."""
        if self.is_whole:
            return case
        if isinstance(case, TrainingCase):
            return replace(case, seed=self._below(case.seed))
        return self.own_dealing(case)

    def own_dealing(self, case: ShardCase) -> ShardCase:
        """Return a sampler's case with such a seed, which is large or negative only if it was."""
        if self.is_whole:
            return case
        seed = case.data.seed
        size = abs(seed)
        if size < _SMALL:
            size = size * self.count + self.number - 1
        elif size.bit_count() == 1 and size < _LARGE:  # A limit, at which a seed becomes large.
            size += (self.number - 1 - size) % self.count
        else:
            size = self._below(size)
        return replace(case, data=replace(case.data, seed=-size if seed < 0 else size))

    def _below(self, seed: int) -> int:
        """Return the largest seed of this part that is no larger, or else its smallest seed."""
        return max(seed - (seed - self.number + 1) % self.count, self.number - 1)


WHOLE = Split()
"""A run that is not split."""


def _seed(case: Case) -> int:
    return case.seed if isinstance(case, TrainingCase) else case.data.seed


def in_order(shards: Sequence[str], items: Sequence[Item]) -> list[Item]:
    """Return the results of all parts of a run in the order of the parts' numbers.

    Args:
        shards: The part that each result is of, as "3/10".
        items: The results, in any order.

    Raises:
        MergeError: A part is missing or repeated, or a result is of no part of such a run.
    """
    try:
        splits = [Split.read(shard) for shard in shards]
    except NamingError:
        raise MergeError(
            "a file is of a run that was not split: it was made without --shard"
        ) from None
    counts = {split.count for split in splits}
    if len(counts) != 1:
        raise MergeError(
            f"the files are of different runs: of {' and of '.join(map(str, sorted(counts)))} shards"
        )
    numbered: dict[int, Item] = {}
    for split, item in zip(splits, items, strict=True):
        if split.number in numbered:
            raise MergeError(f"shard {split} is there twice")
        numbered[split.number] = item
    missing = [number for number in range(1, max(counts) + 1) if number not in numbered]
    if missing:
        listed = ", ".join(map(str, missing[:12])) + (" …" if len(missing) > 12 else "")
        raise MergeError(f"{len(missing)} of {max(counts)} shards are missing: {listed}")
    return [numbered[number] for number in sorted(numbered)]
