"""A program that asks the wrapper to leave each rank its own buffers (`broadcast_buffers=False`).

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import BASE, FOUR, Capability, of_situation
from ddp_invariants.situations.draft import Draft

OWN_BUFFERS = "no broadcasts of buffers"
"""The condition of rules that only such cases meet."""


@dataclass(frozen=True)
class OwnBuffers(Situation):
    """A program that passes `broadcast_buffers=False` to the wrapper.

    Each forward then starts from the buffers that the rank's own last forward left. The ranks may
    start from equal buffers or from different ones: torch has done both.
    """

    options: ClassVar[dict[str, Any]] = {"own_buffers": 0}
    moment: ClassVar[str] = "forwards"
    may_be_left_out: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    kind: Literal["own buffers"] = "own buffers"

    def check(self, case: TrainingCase) -> None:
        """Require numbers in all buffers: no broadcast may replace those that are unset."""
        require(
            case.init != "unset", "init", case.init, "another one without broadcasts of buffers"
        )

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw it in one of as many cases as the option `own_buffers` says, if it is not 0."""
        if draft.wants_now("own_buffers"):
            draft.add(cls())

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return whether buffers are broadcast, as a coverage table counts it."""
        return {"broadcast_buffers": "as usual" if case.get(cls) is None else "False"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to leave each rank its own buffers."""
        probe = replace(
            BASE, model=Model(4, (*FOUR, Layer("statistics"))), steps=3, situations=(cls(),)
        )
        words = "`broadcast_buffers=False`, which leaves each rank its own buffers"
        capability = of_situation(cls, probe, OWN_BUFFERS, after="buffers", words=words)
        return {"own_buffers": replace(capability, present=_leaves_buffers)}


def _leaves_buffers(case: TrainingCase) -> bool:
    """Return whether there are buffers that the wrapper must leave alone."""
    return case.get(OwnBuffers) is not None and case.model.has_buffers
