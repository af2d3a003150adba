"""Gradients that a program clears through the wrapper.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft

CLEARED_BY_MODULE = "gradients cleared by the wrapper"
"""The condition of rules that only such cases meet."""


@dataclass(frozen=True)
class ClearedByModule(Situation):
    """A program that calls the wrapper's `zero_grad`, and not the optimizer's."""

    beyond_scripts: ClassVar[str] = "the wrapper's zero_grad clears the gradients"
    options: ClassVar[dict[str, Any]] = {"cleared_by_module": 0}
    moment: ClassVar[str] = "failures"
    may_be_left_out: ClassVar[bool] = True
    hides_nothing: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    kind: Literal["cleared by module"] = "cleared by module"

    def check(self, case: TrainingCase) -> None:
        """Require gradients that are cleared in every step."""
        require(
            case.zero_grad != "never",
            "cleared_by_module",
            case.zero_grad,
            "null if gradients are never cleared",
        )

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw it in one of as many cases as the option `cleared_by_module` says, if it is not 0."""
        if draft.wants_now("cleared_by_module"):
            draft.add(cls())
            draft.clearings = ("set_to_none",) * 4 + ("zero", "mixed")

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return who clears the gradients, as a coverage table counts it."""
        return {"gradients cleared by": "the optimizer" if case.get(cls) is None else "the wrapper"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train so."""
        probe = replace(GENTLE, situations=(cls(),))
        words = "gradients cleared by the zero_grad of the wrapper"
        capability = of_situation(
            cls, probe, CLEARED_BY_MODULE, after="evaluation_mode", words=words
        )
        varieties = {"with a layer frozen between steps": _frozen_later}
        return {"zero_by_module": replace(capability, varieties=varieties)}


def _frozen_later(case: TrainingCase) -> bool:
    """Return whether a layer is frozen that has a gradient, which the wrapper clears."""
    return (
        case.get(ClearedByModule) is not None
        and case.zero_grad == "set_to_none"
        and any(
            action.kind == "freeze"
            and action.step
            and not case.model.layers[action.layer].frozen
            and case.model.layers[action.layer].kind != "empty"
            for action in case.between_steps
        )
    )
