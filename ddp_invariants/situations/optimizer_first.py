"""An optimizer that a program makes before it wraps the module.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft

MADE_FIRST = "an optimizer made before wrapping"
"""The condition of rules that only such cases meet."""


@dataclass(frozen=True)
class OptimizerFirst(Situation):
    """A program that makes its optimizer over the module's parameters, and then wraps the module."""

    beyond_scripts: ClassVar[str] = "the optimizer is made before the module is wrapped"
    options: ClassVar[dict[str, Any]] = {"optimizer_first": 0}
    moment: ClassVar[str] = "forwards"
    may_be_left_out: ClassVar[bool] = True
    hides_nothing: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    kind: Literal["optimizer first"] = "optimizer first"

    def check(self, case: TrainingCase) -> None:
        """Require one wrapper: a second one of the same module has an optimizer of its own."""
        require(
            all(each.kind != "second wrapper" for each in case.situations),
            "optimizer_first",
            self.kind,
            "null if the program has a second wrapper",
        )

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw it in one of as many cases as the option `optimizer_first` says, if it is not 0."""
        if draft.wants_now("optimizer_first"):
            draft.add(cls())

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return when the optimizer is made, as a coverage table counts it."""
        made = "after wrapping" if case.get(cls) is None else "before wrapping"
        return {"the optimizer is made": made}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train so."""
        probe = replace(GENTLE, situations=(cls(),))
        words = "an optimizer that is made before the module is wrapped"
        return {
            "optimizer_first": of_situation(
                cls, probe, MADE_FIRST, after="evaluation_mode", words=words
            )
        }
