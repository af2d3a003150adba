"""Poison: a value that is not finite in the batch of a rank.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between, require
from ddp_invariants.cases.program import Poison, PoisonKind
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import BASE, Capability, of_situation
from ddp_invariants.situations.draft import Draft


@dataclass(frozen=True)
class Poisoned(Situation):
    """A value that is not finite in one rank's batch of one step.

    Attributes:
        poison: The value, its rank and its step.
    """

    options: ClassVar[dict[str, Any]] = {"poisoned": False}
    moment: ClassVar[str] = "values"
    in_whole_steps: ClassVar[bool] = True
    part: ClassVar[type] = Poison

    poison: Poison
    kind: Literal["poison"] = "poison"

    def check(self, case: TrainingCase) -> None:
        """Require a rank and a step of the case, on one backward per step, and on real layers."""
        require(
            case.accumulation == 1,
            "accumulation",
            case.accumulation,
            "1 if the case injects a value that is not finite",
        )
        between("poison.rank", self.poison.rank, 0, case.world_size - 1)
        between("poison.step", self.poison.step, 0, case.steps - 1)
        require(
            not any(layer.complex for layer in case.model.layers),
            "poison",
            self.poison,
            "null if a layer is complex: no standard fixes which part then becomes NaN",
        )

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw a value if the option `poisoned` asks for one in every case."""
        if draft.wanted["poisoned"]:
            cls.add_to(draft, ("nan", "inf", "-inf"))

    @classmethod
    def add_to(cls, draft: Draft, kinds: tuple[PoisonKind, ...]) -> None:
        """Draw a value of some kinds.

        No layer may be complex: nothing fixes which part of a complex number is not finite.
        """
        draft.add(cls(Poison(draft.any_rank(), draft.any_step(), draft.choice(kinds))))
        draft.real, draft.accumulation = True, 1

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the value, as a coverage table counts it."""
        poison = case.get(cls)
        return {"poison": "none" if poison is None else poison.poison.value}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train with values that are not finite."""
        probe = replace(BASE, situations=(cls(Poison(1, 1)),))
        capability = of_situation(cls, probe, "a NaN", "an infinity", after="never_zeroed")
        return {"nonfinite": capability}
