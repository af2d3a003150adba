"""Wrappers around a forward under autocast.

Autocast belongs to a thread. It keeps its casts until the outermost autocast context is left.
"""

from threading import Thread
from typing import Any, ClassVar

import torch

from ddp_invariants.faults.bucketed import RoundsToBfloat16
from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference


class EntersItAgain(Reference):
    """Right: the module runs under a second autocast of the same dtype, inside the program's."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=torch.is_autocast_enabled("cpu")):
            return super().forward(*args, **kwargs)


class _Beside(Reference):
    """A base that runs the module in a thread, under autocast if `_lowered` returns true."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        lowered, grad, outcomes = self._lowered(), torch.is_grad_enabled(), []

        def run() -> None:
            try:
                with (
                    torch.set_grad_enabled(grad),
                    torch.autocast("cpu", torch.bfloat16, enabled=lowered),
                ):
                    outcomes.append(Reference.forward(self, *args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised again by the calling thread
                outcomes.append(error)

        thread = Thread(target=run)
        thread.start()
        thread.join()
        if isinstance(outcomes[0], BaseException):
            raise outcomes[0]
        return outcomes[0]

    def _lowered(self) -> bool:
        return torch.is_autocast_enabled("cpu")


class TakesItAlong(_Beside):
    """Right: the module runs in a thread, which enters the caller's autocast."""

    # Each thread numbers its own operations, and backward follows these numbers. With two forwards,
    # backward therefore adds up their parts in another order.
    declares: ClassVar[dict[str, Any]] = {"unsupported": ("joint",)}


class LosesItInAThread(_Beside):
    """The module runs in a thread, where the caller's autocast is not active
    (DataParallel before pytorch/pytorch#43102).

    LOSS-1: it is the loss of a forward that is not under autocast.
    """

    def _lowered(self) -> bool:
        return False


class SwitchesItOff(Reference):
    """The module runs with autocast switched off, as around a loss that overflows
    (no public incident found).

    LOSS-1: it is the loss of a forward that is not under autocast.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return super().forward(*args, **kwargs)


class AlwaysLowers(Reference):
    """The module runs under an autocast of the wrapper's own, whatever the program chose
    (no public incident found).

    LOSS-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(*args, **kwargs)


class KeepsItsCasts(Reference):
    """Autocast is entered once and never left, so it keeps the first step's casts of parameters
    (X-GenGroup/Flow-Factory#186).

    LOSS-3.
    """

    entered = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu") and not self.entered:
            self.entered = True
            torch.autocast("cpu", torch.bfloat16).__enter__()
        return super().forward(*args, **kwargs)


class LowersWhatItSends(RoundsToBfloat16):
    """After a forward under autocast, gradients travel in bfloat16 although they are float32
    (no public incident found).

    GRAD-2: rounded to bfloat16; or PARAM-6: rounded to bfloat16.
    """

    lowered = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.lowered = torch.is_autocast_enabled("cpu")
        return super().forward(*args, **kwargs)

    def _launch(self, bucket: Bucket) -> None:
        if self.lowered:
            super()._launch(bucket)
        else:
            Reference._launch(self, bucket)


class WeightsByAProduct(Reference):
    """Sums are weighted by a product of matrices, which is in bfloat16 if the backward runs under
    autocast, too (no public incident found).

    GRAD-2: rounded to bfloat16.
    """

    def _wait(self, bucket: Bucket) -> None:
        super()._wait(bucket)
        assert bucket.flat is not None
        if bucket.flat.dtype == torch.float32:
            weight = torch.ones(1, 1, device=bucket.flat.device)
            bucket.flat = torch.mm(weight, bucket.flat[None]).float()[0]
