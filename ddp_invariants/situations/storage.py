"""Parameters that are parts of one tensor.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft

ONE_STORAGE = "parameters that are parts of one tensor"
"""The condition of rules that only such cases meet."""


@dataclass(frozen=True)
class OneStorage(Situation):
    """A module whose parameters of a dtype are views of one flat tensor, as of a fused weight."""

    beyond_scripts: ClassVar[str] = "the parameters are views of one tensor"
    options: ClassVar[dict[str, Any]] = {"in_one_storage": 0}
    moment: ClassVar[str] = "forwards"
    may_be_left_out: ClassVar[bool] = True
    hides_nothing: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False
    in_whole_steps: ClassVar[bool] = True

    kind: Literal["one storage"] = "one storage"

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw it in one of as many cases as the option `in_one_storage` says, if it is not 0."""
        if draft.wants_now("in_one_storage"):
            draft.add(cls())

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return how parameters are stored, as a coverage table counts it."""
        return {"storage of parameters": "each its own" if case.get(cls) is None else "one for all"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train so."""
        probe = replace(GENTLE, situations=(cls(),))
        words = "parameters that are views of one tensor"
        return {
            "one_storage": of_situation(
                cls, probe, ONE_STORAGE, after="evaluation_mode", words=words
            )
        }
