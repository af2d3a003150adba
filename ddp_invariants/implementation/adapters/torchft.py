"""torchft's wrappers, as `--ddp torchft`; their manager sees all ranks in every step.

A real manager asks a server which replicas take part. Here all ranks do, so nothing is asked. The
all-reduce and the work that it returns are torchft's own.
"""

import importlib
import logging
from typing import Any, ClassVar

from ddp_invariants.implementation.adapters import preload

preload("torchft.manager", "torchft.ddp")


def manager(group: Any) -> Any:
    """Return torchft's manager, without its server, for ranks that all take part."""
    library: Any = importlib.import_module("torchft.manager")

    class AllTakePart(library.Manager):  # type: ignore[misc]  # the library is imported by name
        """A manager without a server."""

        def __init__(self) -> None:
            self._pg = group
            self._errored = None
            self._logger = logging.getLogger("torchft")

        def wait_quorum(self) -> None:
            """Return at once, since nothing was asked."""

        def num_participants(self) -> int:
            """Return the number of ranks."""
            return int(group.size())

        def is_participating(self) -> bool:
            """Return True."""
            return True

        def wrap_future(self, fut: Any, default: Any, timeout: Any = None) -> Any:
            """Return the future as it is, without a timeout."""
            del default, timeout
            return fut

    return AllTakePart()


class Replicated:
    """`torchft.DistributedDataParallel`, which leaves the equal start to its manager.

    Args:
        kind: The name of the wrapper in `torchft.ddp`.
    """

    declares: ClassVar[dict[str, object]] = {"init": "seed"}

    def __init__(self, kind: str = "DistributedDataParallel") -> None:
        self.kind = kind

    def wrap(self, module: Any, context: Any) -> object:
        """Wrap the model."""
        del context
        distributed: Any = importlib.import_module("torch.distributed")
        wrappers: Any = importlib.import_module("torchft.ddp")
        wrapped: object = getattr(wrappers, self.kind)(manager(distributed.group.WORLD), module)
        return wrapped
