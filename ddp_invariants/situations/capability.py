"""A capability as data, and the small cases by which capabilities are probed.

Standard library only: the rank side imports the modules of situations under any interpreter.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.levels import Level
from ddp_invariants.cases.program import Data, Optimizer
from ddp_invariants.cases.situation import Situation

FOUR = (Layer("linear", 4),) * 4
"""The layers of the simplest case that a discovery starts from."""

BASE = TrainingCase(model=Model(4, FOUR), world_size=2, steps=2, data=Data(samples=8, batch_size=2))
"""The simplest case that a discovery starts from."""

GENTLE = replace(BASE, values="real", optimizer=Optimizer(log2_lr=-12, momentum=0.5))
"""A case that trains slowly.

Values that grow fast hide where they came from, and overflow if gradients are sent in float16.
"""


@dataclass(frozen=True)
class Capability:
    """A feature of training cases, with the functions that detect and remove it, and its probe.

    Attributes:
        present: A function that returns whether a case contains the feature.
        removed: A function that returns the case without the feature.
        probe: A small case that contains the feature and little else.
        conditions: The conditions of rules that only cases with the feature can meet.
        after: The capability after which this one is probed and removed; "" for the place at
            which the table of its module lists it.
        words: A description of the inputs that an implementation accepts which has the
            capability; "" if `implementation.declarations` describes them.
        varieties: Functions that return whether a case contains a certain variety of the feature,
            by its name. A survey aims at each, as at the feature itself.
        level: How ordinary programs with the feature are.
    """

    present: Callable[[TrainingCase], bool]
    removed: Callable[[TrainingCase], TrainingCase]
    probe: TrainingCase
    conditions: frozenset[str] = frozenset()
    after: str = ""
    words: str = ""
    varieties: Mapping[str, Callable[[TrainingCase], bool]] = field(default_factory=dict)
    level: Level = "extended"


def of_situation(
    kind: type[Situation], probe: TrainingCase, *conditions: str, after: str, words: str = ""
) -> Capability:
    """Return the capability of a case to contain a situation of a class."""
    return Capability(
        lambda case: case.get(kind) is not None,
        lambda case: case.without(kind),
        probe,
        frozenset(conditions),
        after,
        words,
        level=kind.level,
    )
