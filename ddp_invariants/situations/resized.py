"""A state that another number of ranks saved.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between, require
from ddp_invariants.cases.program import Data
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft


@dataclass(frozen=True)
class Resized(Situation):
    """A run that starts from a state that other ranks saved.

    The first ranks of all processes trained before, and saved the model and its optimizer. The
    ranks of this run load both before their first step.

    Attributes:
        saved_by: The number of ranks that saved the state.
    """

    beyond_scripts: ClassVar[str] = "it starts from a state that other ranks saved"
    options: ClassVar[dict[str, Any]] = {"resized": False}
    moment: ClassVar[str] = "program"
    in_earlier_run: ClassVar[bool] = False

    saved_by: int
    kind: Literal["resized"] = "resized"

    def check(self, case: TrainingCase) -> None:
        """Require processes and batches for the ranks that save, and on little else."""
        between("saved_by", self.saved_by, 1, case.ranks_needed)
        require(
            not case.data.drop_last or case.data.samples >= self.saved_by,
            "data.samples",
            case.data.samples,
            f"at least {self.saved_by}: with fewer, a rank that saves has no batch",
        )
        case.require_plain(
            "if a state is loaded that other ranks saved", between_steps=(), exhausted=()
        )

    @property
    def words(self) -> str:
        """The number of ranks."""
        return f"saved_by={self.saved_by}"

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw a number of ranks in every case if the option `resized` asks for it."""
        if not draft.wanted["resized"]:
            return
        saved_by = 1 + draft.small() % draft.offer.max_world_size
        if saved_by > draft.world_size:
            draft.outside = saved_by - draft.world_size
        elif not draft.offer.has("subgroup"):
            draft.outside = 0
        draft.data = replace(draft.data, drop_last=False)
        draft.add(cls(saved_by))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the number of ranks, as a coverage table counts it."""
        return {"saved by": "nobody" if case.saved_by is None else f"{case.saved_by} ranks"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to go on from a state of another number of ranks."""
        data = Data(samples=12, batch_size=2)
        probe = replace(GENTLE, world_size=3, data=data, situations=(cls(2),))
        capability = of_situation(
            cls, probe, "fewer ranks saved", "more ranks saved", after="autocast"
        )
        varieties = {"by more ranks": lambda case: (case.saved_by or 0) > case.world_size}
        return {"resized": replace(capability, varieties=varieties)}
