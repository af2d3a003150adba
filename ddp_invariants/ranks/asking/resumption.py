"""A state that one sampler saves and another one loads, in the last epoch of a case."""

from typing import Any, NamedTuple

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.rank_sampler import RankSampler


class Saved(NamedTuple):
    """A saved state.

    Attributes:
        taken: The indices that the sampler had yielded.
        state: The state.
        rest: The indices that it yielded then; not empty.
    """

    taken: list[int]
    state: Any
    rest: list[int]


class Resumption:
    """The samplers of one rank that save and load.

    Args:
        case: The case.
        make: The sampler under test.
        rank: The rank.

    Attributes:
        epoch: The last epoch of the case.
        possible: False if these samplers save no state, or if all ranks must ask them together.
    """

    def __init__(self, case: ShardCase, make: SamplerMaker, rank: int) -> None:
        self._case, self._make, self._rank = case, make, rank
        known = in_last_epoch(case, make, rank)
        self._in_batches = known.in_batches
        self.epoch = case.epochs[-1]
        self.possible = known.saves and not make.scatters

    def new(self) -> RankSampler:
        """Return a new sampler, whose epoch is not set."""
        return RankSampler(self._case, self._make, self._rank, in_batches=self._in_batches)

    def begun(self) -> RankSampler:
        """Return a new sampler, set to the last epoch."""
        sampler = self.new()
        sampler.set_epoch(self.epoch)
        return sampler

    def saved(
        self, sampler: RankSampler, *, at_start: bool = False, keep: bool = False
    ) -> Saved | None:
        """Iterate a sampler, and save its state on the way.

        Args:
            sampler: The sampler, set to the last epoch.
            at_start: True to save before the first batch; False to save after the case's number of
                batches.
            keep: True for the state itself, as a program keeps it in memory.

        Returns:
            The state; None if nothing was left to yield, since such a state may belong to the next
            epoch.
        """
        batches = 0 if at_start else self._case.saved_after or 1
        saved = Saved(*sampler.saved(batches, keep=keep))
        return saved if saved.rest else None

    def goes_on(self, saved: Saved | None, *samplers: RankSampler) -> Asked | None:
        """Load a state into samplers in turn, each of which must yield the rest of the epoch."""
        if saved is None:
            return None
        got = [saved.taken]
        for sampler in samplers:
            sampler.load(saved.state, self.epoch)
            got.append(sampler.indices())
        return Asked(got, [saved.taken, *[saved.rest] * len(samplers)])
