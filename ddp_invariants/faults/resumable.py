"""Samplers that can be saved in the middle of an epoch and resumed.

Words: N dataset length, W world size, L indices per rank.
"""

import random
from collections.abc import Iterator, Sized
from math import ceil
from typing import Any, ClassVar


class Slices:
    """Right: contiguous slices of a permutation; the state holds the epoch and the number of
    indices taken.
    """

    declares: ClassVar[dict[str, str]] = {"layout": "contiguous"}

    def __init__(
        self,
        dataset: Sized,
        world_size: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        batch_size: int = 1,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        if not len(dataset):
            raise ValueError("an empty dataset")
        self.samples, self.world_size, self.rank, self.batch_size = (
            len(dataset),
            world_size,
            rank,
            batch_size,
        )
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0
        self.taken, self.start = 0, 0

    def __len__(self) -> int:
        return ceil(self.samples / self.world_size)

    def mine(self) -> list[int]:
        """Return this rank's slice of the epoch's order, which restarts if W does not divide N."""
        order = list(range(self.samples))
        if self.shuffle:
            random.Random(f"{self.seed}/{self.epoch}").shuffle(order)
        return [
            order[place % self.samples]
            for place in range(self.rank * len(self), (self.rank + 1) * len(self))
        ]

    def __iter__(self) -> Iterator[int]:
        self.taken, self.start = self.start, 0
        for index in self.mine()[self.taken :]:
            # Counted before the yield: a generator pauses there while a state is saved.
            self.taken += 1
            yield index
        self.taken = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the next iteration's order."""
        self.epoch, self.taken, self.start = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's epoch and position."""
        return {"epoch": self.epoch, "taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state at the next iteration."""
        self.epoch, self.start = state["epoch"], state["taken"]
        self.taken = self.start


class KeepsTheRest:
    """Right: strided shards; the state holds the epoch and the list of the remaining indices."""

    def __init__(
        self, dataset: Sized, num_replicas: int, rank: int, shuffle: bool = True, seed: int = 0
    ) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} of {num_replicas}")
        self.samples, self.world_size, self.rank = len(dataset), num_replicas, rank
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0
        self.left: list[int] | None = None
        self.resumes = False

    def __len__(self) -> int:
        return ceil(self.samples / self.world_size)

    def mine(self) -> list[int]:
        """Return every W-th index of the epoch's order."""
        order = list(range(self.samples))
        if self.shuffle:
            random.Random(f"{self.seed}/{self.epoch}").shuffle(order)
        return [
            order[place % self.samples]
            for place in range(self.rank, self.world_size * len(self), self.world_size)
        ]

    def __iter__(self) -> Iterator[int]:
        # A list of its own, so that a second live iterator does not disturb the first.
        left = self.left if self.resumes and self.left is not None else self.mine()
        self.left, self.resumes = left, False
        while left:
            yield left.pop(0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the next iteration's order."""
        self.epoch, self.resumes = epoch, False

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the remaining indices."""
        return {"epoch": self.epoch, "left": self.mine() if self.left is None else self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the saved indices at the next iteration."""
        self.epoch, self.left, self.resumes = state["epoch"], list(state["left"]), True


class PlaceAlone(Slices):
    """Right: the state is the position only; set_epoch must be called before it is loaded."""

    declares: ClassVar[dict[str, str]] = {"layout": "contiguous", "saves": "place"}

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken = self.start = state["taken"]


class StartsTheLastOver(Slices):
    """A state saved after the last index counts as one without progress, so the epoch starts over
    (no public incident found).

    SHARD-9: starts the same epoch over.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.start == len(self):
            self.taken = self.start = 0


class ContinuesAfterTheEnd(Slices):
    """The count restarts at 1 at the end of an epoch, so a state saved then skips the first index
    (no public incident found).

    SHARD-9: in the middle of one.
    """

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.taken = 1


class CountsWithTheEpoch(Slices):
    """set_epoch counts the first index as consumed, so a state saved before it skips it
    (no public incident found).

    SHARD-9: skipped.
    """

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.taken = 1


class CountsFromTheOutset(Slices):
    """Before the first call of set_epoch, a state counts the first index as consumed
    (no public incident found).

    SHARD-4: the ranks' indices do not fit together.
    """

    told = False

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.told = True

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken": self.taken if self.told else max(self.taken, 1)}


class SkipsUntilTheNextEpoch(Slices):
    """A loaded position is cleared by set_epoch alone, so each iteration before that skips it
    (no public incident found).

    SHARD-9: skipped in every later iteration.
    """

    def __iter__(self) -> Iterator[int]:
        self.taken = self.start
        for index in self.mine()[self.taken :]:
            self.taken += 1
            yield index
        self.taken = 0


class LenStaysShort(Slices):
    """After a resumption len is that of the resumed epoch's rest, in later epochs, too
    (no public incident found).

    SHARD-9: missing from every later length.
    """

    skipped = 0

    def __len__(self) -> int:
        return super().__len__() - self.skipped

    def mine(self) -> list[int]:
        self.skipped, skipped = 0, self.skipped
        try:
            return super().mine()
        finally:
            self.skipped = skipped

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.skipped = state["taken"]


class Replays(Slices):
    """Only the epoch is restored, so a resumed epoch starts over (huggingface/transformers#40691).

    SHARD-9: the rest starts from the beginning.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]


class ForgetsAll(Slices):
    """The loaded state is kept, but nothing reads it (PrimeIntellect-ai/prime-rl#832).

    SHARD-9: from the beginning.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state


class ForgetsTheEpoch(Slices):
    """The position is restored but not the epoch, so the rest has the order of the first epoch
    (modelscope/ms-swift#10050).

    SHARD-9: the saved epoch is lost.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken = self.start = state["taken"]


class ForgetsTheSeed(Slices):
    """The seed is read from the state, which holds none, so the seed becomes the default
    (huggingface/accelerate#4195).

    SHARD-9: the state that fixes the order is lost.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.seed = state.get("seed", 0)


class SavesTheNextEpoch(Slices):
    """The epoch is counted up when it starts and then saved, so the rest has the next epoch's order
    (huggingface/accelerate#4233).

    SHARD-9: of the next epoch's order.
    """

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch + 1, "taken": self.taken}


class SavesTheWorldsCount(Slices):
    """The state holds the count of all ranks, and loading takes it for the count of one rank
    (no public incident found).

    SHARD-9: multiplied by the world size.
    """

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken": self.taken * self.world_size}


class DividesByTheWorld(Slices):
    """The state holds the count of one rank, and loading takes it for the count of all ranks
    (no public incident found).

    SHARD-9: one rank's count is taken for that of all ranks.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "taken": state["taken"] // self.world_size})


class CountsBatches(Slices):
    """The state counts batches, and loading skips that number of indices
    (no public incident found).

    SHARD-9: batches are counted as indices.
    """

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken": self.taken // self.batch_size}


class SkipsByBatches(Slices):
    """The state counts indices, and loading skips that number of batches
    (no public incident found).

    SHARD-9: indices are counted as batches.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "taken": state["taken"] * self.batch_size})


class CountsWhatIsFetched(Slices):
    """The state counts a batch that was fetched ahead and not consumed, so that batch is lost
    (no public incident found).

    SHARD-9: read ahead counts as consumed.
    """

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken": min(self.taken + self.batch_size, len(self))}


class CountsAfterTheYield(Slices):
    """An index is counted only when the next one is requested, so the last one is yielded again
    (no public incident found).

    SHARD-9: the last index consumed is yielded again.
    """

    def __iter__(self) -> Iterator[int]:
        self.taken, self.start = self.start, 0
        for index in self.mine()[self.taken :]:
            yield index
            self.taken += 1
        self.taken = 0


class CountsTwice(Slices):
    """Both the sampler and its caller skip the consumed indices (no public incident found).

    SHARD-9: counted twice.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "taken": 2 * state["taken"]})


class CountsAnew(Slices):
    """The count restarts at 0 after a resumption, so a second resumption goes back
    (KempnerInstitute/KempnerForge#57).

    SHARD-9: the count starts anew.
    """

    def __iter__(self) -> Iterator[int]:
        start, self.start, self.taken = self.start, 0, 0
        for index in self.mine()[start:]:
            self.taken += 1
            yield index
        self.taken = 0


class CountsWhatWasLeft(Slices):
    """The count is not cleared when an iteration begins, so an iteration that was left in the middle
    counts, too (no public incident found).

    SHARD-9: a state saved after an iteration was left in the middle.
    """

    def __iter__(self) -> Iterator[int]:
        start, self.start = self.start, 0
        for index in self.mine()[start:]:
            self.taken += 1
            yield index
        self.taken = 0


class StateGoesOn(Slices):
    """The state is the sampler's own dictionary, which goes on counting (no public incident found).

    SHARD-9: a saved state that is kept in memory changes.
    """

    state: dict[str, Any]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("epoch", "taken"):
            vars(self).setdefault("state", {})[name] = value

    def state_dict(self) -> dict[str, Any]:
        return self.state


class CountsInTheLoadedState(Slices):
    """The loaded state itself goes on counting, so the next sampler that loads it begins later
    (no public incident found).

    SHARD-9: a saved state that is kept in memory changes.
    """

    loaded: dict[str, Any] | None = None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.loaded = state

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "taken" and self.loaded is not None:
            self.loaded["taken"] = value


class SavesAFraction(Slices):
    """The position is saved as a part of the epoch, and rounded down when it is loaded
    (no public incident found).

    SHARD-9.
    """

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "done": self.taken / len(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.start = state["epoch"], int(state["done"] * len(self))
        self.taken = self.start


class SkipsInEveryEpoch(SkipsUntilTheNextEpoch):
    """Indices that were to be skipped once are skipped in every later epoch
    (huggingface/accelerate#1451).

    SHARD-9: the skip stays.
    """

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.taken = epoch, 0


class StaysInTheEpoch(Slices):
    """After a state was loaded, set_epoch has no effect, so the resumed epoch comes twice
    (huggingface/accelerate#4233).

    SHARD-9: it is the resumed epoch again.
    """

    loaded = False

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.loaded = True

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(self.epoch if self.loaded else epoch)


class DrainsWhatIsLeft(KeepsTheRest):
    """Saving moves the remaining indices into the state, so the running iteration has none left
    (no public incident found).

    SHARD-9: saving the state changes the indices.
    """

    def state_dict(self) -> dict[str, Any]:
        state = {"epoch": self.epoch, "left": list(self.left or [])}
        (self.left or []).clear()
        return state


class SortsTheRest(KeepsTheRest):
    """The remaining indices are saved as a set, which holds no order (no public incident found).

    SHARD-9: the rest in another order.
    """

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "left": sorted(super().state_dict()["left"])}


class RaisesOnALaterEpoch(Slices):
    """Loading raises for the state of any epoch but the first (no public incident found).

    SHARD-9: saving or loading a state raises.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["epoch"]:
            raise KeyError("generator")
        super().load_state_dict(state)


class Elastic:
    """Right: strided shards of the remaining order; the state counts the indices of all ranks
    together.
    """

    declares: ClassVar[dict[str, Any]] = {"supports": ("elastic",)}

    def __init__(
        self, dataset: Sized, num_replicas: int, rank: int, shuffle: bool = True, seed: int = 0
    ) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} of {num_replicas}")
        if not len(dataset):
            raise ValueError("an empty dataset")
        self.samples, self.world_size, self.rank = len(dataset), num_replicas, rank
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0
        self.start, self.resumed, self.taken = 0, 0, 0

    def __len__(self) -> int:
        return ceil((self.samples - self.resumed) / self.world_size)

    def __iter__(self) -> Iterator[int]:
        self.start, self.resumed, self.taken = self.resumed, 0, 0
        order = list(range(self.samples))
        if self.shuffle:
            random.Random(f"{self.seed}/{self.epoch}").shuffle(order)
        end = self.start + self.world_size * ceil((self.samples - self.start) / self.world_size)
        for place in range(self.start + self.rank, end, self.world_size):
            self.taken += 1
            yield order[place % self.samples]
        self.start, self.taken = 0, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the next iteration's order."""
        self.epoch, self.start, self.resumed, self.taken = epoch, 0, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the position of all ranks together."""
        return {"epoch": self.epoch, "dealt": self.start + self.taken * self.world_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state at the next iteration."""
        self.epoch, self.resumed = state["epoch"], state["dealt"]
        self.start, self.taken = self.resumed, 0  # A state may be saved before the next iteration.


class CountsForTheNewWorld(Elastic):
    """The state holds the count of one rank, and loading multiplies it by the new world size
    (huggingface/transformers#40245).

    SHARD-9: are counted for the.
    """

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken": self.start // self.world_size + self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        dealt = state["taken"] * self.world_size
        super().load_state_dict({"epoch": state["epoch"], "dealt": dealt})


class StaysInTheOldWorld(Elastic):
    """The world size is read from the state, so additional ranks start beyond it
    (similar: Lightning-AI/litData#878).

    SHARD-9.
    """

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "world_size": self.world_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.world_size = state["world_size"]


class CountsInWholeRounds(Elastic):
    """The indices of all ranks are counted in whole rounds of the present ranks, which need not divide
    those that other ranks took before (no public incident found).

    SHARD-9: saves after a resumption.
    """

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        rounds = ceil(state["dealt"] / self.world_size)
        return {**state, "dealt": rounds * self.world_size}


class IgnoresAZero(Slices):
    """A state of the start of an epoch leaves a sampler in use where it is
    (no public incident found).

    SHARD-9: loaded into a sampler in use.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "taken": state["taken"] or self.taken})


class EndsBeforeThePadding(Slices):
    """The saved count is at most that of an epoch without padding, so a state of the end of an epoch
    has an index left (no public incident found).

    SHARD-9: saved at the end of an epoch.
    """

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "taken": min(state["taken"], self.samples // self.world_size)}


class SavesItsOwnCount(Slices):
    """A loaded position waits for the next iteration, and a state that is saved before it says that
    no index was taken (torchdata 0.11.0; meta-pytorch/data#1515).

    SHARD-9: saved as soon as one is loaded.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.taken = 0


class OrderOfTheLastIteration(Slices):
    """An order is computed once for each call of set_epoch, so a state that is loaded into a sampler in
    use continues in the order that the sampler iterated last (no public incident found).

    SHARD-9: loaded into a sampler in use.
    """

    order: list[int] | None = None

    def mine(self) -> list[int]:
        if self.order is None:
            self.order = super().mine()
        return self.order

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.order = None
