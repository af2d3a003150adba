"""The sampler of PhysicsNeMo, which always drops the tail, and goes on to the next epoch by itself."""

from typing import Any

from bare import load


class Restartable:
    """The sampler of a rank, restarted for each iteration."""

    def __init__(self, dataset: Any, num_replicas: int, rank: int, *, seed: int) -> None:
        self.arguments = (dataset, rank, num_replicas)
        self.seed = seed
        self.epoch, self.place = 0, 0
        self.running = self._made()

    def _made(self) -> Any:
        library = load("physicsnemo.experimental.datapipes.healda.samplers")
        made = library.RestartableDistributedSampler(*self.arguments, seed=self.seed)
        made.restart(self.epoch, self.place)
        return made

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self.epoch, self.place = epoch, 0

    def __len__(self) -> int:
        return len(self.running)

    def __iter__(self) -> Any:
        self.running = self._made()
        self.place = 0
        return (index for index in self.running)  # It ends; the library's iterator goes on.

    def state_dict(self) -> dict[str, int]:
        """Return the arguments of `restart`."""
        ended = self.running.epoch != self.epoch
        place = len(self.running) if ended else self.running.iteration
        return {"epoch": self.epoch, "place": place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restart the next iteration at a place."""
        self.epoch, self.place = state["epoch"], state["place"]
