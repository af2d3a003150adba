"""Perturbations: collectives that are late, or whose results are withheld.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between, require
from ddp_invariants.cases.levels import Level
from ddp_invariants.cases.program import Perturbation, PerturbationKind
from ddp_invariants.cases.shrink import simpler_fields
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.draft import Draft

PERTURBATIONS: tuple[PerturbationKind, ...] = ("none",) * 13 + ("withheld", "withheld", "delays")
"""The perturbations of rules that are not about timing.

Most cases have none, because the rules about timing report a defect of timing best.
"""


@dataclass(frozen=True)
class Perturbed(Situation):
    """An unusual timing of collectives. A correct program gives the same bits.

    Attributes:
        perturbation: The change of timing, and the collectives it is for.
    """

    options: ClassVar[dict[str, Any]] = {"perturbed": PERTURBATIONS}
    level: ClassVar[Level] = "core"  # Any program may meet any timing.
    moment: ClassVar[str] = "timing"
    in_whole_steps: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False
    part: ClassVar[type] = Perturbation

    perturbation: Perturbation
    kind: Literal["perturbation"] = "perturbation"

    def check(self, case: TrainingCase) -> None:
        """Require a rank of the case, and on another timing than the usual one."""
        require(
            self.perturbation != Perturbation(),
            "perturbation",
            self.perturbation,
            "another perturbation: a case has this timing without the situation",
        )
        between("perturbation.rank", self.perturbation.rank, 0, case.world_size - 1)
        # CUDA loads a kernel when it is first used, and may wait for all streams then. That wait
        # would hide one that the implementation lacks.
        require(
            not self.perturbation.on_device or case.steps > 1,
            "steps",
            case.steps,
            "at least 2 if a stream is slowed, as the first step may wait for a device's streams",
        )

    def simpler(self) -> Iterator["Perturbed"]:
        """Yield perturbations of the same kind with one field at a time set to its default."""
        plainest = Perturbation(self.perturbation.kind)
        for perturbation in simpler_fields(self.perturbation, plainest):
            if perturbation != Perturbation():
                yield Perturbed(perturbation)

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw one of the perturbations that the option `perturbed` lists, simplest first."""
        perturbation = Perturbation(
            draft.choice(draft.wanted["perturbed"]),
            draft.choice(("finite", "finite", "nan")),
            draft.any_rank(),
            draft.choice((1, 1, 2, 20)),
        )
        if perturbation.on_device:
            # The wait is long, so that a program that does not synchronise reads too early.
            perturbation = replace(perturbation, milliseconds=20)
            draft.steps = max(draft.steps, 2)
        if perturbation != Perturbation():
            draft.add(cls(perturbation))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the perturbation, as a coverage table counts it."""
        return {"perturbation": case.perturbation.kind}
