"""Adapters for pipegoose, in a context in which all ranks are data-parallel.

A real context makes process groups for three kinds of parallelism. This one has the group of the case.
"""

from typing import Any, ClassVar

from bare import load


def context_of(case: Any) -> Any:
    """Return pipegoose's context, with the default group as that of each mode."""
    library: Any = load("pipegoose.distributed.parallel_context")
    distributed = load("torch.distributed")

    class AllAreReplicas(library.ParallelContext):  # type: ignore[misc]  # the library is imported by name
        """A context that makes no groups."""

        def __init__(self) -> None:
            self.data_parallel_size = case.world_size
            ranks = list(range(case.world_size))
            self._global_ranks, self._local_ranks, self._world_sizes = {}, {}, {}
            self._groups, self._ranks_in_group = {}, {}
            self._ranks_to_device: dict[Any, int] = {}
            for mode in library.ParallelMode:
                alone = mode.name in {"TENSOR", "PIPELINE"}
                self._local_ranks[mode] = 0 if alone else case.rank
                self._world_sizes[mode] = 1 if alone else case.world_size
                self._groups[mode] = distributed.group.WORLD
                self._ranks_in_group[mode] = [case.rank] if alone else ranks
                self._global_ranks[mode] = case.rank
            self.map_rank_to_device()

        def __del__(self) -> None:
            """Destroy nothing."""

    return AllAreReplicas()


class Averaged:
    """A model whose hooks average each gradient; pipegoose leaves the equal start to its users."""

    declares: ClassVar[dict[str, object]] = {"init": "seed"}

    def wrap(self, module: Any, context: Any) -> object:
        """Register the hooks."""
        self.context = context_of(context)
        library = load("pipegoose.nn.data_parallel.data_parallel", "pipegoose.nn")
        wrapped: object = library.DataParallel(module, self.context).parallelize()
        return wrapped


class Sharded(Averaged):
    """The model with the optimizer of ZeRO's first stage."""

    declares: ClassVar[dict[str, object]] = {
        **Averaged.declares,
        "zero": 1,
        "partition": "parameters",
    }

    def make_optimizer(self, wrapped: Any, context: Any) -> object:
        """Shard the case's optimizer."""
        library = load("pipegoose.optim.zero.optim", "pipegoose.nn")
        made: object = library.DistributedOptimizer(
            context.optimizer(wrapped.parameters()), self.context
        )
        return made
