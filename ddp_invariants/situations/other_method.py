"""Forwards through another method of the module, which the wrapper passes on.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft

OTHER_METHOD = "a forward through another method"
"""The condition of a rule that a case in the situation meets."""
_EXCLUDED = ("call shape", "module use", "second wrapper", "injected failure", "exhausted")


@dataclass(frozen=True)
class OtherMethod(Situation):
    """Forwards through a method of the module that is not `forward`: the wrapper's `encode`.

    A wrapper need not have the method. A wrapper that offers it must train as
    in its own forward.
    """

    beyond_scripts: ClassVar[str] = "forwards go through another method"
    options: ClassVar[dict[str, Any]] = {"other_methods": False}
    moment: ClassVar[str] = "forwards"
    may_be_left_out: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    kind: Literal["other method"] = "other method"

    def check(self, case: TrainingCase) -> None:
        """Require that nothing else changes how the program calls the wrapper."""
        require(
            all(each.kind not in _EXCLUDED for each in case.situations),
            "other_method",
            self.words,
            "none if calls have another form, are counted, or fail",
        )
        require(
            case.passes == "alternate",
            "passes",
            case.passes,
            "'alternate' if forwards go through other methods",
        )

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw the situation in every case if the option `other_methods` asks for it."""
        if draft.wanted["other_methods"]:
            draft.add(cls())

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the method that forwards go through, as a coverage table counts it."""
        return {"forwards through": "forward" if case.get(cls) is None else "another method"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train through another method."""
        probe = GENTLE.with_situation(cls())
        words = "forwards through other methods of the module, which the wrapper passes on"
        return {
            "other_methods": of_situation(cls, probe, OTHER_METHOD, after="closure", words=words)
        }
