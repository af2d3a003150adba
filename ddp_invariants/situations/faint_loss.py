"""A loss that the program multiplies by a tiny number before backward.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft

FAINT_LOSS = "a loss multiplied by a tiny number"
"""The condition of rules that only such cases meet."""


@dataclass(frozen=True)
class FaintLoss(Situation):
    """A program that multiplies its loss by a tiny number, as by the weight of one of many losses.

    All gradients are tiny then, where other cases have at most some tiny elements. The number is a
    power of two, so that it rounds nothing.

    Attributes:
        log2: Binary logarithm of the number.
    """

    beyond_scripts: ClassVar[str] = "the loss is multiplied by a tiny number"
    options: ClassVar[dict[str, Any]] = {"faint_loss": 0}
    moment: ClassVar[str] = "forwards"
    may_be_left_out: ClassVar[bool] = True

    log2: int = -40
    kind: Literal["faint loss"] = "faint loss"

    def check(self, case: TrainingCase) -> None:
        """Require a number that float32 holds, and no scaler, which would change it."""
        between("faint_loss", self.log2, -80, -10)
        case.require_plain("if the loss is multiplied by a tiny number", scaler=None)

    def simpler(self) -> Iterator["FaintLoss"]:
        """Yield the usual number."""
        if self != FaintLoss():
            yield FaintLoss()

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw it in one of as many cases as the option `faint_loss` says, if it is not 0."""
        if draft.wants_now("faint_loss"):
            draft.add(cls(draft.choice((-40, -20, -60))))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return whether the loss is faint, as a coverage table counts it."""
        return {"factor of the loss": "one" if case.get(cls) is None else "tiny"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train so."""
        probe = replace(GENTLE, situations=(cls(),))
        words = (
            "a loss that the program multiplies by a tiny number, so that all gradients are tiny"
        )
        return {
            "faint_loss": of_situation(cls, probe, FAINT_LOSS, after="evaluation_mode", words=words)
        }
