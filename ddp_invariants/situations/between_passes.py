"""Actions of a program between a forward and its backward.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, get_args

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import one_of, require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability
from ddp_invariants.situations.draft import Draft

Between = Literal["clear", "evaluate"]


@dataclass(frozen=True)
class BetweenPasses(Situation):
    """An action between each step's first forward and its backward. It changes no number.

    Attributes:
        action: `clear`: the gradients are cleared there instead of before the forward, as programs
            do that call `zero_grad` right before `backward`. `evaluate`: a forward in evaluation mode without gradients, as
            for a metric or a teacher.
    """

    beyond_scripts: ClassVar[str] = "something happens between a forward and its backward"
    options: ClassVar[dict[str, Any]] = {"between_passes": False}
    moment: ClassVar[str] = "forwards"
    may_be_left_out: ClassVar[bool] = True
    hides_nothing: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    action: Between
    kind: Literal["between passes"] = "between passes"

    def check(self, case: TrainingCase) -> None:
        """Require backwards that follow their forwards, and an action that changes no number."""
        one_of("between_passes", self.action, Between)
        require(
            case.passes == "alternate" and not case.penalty and case.injected_failure is None,
            "between_passes",
            self.action,
            "null unless each backward follows its forward",
        )
        require(
            self.action != "clear"
            or (case.zero_grad != "never" and not case.exhausted and not case.scaler),
            "between_passes",
            self.action,
            "another action if gradients are never cleared, or not in every step",
        )
        require(
            self.action != "evaluate"
            or not (
                case.draws
                or case.model.has_buffers
                or case.exhausted
                or any(each.kind in _SWITCHING for each in case.situations)
            ),
            "between_passes",
            self.action,
            "another action if a forward in evaluation mode would change something else",
        )

    @property
    def words(self) -> str:
        """The action."""
        return f"between_passes={self.action}"

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw an action in half of the cases where the option `between_passes` asks for it."""
        action = draft.choice((None, None, *get_args(Between)))
        if draft.wanted["between_passes"] and action is not None:
            draft.add(cls(action))

    def simpler(self) -> Iterator["BetweenPasses"]:
        """Yield nothing: both actions are plain."""
        yield from ()

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the action, as a coverage table counts it."""
        found = case.get(cls)
        return {"between passes": "nothing" if found is None else found.action}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train with each action."""
        return {
            "cleared_late": _capability(
                "clear",
                CLEARED,
                "evaluation_mode",
                "gradients cleared between a forward and its backward",
            ),
            "evaluated_between": _capability(
                "evaluate",
                EVALUATED_BETWEEN,
                "cleared_late",
                "a forward without gradients between a forward and its backward",
            ),
        }


_SWITCHING = ("evaluation mode", "call shape", "second wrapper", "other method", "module use")
"""The situations in which another forward would have another form, or be counted."""
CLEARED = "gradients cleared between the passes"
EVALUATED_BETWEEN = "an evaluation between the passes"
"""The conditions of a rule that such cases meet."""
CONDITIONS: dict[Between, str] = {"clear": CLEARED, "evaluate": EVALUATED_BETWEEN}


def _capability(action: Between, condition: str, after: str, words: str) -> Capability:
    present: Callable[[TrainingCase], bool] = partial(_does, action)
    return Capability(
        present,
        lambda case: case.without(BetweenPasses) if _does(action, case) else case,
        replace(GENTLE, situations=(BetweenPasses(action),)),
        frozenset({condition}),
        after,
        words,
    )


def _does(action: Between, case: TrainingCase) -> bool:
    found = case.get(BetweenPasses)
    return found is not None and found.action == action
