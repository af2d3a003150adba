"""A capability as data, and the small cases by which capabilities are probed.

Standard library only: the rank side imports the modules of situations under any interpreter.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data, Optimizer
from ddp_invariants.cases.situation import Situation

FOUR = (Layer("linear", 4),) * 4
"""The layers of the simplest case that a discovery starts from."""

BASE = TrainingCase(model=Model(4, FOUR), world_size=2, steps=2, data=Data(samples=8, batch_size=2))
"""The simplest case that a discovery starts from."""

GENTLE = replace(BASE, values="real", optimizer=Optimizer(log2_lr=-12, momentum=0.5))
"""A case that trains slowly.

Values that blow up hide where they came from, and overflow where gradients travel in float16.
"""


@dataclass(frozen=True)
class Capability:
    """What a training case may contain, as the suite finds, removes and probes it.

    Attributes:
        present: Whether a case contains it.
        removed: The case without it.
        probe: A small case that contains it and little else.
        situations: What rules can meet only with it.
        after: The capability after which this one is probed and removed; "" for the place at
            which the table of its module lists it.
        words: What an implementation takes that has it; "" where `implementation.declarations`
            says so.
    """

    present: Callable[[TrainingCase], bool]
    removed: Callable[[TrainingCase], TrainingCase]
    probe: TrainingCase
    situations: frozenset[str] = frozenset()
    after: str = ""
    words: str = ""


def of_situation(
    kind: type[Situation], probe: TrainingCase, *situations: str, after: str, words: str = ""
) -> Capability:
    """Return the capability of a case to contain a situation of a class."""
    return Capability(
        lambda case: case.get(kind) is not None,
        lambda case: case.without(kind),
        probe,
        frozenset(situations),
        after,
        words,
    )
