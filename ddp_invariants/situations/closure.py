"""Steps whose optimizer calls a closure, which computes the loss and the gradients.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft

CLOSURE = "a step with a closure"
"""The condition of a rule that a case in the situation meets."""


@dataclass(frozen=True)
class Closure(Situation):
    """Every step is one call, `optimizer.step(closure)`.

    The closure clears the gradients, runs a forward and a backward, and returns the loss.
    """

    beyond_scripts: ClassVar[str] = "a closure computes the gradients"
    options: ClassVar[dict[str, Any]] = {"closures": False}
    moment: ClassVar[str] = "forwards"
    may_be_left_out: ClassVar[bool] = True
    hides_nothing: ClassVar[bool] = True

    kind: Literal["closure"] = "closure"

    def check(self, case: TrainingCase) -> None:
        """Require steps of one backward, and that nothing else makes the step."""
        require(
            case.accumulation == 1 and case.injected_failure is None and case.scaler is None,
            "closure",
            self.words,
            "none if a step has several backwards, if a pass fails, or if a scaler makes the step",
        )

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw the situation in every case if the option `closures` asks for it."""
        if draft.wanted["closures"]:
            draft.accumulation = 1
            draft.add(cls())

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return how a step is called, as a coverage table counts it."""
        return {"the optimizer's step": "without" if case.get(cls) is None else "with a closure"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to take a closure."""
        words = "a closure that the optimizer's step calls, and that computes the gradients"
        probe = GENTLE.with_situation(cls())
        return {"closure": of_situation(cls, probe, CLOSURE, after="group_options", words=words)}
