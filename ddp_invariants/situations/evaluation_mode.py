"""Training in evaluation mode, as in programs that fine-tune with frozen statistics.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, get_args

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between, one_of, require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft

EvaluatedPasses = Literal["both", "backward", "forward"]

_DRAWN: tuple[EvaluatedPasses | None, ...] = (None,) * 5 + get_args(EvaluatedPasses)
"""The passes to draw from; None for training mode."""

EVALUATED = "training in evaluation mode"
"""The condition of rules that only such cases meet."""


@dataclass(frozen=True)
class EvaluationMode(Situation):
    """A wrapper in evaluation mode while its gradients are computed.

    Attributes:
        passes: The passes in evaluation mode: `both`, or only the `backward` or the `forward` of
            each micro-step, where the program switches the mode between them.
        first: The first step in evaluation mode.
    """

    beyond_scripts: ClassVar[str] = "the wrapper is in evaluation mode"
    options: ClassVar[dict[str, Any]] = {"evaluated": False}
    moment: ClassVar[str] = "forwards"
    may_be_left_out: ClassVar[bool] = True
    hides_nothing: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    passes: EvaluatedPasses = "both"
    first: int = 0
    kind: Literal["evaluation mode"] = "evaluation mode"

    def check(self, case: TrainingCase) -> None:
        """Require a model that computes the same in both modes."""
        one_of("evaluation_mode.passes", self.passes, EvaluatedPasses)
        between("evaluation_mode.first", self.first, 0, case.steps - 1)
        require(
            self.passes == "both" or case.passes == "alternate",
            "evaluation_mode.passes",
            self.passes,
            "'both' if backwards do not alternate with forwards",
        )
        require(
            not case.draws and not case.model.has_buffers,
            "evaluation_mode",
            self.passes,
            "null if a layer computes differently in evaluation mode",
        )

    @property
    def words(self) -> str:
        """The passes, and the first step if it is not the first of all."""
        since = f",first={self.first}" if self.first else ""
        return f"evaluation_mode=(passes={self.passes}{since})"

    def simpler(self) -> Iterator["EvaluationMode"]:
        """Yield the same passes from the first step on, and both passes."""
        if self.first:
            yield replace(self, first=0)
        if self.passes != "both":
            yield replace(self, passes="both")

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw the mode in three of eight cases where the option `evaluated` asks for it."""
        passes = draft.choice(_DRAWN) if draft.wanted["evaluated"] else None
        if passes is not None:
            draft.add(cls(passes, draft.any_step()))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the passes in evaluation mode, as a coverage table counts them."""
        found = case.get(cls)
        return {"passes in evaluation mode": "none" if found is None else found.passes}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train in evaluation mode."""
        probe = replace(GENTLE, situations=(cls(),))
        words = "a forward or a backward in evaluation mode, for a step of the optimizer"
        capability = of_situation(cls, probe, EVALUATED, after="schedule", words=words)
        varieties = {passes: partial(_is_in, passes) for passes in get_args(EvaluatedPasses)}
        return {"evaluation_mode": replace(capability, varieties=varieties)}


def _is_in(passes: EvaluatedPasses, case: TrainingCase) -> bool:
    """Return whether some passes of a case are in evaluation mode, and only these."""
    found = case.get(EvaluationMode)
    return found is not None and found.passes == passes
