"""Layers whose `forward` the model runs without calling the layer.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft

DIRECT = "layers whose forward runs without a call of the layer"
"""The condition of rules that only such cases meet."""


@dataclass(frozen=True)
class DirectForwards(Situation):
    """A model that runs `layer.forward(x)`, so that no hook of the layer runs.

    Of `out_proj` in torch's `MultiheadAttention`, too, only the parameters are used.
    """

    beyond_scripts: ClassVar[str] = "the model runs the forward of layers without calling them"
    options: ClassVar[dict[str, Any]] = {"direct_forwards": 0}
    moment: ClassVar[str] = "forwards"
    hides_nothing: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    kind: Literal["direct forwards"] = "direct forwards"

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw it in one of as many cases as the option `direct_forwards` says, if it is not 0."""
        if draft.wants_now("direct_forwards"):
            draft.add(cls())

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return how layers run, as a coverage table counts it."""
        return {"layers": "called" if case.get(cls) is None else "run without a call"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train so."""
        probe = replace(GENTLE, situations=(cls(),))
        words = "layers whose forward the model runs without calling the layer"
        return {
            "direct_forwards": of_situation(
                cls, probe, DIRECT, after="evaluation_mode", words=words
            )
        }
