"""The cases that a rule's own property draws.

Each rule draws its own subject, and little that another rule reports better. A field is an option
of `search.strategies.training_cases` or `shard_cases`, and has the same name there. The situations
themselves name their options.
"""

from dataclasses import dataclass, fields
from typing import Any

from ddp_invariants.situations import OPTIONS

ANY_WORLD = (2, 3, 4, 1)
"""World sizes for a rule that also says something of one rank."""
FEW_RANKS = (2, 3)
"""World sizes for a rule whose cases cost more with every rank, and show nothing more."""


@dataclass(frozen=True, init=False)
class Draws:
    """The training cases of one rule's property.

    Attributes:
        world_sizes: World sizes to choose from, simplest first.
        least_steps: Least number of optimizer updates.
        capped: A bucket capacity in every case.
        buffers: A layer with buffers in every case.
        some_buffers: A layer with buffers in three of four cases.
        every_kind: Every kind of parameter, in every other case.
        accumulated: Several backwards per step in every case.
        rounds: Number of runs of a case in the same processes.
        odd: Gradients that are sparse, or of a dtype of their own, in every case.
        drawing: A layer that draws random numbers in every case.
        prefixed: Names with `module.` in their middle, in one of four cases.
        named: Layers with other names in four of nine cases.
        stateful: An optimizer with a state of its own in every case.
        of_situations: The options of situations that differ from their defaults. Each class in
            `situations.SITUATIONS` names its options, and its `drawn` describes them.
    """

    world_sizes: tuple[int, ...] = (2, 3, 4)
    least_steps: int = 1
    capped: bool = False
    buffers: bool = False
    some_buffers: bool = False
    every_kind: bool = False
    accumulated: bool = False
    rounds: int = 1
    odd: bool = False
    drawing: bool = False
    prefixed: bool = False
    named: bool = False
    stateful: bool = False
    of_situations: tuple[tuple[str, Any], ...] = ()

    def __init__(self, **options: Any) -> None:
        """Take the fields above, except for the last one, and options of situations.

        Raises:
            TypeError: There is no such option.
        """
        for field in fields(self)[:-1]:
            object.__setattr__(self, field.name, options.pop(field.name, field.default))
        unknown = sorted(options.keys() - OPTIONS.keys())
        if unknown:
            raise TypeError(f"Draws() has no option {unknown[0]!r}")
        changed = [name for name in OPTIONS if options.get(name, OPTIONS[name]) != OPTIONS[name]]
        object.__setattr__(self, "of_situations", tuple((name, options[name]) for name in changed))

    @property
    def options(self) -> dict[str, Any]:
        """The world sizes, and every other option that differs from its default."""
        changed = _changed(self)
        changed.pop("of_situations", None)
        return {"world_sizes": self.world_sizes, **changed, **dict(self.of_situations)}

    @property
    def costly(self) -> bool:
        """True if a case ends a process, or repeats its run."""
        return self.rounds > 1 or "death" in self.options.get("injected_failures", ())


@dataclass(frozen=True)
class ShardDraws:
    """The questions to a sampler of one rule's property.

    Attributes:
        least_samples: Least number of samples.
        loader: A DataLoader over the sampler in every case.
        saved: A state saved in the middle of the last epoch, and loaded, in every case.
        worked: Workers of a DataLoader that iterate the sampler, in every case.
        scaled: Long datasets and many ranks in a few cases.
        asked: A program that asks in another way, in most cases.
        few: One to three ranks, and batches of one sample, in every other case.
    """

    least_samples: int = 0
    loader: bool = False
    saved: bool = False
    worked: bool = False
    scaled: bool = False
    asked: bool = False
    few: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Every field that differs from its default."""
        return _changed(self)

    @property
    def costly(self) -> bool:
        """False: no question to a sampler ends a process, or repeats its run."""
        return False


def _changed(draws: Draws | ShardDraws) -> dict[str, Any]:
    """Return the fields that differ from their defaults, by name."""
    values = {field.name: getattr(draws, field.name) for field in fields(draws)}
    return {
        field.name: values[field.name]
        for field in fields(draws)
        if values[field.name] != field.default
    }
