"""The batch sampler of Megatron Bridge that shuffles and skips the samples consumed before."""

from collections.abc import Iterator
from typing import Any

from bare import load

SAMPLERS = "megatron.bridge.data.samplers"


class Shuffled:
    """The batch sampler that shuffles, anew for each iteration.

    Its epoch is a part of the number of consumed samples, which iterating advances.
    """

    def __init__(self, dataset: Any, world_size: int, rank: int, *, micro_batch_size: int) -> None:
        self.arguments = {
            "dataset": dataset,
            "total_samples": len(dataset),
            "micro_batch_size": micro_batch_size,
            "data_parallel_rank": rank,
            "data_parallel_size": world_size,
            "data_sharding": True,
        }
        self.whole = len(dataset) - len(dataset) % (micro_batch_size * world_size)
        self.epoch, self.consumed = 0, 0
        self.running = self._made()

    def _made(self) -> Any:
        return load(SAMPLERS).MegatronPretrainingRandomSampler(
            **self.arguments, consumed_samples=self.epoch * self.whole + self.consumed
        )

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self.epoch, self.consumed = epoch, 0

    def __iter__(self) -> Iterator[list[int]]:
        self.running = self._made()
        ended = 0 < self.whole <= self.consumed
        self.consumed = 0
        return iter(()) if ended else iter(self.running)

    def state_dict(self) -> dict[str, int]:
        """Return the number of consumed samples, as a trainer saves it."""
        return {"epoch": self.epoch, "consumed": self.running.consumed_samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after a number of consumed samples."""
        self.epoch = state["epoch"]
        self.consumed = state["consumed"] - self.epoch * self.whole
