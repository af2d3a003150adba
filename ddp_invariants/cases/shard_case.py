"""The case of a sampler: everything that fixes the questions to it, and nothing else.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from math import factorial, perm
from typing import Literal

from ddp_invariants.cases.fields import Strict, between, require
from ddp_invariants.cases.program import Data
from ddp_invariants.cases.shard_situation import ShardSituation

CHANCE_FREE = 13
"""Smallest dataset length at which two random permutations are equal with a chance below 1e-9.

The chance is 1 / 13! = 1.6e-10, if all samples are dealt.
"""
ENOUGH = 30
"""Equal pairs of epochs or seeds in a row that exclude chance: 2**-30 is below 1e-9."""


@dataclass(frozen=True)
class ShardCase(Strict):
    """One sampler asked for the shards of every rank over a few epochs.

    Attributes:
        world_size: Ranks the dataset is dealt to, W.
        data: Dataset length, per-rank batch size and the sampler's arguments.
        epochs: Epochs asked for, in this order, by `set_epoch`.
        loader: True if a torch DataLoader also runs over the sampler, to count its batches.
        saved_after: Batches each rank takes of the last epoch before its sampler's state is saved,
            to be loaded into another one; 0 for a state saved before the first index; None where
            nothing is saved.
        resumed_by: World size of the ranks that load it, rank 0's state on all of them; None for
            the rank that saved it alone.
        workers: Workers of a DataLoader that iterate the last epoch, each a copy of its rank's
            sampler; 0 for none.
        seed_step: The distance of another seed, whose order is compared.
        situations: Other ways in which a program asks the sampler, besides the plain one.
    """

    world_size: int = 2
    data: Data = Data()
    epochs: tuple[int, ...] = (0,)
    loader: bool = False
    saved_after: int | None = None
    resumed_by: int | None = None
    workers: int = 0
    seed_step: int = 1
    situations: tuple[ShardSituation, ...] = ()
    kind: Literal["shard"] = "shard"

    def __post_init__(self) -> None:
        between("world_size", self.world_size, 1, 4096)
        require(len(self.epochs) > 0, "epochs", self.epochs, "at least one epoch")
        for index, epoch in enumerate(self.epochs):
            between(f"epochs[{index}]", epoch, 0, 2**31)
        between("workers", self.workers, 0, 16)
        between("seed_step", self.seed_step, 1, 2**32)
        kinds = [situation.kind for situation in self.situations]
        require(len(kinds) == len(set(kinds)), "situations", kinds, "each kind once")
        for situation in self.situations:
            situation.check(self)
        require(
            self.resumed_by is None or self.saved_after is not None,
            "resumed_by",
            self.resumed_by,
            "null where nothing is saved",
        )
        between("resumed_by", self.resumed_by or 1, 1, 4096)
        require(
            self.saved_after is None or self.saved_after >= 0,
            "saved_after",
            self.saved_after,
            "null or batches from 0",
        )

    @property
    def other_seed(self) -> int:
        """Another seed of the same sign; a few seeds after it are within 64 bits, too."""
        seed, step = self.data.seed, self.seed_step
        return seed - step if seed < 0 or seed > 2**62 else seed + step


def may_repeat(samples: int, shards: list[list[int]]) -> bool:
    """Return whether two random orders may give the same shards by a chance above 1e-9.

    A sampler that drops the tail deals only a part of the dataset, or nothing of a short one.

    Args:
        samples: The dataset length N.
        shards: The indices that each rank got.
    """
    dealt = min(sum(map(len, shards)), samples)
    return samples < CHANCE_FREE or perm(samples, min(dealt, CHANCE_FREE)) < perm(CHANCE_FREE)


def fewest_orders(case: ShardCase) -> int:
    """Return the fewest orders of a case's dataset that any usual way to shuffle chooses from.

    Some samplers shuffle whole batches, or the samples of each rank's fixed shard, alike on all
    ranks. The result is at most the number of orders of `CHANCE_FREE` samples.
    """
    data = case.data
    return factorial(min(data.samples // case.world_size // data.batch_size, CHANCE_FREE))
