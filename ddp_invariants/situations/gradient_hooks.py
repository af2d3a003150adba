"""Hooks of the program that change the gradients of parameters.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft
from ddp_invariants.situations.module_use import ModuleUse
from ddp_invariants.situations.second import SecondWrapper

HOOKED = "gradients changed by hooks of the program"
"""The condition of rules that only such cases meet."""


@dataclass(frozen=True)
class GradientHooks(Situation):
    """A program that registers a hook on each parameter once the module is wrapped.

    The hook turns the sign of the gradient, as a mask or a scale would change it. So each rank's
    local gradient is that of the module with these hooks. A changed sign is exact in every dtype.
    """

    beyond_scripts: ClassVar[str] = "hooks of the program change the gradients"
    options: ClassVar[dict[str, Any]] = {"gradient_hooks": 0}
    moment: ClassVar[str] = "forwards"
    may_be_left_out: ClassVar[bool] = True
    hides_nothing: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    kind: Literal["gradient hooks"] = "gradient hooks"

    def check(self, case: TrainingCase) -> None:
        """Require parameters that stay the same tensors, and one wrapper of them."""
        case.require_plain(
            "if hooks change the gradients", between_steps=(), saved_by=None, exhausted=()
        )
        use = case.get(ModuleUse)
        require(
            case.get(SecondWrapper) is None and (use is None or "wrapper copies" not in use.uses),
            "gradient_hooks",
            True,  # noqa: FBT003 - the value that the message quotes
            "null beside a second wrapper or a copy of the wrapper: hooks are not copied",
        )

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw it in one of as many cases as the option `gradient_hooks` says, if it is not 0."""
        if draft.wants_now("gradient_hooks"):
            draft.add(cls())

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return whether hooks change gradients, as a coverage table counts it."""
        return {"hooks on gradients": "none" if case.get(cls) is None else "on each parameter"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train so."""
        probe = replace(GENTLE, situations=(cls(),))
        words = "hooks that the program registers on parameters after wrapping, to change gradients"
        return {
            "gradient_hooks": of_situation(cls, probe, HOOKED, after="evaluation_mode", words=words)
        }
