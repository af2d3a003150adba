"""Crossed branches: gradients that become ready in another order on one rank.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import BASE, FOUR, Capability, of_situation
from ddp_invariants.situations.draft import Draft


@dataclass(frozen=True)
class Crossed(Situation):
    """A rank whose `branches` layers are computed in the other order.

    Their gradients have equal shapes and become ready in another order than on the other ranks. No
    number changes.

    Attributes:
        rank: The rank.
    """

    options: ClassVar[dict[str, Any]] = {"crossed": False}
    moment: ClassVar[str] = "branches"
    in_earlier_run: ClassVar[bool] = False

    rank: int
    kind: Literal["crossed"] = "crossed"

    def check(self, case: TrainingCase) -> None:
        """Require a rank of the case."""
        between("crossed", self.rank, 0, case.world_size - 1)

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw a rank in one of four cases if the option `crossed` asks for it."""
        if draft.wanted["crossed"] and draft.one_in(4) and draft.offer.has("crossed"):
            draft.add_layers(Layer("branches", dtype=draft.model.layers[0].dtype))
            draft.add(cls(draft.any_rank()))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return whether a rank crosses its branches, as a coverage table counts it."""
        return {"branches": "alike" if case.get(cls) is None else "crossed"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to take gradients in an order that differs between ranks."""
        model = Model(4, (*FOUR, Layer("branches")))
        probe = replace(BASE, model=model, steps=3, bucket_cap=1, situations=(cls(1),))
        condition = "gradients ready in another order on one rank"
        return {"crossed": of_situation(cls, probe, condition, after="unused")}
