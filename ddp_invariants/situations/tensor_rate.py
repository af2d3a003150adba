"""A learning rate that the program keeps in a tensor.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft
from ddp_invariants.situations.group_options import GroupOptions
from ddp_invariants.situations.optimizer_first import OptimizerFirst
from ddp_invariants.situations.schedule import RateSchedule

TENSOR_RATE = "a learning rate in a tensor"
"""The condition of rules that only such cases meet."""

_REPLACING = ("reload", "assign", "unfreeze")
"""The actions that may make an optimizer or a group anew."""


@dataclass(frozen=True)
class TensorRate(Situation):
    """A learning rate in a tensor, which the program fills in place when the rate changes.

    Programs that compile the optimizer's step do so: another number would compile it anew.
    """

    beyond_scripts: ClassVar[str] = "the learning rate is a tensor"
    options: ClassVar[dict[str, Any]] = {"tensor_rate": 0}
    moment: ClassVar[str] = "forwards"
    may_be_left_out: ClassVar[bool] = True
    hides_nothing: ClassVar[bool] = True

    kind: Literal["tensor rate"] = "tensor rate"

    def check(self, case: TrainingCase) -> None:
        """Require kernels that take a tensor, and one optimizer with one rate."""
        require(
            case.optimizer.kernels != "foreach",
            "optimizer.kernels",
            case.optimizer.kernels,
            "other kernels if the learning rate is a tensor, which torch's foreach kernels refuse",
        )
        renewing = [action.kind for action in case.between_steps if action.kind in _REPLACING]
        elsewhere = case.get(GroupOptions) or case.get(OptimizerFirst)
        require(
            elsewhere is None and not renewing and case.saved_by is None,
            "tensor_rate",
            True,  # noqa: FBT003 - the value that the message quotes
            "null if groups have rates of their own, or the optimizer is made at another time",
        )

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw it in one of as many cases as the option `tensor_rate` says, if it is not 0.

        The rate then changes at every second step, if the implementation takes a schedule.
        """
        if draft.wants_now("tensor_rate"):
            draft.steps = max(2, draft.steps)
            excluded = (GroupOptions, OptimizerFirst)
            draft.situations = [each for each in draft.situations if not isinstance(each, excluded)]
            if draft.offer.has("schedule"):
                draft.add(RateSchedule((0, -3)))
            draft.add(cls())

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return where the learning rate is kept, as a coverage table counts it."""
        return {"learning rate kept": "as a number" if case.get(cls) is None else "in a tensor"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train so."""
        probe = replace(GENTLE, steps=3, situations=(RateSchedule((0, -1)), cls()))
        words = "a learning rate in a tensor, which the program fills in place"
        return {"tensor_rate": of_situation(cls, probe, TENSOR_RATE, after="schedule", words=words)}
