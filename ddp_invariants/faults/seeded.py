"""The bucketed reference and the random number generator: who seeds it, when, and with what."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference


class SeedsEachRank(_Reference):
    """Right: the wrapper seeds every rank differently, whatever the user did."""

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
    ) -> None:
        super().__init__(module, process_group, bucket_cap_mb)
        torch.manual_seed(1000 + dist.get_rank())


class DrawsNumbersOfItsOwn(_Reference):
    """Right: after every forward, each rank takes another amount of numbers from the default
    generator.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        torch.rand(1 + 3 * dist.get_rank())
        torch.randperm(5)
        return result


class DrawsBeforeItsModule(_Reference):
    """Every fourth forward checks a parameter that it draws from the default generator, so the module
    draws other numbers than without a wrapper (no public incident found).

    LOSS-1: before its module does.
    """

    forwards = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.forwards += self.training
        if self.forwards % 4 == 3:
            parameters = list(self.module.parameters())
            torch.isfinite(parameters[int(torch.randint(len(parameters), ()))]).all()
        return super().forward(*args, **kwargs)


class EvaluatesOnAForkedGenerator(_Reference):
    """Right: a forward in evaluation seeds all ranks alike and then restores the generator."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.training:
            return super().forward(*args, **kwargs)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return super().forward(*args, **kwargs)


class SeedsAllAlike(_Reference):
    """Wrapping seeds every rank alike (huggingface/transformers#31412, goodfire-ai/spd#412).

    RNG-1: every rank is seeded alike.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
    ) -> None:
        super().__init__(module, process_group, bucket_cap_mb)
        torch.manual_seed(42)


class BroadcastsTheGenerator(_Reference):
    """Rank 0's generator state is broadcast with the parameters, so all ranks start from the same
    state (no public incident found).

    RNG-1: all ranks were given the state of rank 0's generator.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
    ) -> None:
        super().__init__(module, process_group, bucket_cap_mb)
        state = torch.get_rng_state()
        dist.broadcast(state, group_src=0, group=process_group)
        torch.set_rng_state(state)


class SeedsEveryForward(_Reference):
    """Every forward starts from one seed, as if for reproducibility (no public incident found).

    RNG-1: every rank is seeded alike, and anew in every.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        torch.manual_seed(0)
        return super().forward(*args, **kwargs)


class SeedsEveryForwardByRank(_Reference):
    """Every forward starts from the rank's seed, so all forwards draw the same masks
    (no public incident found).

    RNG-1: each rank is seeded anew in every.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        torch.manual_seed(1 + dist.get_rank())
        return super().forward(*args, **kwargs)


class SeedsAllAlikeUnderNoSync(_Reference):
    """Entering no_sync seeds all ranks alike, by the number of times it was entered
    (no public incident found).

    RNG-1: every rank is seeded alike.
    """

    _entered = 0

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._entered += 1
        torch.manual_seed(self._entered)
        with super().no_sync():
            yield


class SeedsAllAlikeToEvaluate(_Reference):
    """A forward in evaluation is seeded to be repeatable, and training goes on from that seed
    (no public incident found).

    RNG-1: every rank is seeded alike from step.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.training:
            torch.manual_seed(0)
        return super().forward(*args, **kwargs)


class SeedsToRound(_Reference):
    """Gradients in bfloat16 are rounded by chance when they are sent, from the same seed each time
    so that a run can be repeated (no public incident found).

    RNG-1: every rank is seeded alike.
    """

    def _packed(self, bucket: Bucket) -> Tensor:
        flat = super()._packed(bucket)
        if flat.dtype == torch.bfloat16:
            torch.manual_seed(0)
        return flat


class SeedsAfterAnError(_Reference):
    """After a backward that raised, the next forward starts the generators of all ranks from one seed
    (no public incident found).

    LIVE-2: every rank is seeded alike.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._reducing:
            torch.manual_seed(0)
        return super().forward(*args, **kwargs)


class StaysInEvaluation(_Reference):
    """eval() reaches the module, but train() does not, so the module stays in evaluation mode
    (no public incident found).

    RNG-1: the module was left in evaluation.
    """

    def train(self, mode: bool = True) -> Self:
        self.training = mode
        if not mode:
            self.module.eval()
        return self


class TrainsInEvaluation(_Reference):
    """Every forward first puts the module into training mode (no public incident found).

    RNG-1: the module was put back.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.module.train()
        return super().forward(*args, **kwargs)
