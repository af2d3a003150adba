"""Gradient clipping: a step is made with gradients whose common norm is limited.

Standard library only: the rank side imports this module under any interpreter.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft


@dataclass(frozen=True)
class Clipping(Situation):
    """A limit of the norm of all gradients together.

    Attributes:
        norm: The largest norm that a step is made with. Larger gradients are scaled down to it
            once they are synchronised.
    """

    beyond_scripts: ClassVar[str] = "gradients are clipped"
    options: ClassVar[dict[str, Any]] = {"clipped": False}
    moment: ClassVar[str] = "program"
    hides_nothing: ClassVar[bool] = True

    norm: float
    kind: Literal["clipping"] = "clipping"

    def check(self, case: TrainingCase) -> None:
        """Require dense gradients, none of them left over from an earlier step."""
        require(0 < self.norm < math.inf, "clip", self.norm, "null or a number above 0")
        require(
            case.zero_grad != "never",
            "zero_grad",
            case.zero_grad,
            "another value if gradients are clipped: a gradient left in place is no longer the reduced one",
        )
        require(not case.sparse, "clip", self.norm, "null if a gradient is sparse")

    @property
    def words(self) -> str:
        """The limit."""
        return f"clip={self.norm}"

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw a limit in one of four cases if the option `clipped` asks for it."""
        if draft.wanted["clipped"] and draft.one_in(4):
            draft.add(cls(draft.choice((0.0625, 1.0, 1024.0))))

    def fitted(self, case: TrainingCase) -> TrainingCase:
        """Return a drawn case with the limit; unchanged if gradients are sparse or left over."""
        return case if case.zero_grad == "never" or case.sparse else case.with_situation(self)

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the limit as a coverage table counts it."""
        return {"norm": "any" if case.clip is None else f"at most {case.clip:g}"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to let gradients be clipped."""
        probe = GENTLE.with_situation(cls(0.0625))
        return {"clipping": of_situation(cls, probe, "gradients clipped", after="subgroup")}
