"""Timing: collectives that are late, or whose results are withheld.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import Situation, TrainingCase, brief
from ddp_invariants.cases.fields import STRICT, between, require
from ddp_invariants.cases.program import Perturbation
from ddp_invariants.cases.shrink import simpler_fields


@dataclass(frozen=True)
class Disturbed(Situation):
    """A timing of collectives that is not the usual one. A right program gives the same bits.

    Attributes:
        perturbation: What happens to which collectives.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    in_whole_steps: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    perturbation: Perturbation
    kind: Literal["perturbation"] = "perturbation"

    def check(self, case: TrainingCase) -> None:
        """Insist on a rank of the case, and on another timing than the usual one."""
        require(
            self.perturbation != Perturbation(),
            "perturbation",
            self.perturbation,
            "another, since a case has this timing without the situation",
        )
        between("perturbation.rank", self.perturbation.rank, 0, case.world_size - 1)

    @property
    def words(self) -> str:
        """The perturbation, without what is usual."""
        return f"perturbation={brief(self.perturbation)}"

    def simpler(self) -> Iterator["Disturbed"]:
        """Yield perturbations of the same kind with one field at a time as usual."""
        plainest = Perturbation(self.perturbation.kind)
        for perturbation in simpler_fields(self.perturbation, plainest):
            if perturbation != Perturbation():
                yield Disturbed(perturbation)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Disturbed":
        """Build the situation from the fields of its JSON form."""
        return cls(Perturbation(**plain["perturbation"]))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the timing, as a coverage table counts it."""
        return {"timing": case.perturbation.kind}
