"""Adapters for fairseq2's wrappers, with gangs of the ranks of the case."""

from contextlib import AbstractContextManager
from typing import Any, ClassVar

from bare import load

for name in ("ddp", "fsdp.fsdp1", "fsdp.fsdp2"):
    load(f"fairseq2.nn.{name}")


def gangs_of(context: Any, *, sharded: bool) -> Any:
    """Return gangs in which all ranks are replicas, or in which all ranks share one replica."""
    library = load("fairseq2.gang")
    distributed = load("torch.distributed")
    ranks = library.ProcessGroupGang(distributed.group.WORLD, context.device)
    alone = library.FakeGang(context.device)
    return library.Gangs(
        root=ranks,
        dp=ranks,
        rdp=alone if sharded else ranks,
        sdp=ranks if sharded else alone,
        tp=alone,
        pp=alone,
    )


class Replicated:
    """A model that `to_ddp` has wrapped.

    Args:
        options: Options of `to_ddp`.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options

    def wrap(self, module: Any, context: Any) -> object:
        """Wrap the model."""
        library = load("fairseq2.nn.ddp")
        wrapped: object = library.to_ddp(module, gangs_of(context, sharded=False), **self.options)
        return wrapped


class Sharded1:
    """A model that `to_fsdp1` has wrapped as one unit."""

    declares: ClassVar[dict[str, object]] = {
        "init": "seed",
        "gradients": "hidden",
        "zero": 3,
        "partition": "flat",
    }
    version = 1

    def wrap(self, module: Any, context: Any) -> object:
        """Wrap the model."""
        self.library = load(f"fairseq2.nn.fsdp.fsdp{self.version}")
        shard = getattr(self.library, f"to_fsdp{self.version}")
        wrapped: object = shard(module, gangs_of(context, sharded=True), lambda each, _: each)
        return wrapped

    def accumulate(self, wrapped: Any) -> AbstractContextManager[object]:
        """Return the library's context without synchronisation."""
        made: AbstractContextManager[object] = getattr(self.library, f"fsdp{self.version}_no_sync")(
            wrapped
        )
        return made


class Sharded2(Sharded1):
    """A model that `to_fsdp2` has sharded as one unit."""

    declares: ClassVar[dict[str, object]] = {**Sharded1.declares, "partition": "rows"}
    version = 2
