"""A sampler that can be saved in the middle of an epoch, and what goes wrong when one is.

Words: N dataset length, W world size, L indices per rank.
"""

import random
from collections.abc import Iterator, Sized
from math import ceil
from typing import Any, ClassVar


class Slices:
    """Right: contiguous slices of a permutation, and a state that holds the epoch and how much of the slice was taken."""

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
        """This rank's slice of the epoch's order, which starts over where W does not divide N."""
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
            self.taken += 1  # Before it is handed out: a generator stands still at its yield while a state is saved.
            yield index
        self.taken = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the next iteration's order."""
        self.epoch, self.taken, self.start = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Where this rank is."""
        return {"epoch": self.epoch, "taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there at the next iteration."""
        self.epoch, self.start = state["epoch"], state["taken"]
        self.taken = self.start


class KeepsTheRest:
    """Right: strided shards, and a state that is the list of what is left, the seed and the epoch."""

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
        """Every W-th index of the epoch's order."""
        order = list(range(self.samples))
        if self.shuffle:
            random.Random(f"{self.seed}/{self.epoch}").shuffle(order)
        return [
            order[place % self.samples]
            for place in range(self.rank, self.world_size * len(self), self.world_size)
        ]

    def __iter__(self) -> Iterator[int]:
        self.left, self.resumes = (
            self.left if self.resumes and self.left is not None else self.mine(),
            False,
        )
        while self.left:
            yield self.left.pop(0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the next iteration's order."""
        self.epoch, self.resumes = epoch, False

    def state_dict(self) -> dict[str, Any]:
        """What is left."""
        return {"epoch": self.epoch, "left": self.mine() if self.left is None else self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with it at the next iteration."""
        self.epoch, self.left, self.resumes = state["epoch"], list(state["left"]), True


class PlaceAlone(Slices):
    """Right: the state is the place alone, and set_epoch is to be called before it is loaded."""

    declares: ClassVar[dict[str, str]] = {"layout": "contiguous", "saves": "place"}

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken = self.start = state["taken"]


class Replays(Slices):
    """The state holds the epoch alone, so that a resumed epoch starts over (huggingface/transformers#40691).

    SHARD-9: the rest starts from the beginning.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]


class ForgetsAll(Slices):
    """What is loaded is kept, and read by nothing (PrimeIntellect-ai/prime-rl#832). SHARD-9: from the beginning."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state


class ForgetsTheEpoch(Slices):
    """The place is restored and the epoch is not, so that the rest is that of the first epoch (modelscope/ms-swift#10050).

    SHARD-9: the saved epoch is lost.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken = self.start = state["taken"]


class ForgetsTheSeed(Slices):
    """The seed is taken from the state, which holds none, and becomes the default (huggingface/accelerate#4195).

    SHARD-9: what fixes it is lost.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.seed = state.get("seed", 0)


class SavesTheNextEpoch(Slices):
    """What fixes the order is counted up as an epoch starts, and saved as it is then, so that the rest is the next epoch's
    (huggingface/accelerate#4233). SHARD-9: of the next epoch's order."""

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch + 1, "taken": self.taken}


class SavesTheWorldsCount(Slices):
    """What all ranks consumed is saved, and taken for what one rank did (no public incident found).

    SHARD-9: multiplied by the world size.
    """

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken": self.taken * self.world_size}


class DividesByTheWorld(Slices):
    """What one rank consumed is saved, and taken for what all ranks did (no public incident found).

    SHARD-9: one rank's count is taken for that of all ranks.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "taken": state["taken"] // self.world_size})


class CountsBatches(Slices):
    """Batches are counted, and skipped as if they were indices (no public incident found).

    SHARD-9: batches are counted as indices.
    """

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken": self.taken // self.batch_size}


class SkipsByBatches(Slices):
    """Indices are counted, and skipped as if they were batches (no public incident found).

    SHARD-9: indices are counted as batches.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "taken": state["taken"] * self.batch_size})


class CountsWhatIsFetched(Slices):
    """A batch that was fetched ahead and not consumed is counted, and never seen again (no public incident found).

    SHARD-9: read ahead counts as consumed.
    """

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken": min(self.taken + self.batch_size, len(self))}


class CountsAfterTheYield(Slices):
    """An index is counted when the next one is asked for, so that the last one comes again (no public incident found).

    SHARD-9: the last index consumed is yielded again.
    """

    def __iter__(self) -> Iterator[int]:
        self.taken, self.start = self.start, 0
        for index in self.mine()[self.taken :]:
            yield index
            self.taken += 1
        self.taken = 0


class CountsTwice(Slices):
    """What is skipped is skipped by the sampler and by its caller (no public incident found). SHARD-9: counted twice."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "taken": 2 * state["taken"]})


class CountsAnew(Slices):
    """The count starts at 0 with a resumption, so that a second one goes back (KempnerInstitute/KempnerForge#57).

    SHARD-9: the count starts anew.
    """

    def __iter__(self) -> Iterator[int]:
        start, self.start, self.taken = self.start, 0, 0
        for index in self.mine()[start:]:
            self.taken += 1
            yield index
        self.taken = 0


class SkipsInEveryEpoch(Slices):
    """What was to be skipped once is skipped in every later epoch (huggingface/accelerate#1451). SHARD-9: the skip stays."""

    def __iter__(self) -> Iterator[int]:
        self.taken = self.start
        for index in self.mine()[self.start :]:
            self.taken += 1
            yield index
        self.taken = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.taken = epoch, 0


class StaysInTheEpoch(Slices):
    """set_epoch no longer reaches a sampler that loaded a state, and the epoch comes twice (huggingface/accelerate#4233).

    SHARD-9: it is the resumed epoch again.
    """

    loaded = False

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.loaded = True

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(self.epoch if self.loaded else epoch)


class DrainsWhatIsLeft(KeepsTheRest):
    """What is left is moved into the state, so that who goes on has nothing (no public incident found).

    SHARD-9: saving the state changes what is yielded.
    """

    def state_dict(self) -> dict[str, Any]:
        state = {"epoch": self.epoch, "left": list(self.left or [])}
        self.left = []
        return state


class SortsTheRest(KeepsTheRest):
    """What is left is saved as a set, which holds no order (no public incident found). SHARD-9: the rest in another order."""

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "left": sorted(super().state_dict()["left"])}


class RaisesOnALaterEpoch(Slices):
    """The state of an epoch but the first is refused when it is loaded (no public incident found).

    SHARD-9: saving or loading a state raises.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["epoch"]:
            raise KeyError("generator")
        super().load_state_dict(state)


class Elastic:
    """Right: strided shards of what is left of the order, and a state that counts what all ranks together were dealt."""

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
        self.epoch, self.resumed = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Where all ranks are."""
        return {"epoch": self.epoch, "dealt": self.start + self.taken * self.world_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there at the next iteration."""
        self.epoch, self.resumed = state["epoch"], state["dealt"]


class CountsForTheNewWorld(Elastic):
    """A rank's own count is saved and multiplied by the world size that loads it (huggingface/transformers#40245).

    SHARD-9: is counted for the.
    """

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken": self.start // self.world_size + self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.resumed = state["epoch"], state["taken"] * self.world_size


class StaysInTheOldWorld(Elastic):
    """The world size comes from the state, so that ranks that are new start beyond it (Lightning-AI/litData#878 for its like).

    SHARD-9.
    """

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "world_size": self.world_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.world_size = state["world_size"]
