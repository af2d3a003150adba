"""The cases that a rule's own property draws.

Each rule draws the subject that it is about, and little that another rule reports better. A field
is an option of `search.strategies.training_cases` or `shard_cases`, and has its name there.
"""

from dataclasses import dataclass, fields
from typing import Any

from ddp_invariants.cases.program import BetweenStepsKind, InjectedFailureKind, PerturbationKind
from ddp_invariants.situations.perturbation import PERTURBATIONS

ANY_WORLD = (2, 3, 4, 1)
"""World sizes for a rule that also says something of one rank."""
FEW_RANKS = (2, 3)
"""World sizes for a rule whose cases cost more with every rank, and show nothing more."""


@dataclass(frozen=True)
class Draws:
    """The training cases of one rule's property.

    Attributes:
        world_sizes: World sizes to choose from, simplest first.
        least_steps: Fewest optimizer updates.
        capped: Always set a bucket capacity.
        poisoned: Always put a value that is not finite into one rank's batch.
        buffers: Always have a layer with buffers.
        every_kind: Have every kind of parameter in every other case.
        perturbed: Perturbations of the collectives' timing to choose from, simplest first.
        accumulated: Always have several backwards per step.
        injected_failures: Failures to inject, one of them in every case.
        rounds: How often a case repeats its run in the same processes.
        unused: Always have layers that a forward passes by.
        crossed: Have branches that one rank computes in the other order in every fourth case.
        passes: Always have passes that do not alternate, or layers that are computed again.
        between_steps: Actions between steps, some of them in every case.
        uneven: Always have ranks that run out of batches.
        resized: Always start from a state that another number of ranks saved.
        odd: Always have gradients that are sparse, or of a dtype of their own.
        clipped: Clip gradients in every fourth case.
        scheduled: Have a learning-rate schedule in every fourth case.
        scaled: Have a loss scaler in one of so many cases; in none where 0.
        autocast: Run forwards under autocast in one of so many cases; in none where 0.
        drawing: Always have a layer that draws random numbers.
        written: Have the program write to buffers between steps in every fourth case.
    """

    world_sizes: tuple[int, ...] = (2, 3, 4)
    least_steps: int = 1
    capped: bool = False
    poisoned: bool = False
    buffers: bool = False
    every_kind: bool = False
    perturbed: tuple[PerturbationKind, ...] = PERTURBATIONS
    accumulated: bool = False
    injected_failures: tuple[InjectedFailureKind, ...] = ()
    rounds: int = 1
    unused: bool = False
    crossed: bool = False
    passes: bool = False
    between_steps: tuple[BetweenStepsKind, ...] = ()
    uneven: bool = False
    resized: bool = False
    odd: bool = False
    clipped: bool = False
    scheduled: bool = False
    scaled: int = 0
    autocast: int = 0
    drawing: bool = False
    written: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The world sizes, and every other field that differs from its default."""
        return {"world_sizes": self.world_sizes, **_changed(self)}

    @property
    def costly(self) -> bool:
        """True if a case ends a process, or repeats its run."""
        return self.rounds > 1 or "death" in self.injected_failures


@dataclass(frozen=True)
class ShardDraws:
    """The questions to a sampler of one rule's property.

    Attributes:
        least_samples: Shortest dataset.
        loader: Always run a DataLoader over the sampler as well.
        saved: Always save a state in the middle of the last epoch, and load it.
        worked: Always have workers of a DataLoader iterate the sampler.
    """

    least_samples: int = 0
    loader: bool = False
    saved: bool = False
    worked: bool = False

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
