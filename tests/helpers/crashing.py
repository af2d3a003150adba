"""A right sampler, mutants of it that crash on some inputs, and one that refuses; and a wrapper."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DistributedSampler, Sampler

from ddp_invariants.reference.ddp import DistributedDataParallel


class Right(Sampler[int]):
    """Torch's own algorithm in a few lines."""

    def __init__(
        self, dataset: Any, num_replicas: int, rank: int, shuffle: bool = True, seed: int = 0
    ) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank is {rank}, expected 0 to {num_replicas - 1}")
        self.samples, self.world_size, self.rank = len(dataset), num_replicas, rank
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0

    def __len__(self) -> int:
        return math.ceil(self.samples / self.world_size)

    def order(self) -> list[int]:
        """Return the order of all samples in the epoch."""
        if not self.shuffle:
            return list(range(self.samples))
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        return torch.randperm(self.samples, generator=generator).tolist()

    def __iter__(self) -> Iterator[int]:
        order, total = self.order(), len(self) * self.world_size
        while order and len(order) < total:
            order += order[: total - len(order)]
        return iter(order[self.rank :: self.world_size])

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch."""
        self.epoch = epoch


class ForgetsAName(Right):
    """A variable was renamed in one place."""

    def order(self) -> list[int]:
        """Return the order; with shuffle it reads a name that does not exist."""
        return shuffled(self) if self.shuffle else super().order()  # type: ignore[name-defined] # noqa: F821 - the fault


class LosesALine(Right):
    """The line that sets the epoch at first was dropped."""

    def __init__(
        self, dataset: Any, num_replicas: int, rank: int, shuffle: bool = True, seed: int = 0
    ) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle, seed)
        del self.epoch


class LosesALineOfTorchs(DistributedSampler[int]):
    """Torch's own sampler, without the line that sets the epoch at first."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        del self.epoch


class EndsEarly(Right):
    """A generator that takes one value too many from another one, where padding is needed."""

    def __iter__(self) -> Iterator[int]:
        whole = super().__iter__()
        for _ in range(len(self) + bool(self.samples % self.world_size)):
            yield next(whole)


class Asserts(Right):
    """An assertion instead of padding."""

    def __iter__(self) -> Iterator[int]:
        assert self.samples % self.world_size == 0
        return super().__iter__()


class Refuses(Right):
    """A refusal instead of padding."""

    def __init__(
        self, dataset: Any, num_replicas: int, rank: int, shuffle: bool = True, seed: int = 0
    ) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle, seed)
        if self.samples % num_replicas:
            raise ValueError("the length must be divisible by the number of ranks")


class ForgetsADtype(DistributedDataParallel):
    """The reference, but a table by dtype lacks float64."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Look every parameter's dtype up, and run the module."""
        for parameter in self.module.parameters():
            _BYTES[parameter.dtype]
        return super().forward(*args, **kwargs)


class CrashesAfterAnException(DistributedDataParallel):
    """The reference, but a forward that raises leaves a state that the next forward cannot read."""

    _inputs: Any = ()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; the inputs are forgotten only if it returns."""
        self.after_an_exception()
        self._inputs = None
        outputs = super().forward(*args, **kwargs)
        self._inputs = ()
        return outputs

    def after_an_exception(self) -> None:
        """Ask for the number of the last inputs."""
        self._number = self._inputs.index


class RefusesAfterAnException(CrashesAfterAnException):
    """The same, but it says that it cannot go on."""

    def after_an_exception(self) -> None:
        """Raise after an exception."""
        if self._inputs is None:
            raise RuntimeError("the last forward raised: make a new wrapper")


_BYTES = {torch.float32: 4, torch.bfloat16: 2, torch.float16: 2, torch.complex64: 8}
