"""Gradient clipping: a step is made with gradients whose common norm is limited.

Standard library only: the rank side imports this module under any interpreter.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import Situation, TrainingCase
from ddp_invariants.cases.fields import STRICT, require
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation


@dataclass(frozen=True)
class Clipping(Situation):
    """A limit of the norm of all gradients together.

    Attributes:
        norm: The largest norm that a step is made with. Larger gradients are scaled down to it
            once they are synchronised.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    norm: float
    kind: Literal["clipping"] = "clipping"

    def check(self, case: TrainingCase) -> None:
        """Insist on dense gradients, none of them left over from an earlier step."""
        require(0 < self.norm < math.inf, "clip", self.norm, "null or a number above 0")
        require(
            case.zero_grad != "never",
            "zero_grad",
            case.zero_grad,
            "another where gradients are clipped: what is left of them is not what was reduced",
        )
        require(not case.sparse, "clip", self.norm, "null where a gradient is sparse")

    @property
    def words(self) -> str:
        """The limit."""
        return f"clip={self.norm}"

    @classmethod
    def drawn(cls, draw: Callable[[Any], Any]) -> "Clipping | None":
        """Draw a limit in one of four cases."""
        # Imported here: ranks read this module, and have no Hypothesis.
        from hypothesis import strategies as st

        if not draw(st.sampled_from((False, False, False, True))):
            return None
        return cls(draw(st.sampled_from((0.0625, 1.0, 1024.0))))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the limit as a coverage table counts it."""
        return {"norm": "any" if case.clip is None else f"at most {case.clip:g}"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to let gradients be clipped."""
        probe = GENTLE.with_situation(cls(0.0625))
        return {"clipping": of_situation(cls, probe, "gradients clipped", after="subgroup")}
