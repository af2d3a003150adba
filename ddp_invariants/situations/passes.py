"""The order of passes: forwards and backwards of a step that do not alternate.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import Passes, TrainingCase
from ddp_invariants.cases.fields import one_of, require
from ddp_invariants.cases.layers import Checkpoint, Layer, Model
from ddp_invariants.cases.situated import Penalised
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability
from ddp_invariants.situations.draft import Draft
from ddp_invariants.situations.penalty import Penalty

_WAYS: tuple[tuple[Passes, Checkpoint], ...] = (
    ("joint", "none"),
    ("retained", "none"),
    ("alternate", "plain"),
    ("alternate", "reentrant"),
    ("joint", "plain"),
    ("retained", "plain"),
    ("joint", "reentrant"),
    ("retained", "reentrant"),
)
"""The orders of a step's passes, each with the `checkpoint` of one of the layers."""
_NEEDED = {
    "joint": "joint",
    "retained": "retained",
    "plain": "checkpointed",
    "reentrant": "reentrant",
}
"""The capability that each order and each checkpoint needs."""

_PENALTIES: dict[Penalised, str] = {"inputs": "penalty", "weights": "weight_penalty"}
"""The capability that each penalty needs."""


@dataclass(frozen=True)
class PassOrder(Situation):
    """An order of a step's forwards and backwards in which they do not alternate.

    Attributes:
        order: `joint` runs all forwards and one backward of their summed losses; `retained` runs
            one forward on the first batch, and every backward through it.
    """

    beyond_scripts: ClassVar[str] = "passes do not alternate, or layers are computed again"
    options: ClassVar[dict[str, Any]] = {"passes": False}
    moment: ClassVar[str] = "layers"

    order: Passes
    kind: Literal["passes"] = "passes"

    def check(self, case: TrainingCase) -> None:
        """Require several micro-steps, and on layers that the order does not disturb."""
        one_of("passes", self.order, Passes)
        require(self.order != "alternate", "passes", self.order, "'joint' or 'retained'")
        require(
            case.accumulation > 1,
            "passes",
            self.order,
            "'alternate' if a step has one backward",
        )
        require(
            self.order != "joint" or not case.model.norms_batches,
            "passes",
            self.order,
            "another order if a layer is a batch_norm: autograd refuses its backward after its "
            "buffers have been written, and a wrapper may broadcast them when a forward starts",
        )
        require(
            not case.in_parts or case.zero_grad != "never",
            "zero_grad",
            case.zero_grad,
            "another value if a gradient comes in parts: added to a gradient left in place, the "
            "parts round differently than among themselves",
        )

    def in_one_backward(self) -> None:
        """Return nothing: in steps of one backward the passes alternate."""

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw passes that do not alternate, or a layer that is computed again.

        The option `passes` asks for this in every case. In one of five cases, a penalty is drawn
        instead of both.
        """
        if not draft.wanted["passes"]:
            return
        ways = [way for way in _WAYS if _offered(draft, *way)]
        order, checkpoint = draft.choice(ways) if ways else ("alternate", "none")
        sparse = any(layer.sparse for layer in draft.model.layers)
        penalties = [
            of
            for of, needed in _PENALTIES.items()
            if draft.offer.has(needed) and not (of == "weights" and sparse)
        ]
        if penalties and draft.one_in(5):
            of = draft.choice(penalties)
            draft.add(Penalty(of))
            if of == "weights" and draft.coin() and draft.offer.has("loss_only"):
                draft.last_layers = (_for_the_loss(draft),)
            order, checkpoint, draft.clearings = "alternate", "none", draft.clearings[:2]
        if not ways:
            return
        draft.accumulation = 2 if order != "alternate" else 1
        # Between a BatchNorm's forward and its backward, no other forward may write its buffers.
        if order == "joint":
            draft.model = _without_batch_norm(draft.model)
        if order != "alternate":
            draft.add(cls(order))
        last = draft.square(twice=draft.one_in(4) and draft.offer.has("twice"))
        pair = (last, replace(last, checkpoint=checkpoint, twice=False))
        draft.add_layers(*(pair if draft.coin() else pair[::-1]))
        if (order, checkpoint) == ("joint", "reentrant"):
            # The parts of a gradient round differently if they are added to an old gradient than if
            # they are first added up.
            draft.clearings = draft.clearings[:2]

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the order, as a coverage table counts it."""
        penalty = f", with a penalty on {case.penalty}" if case.penalty else ""
        return {"passes": f"{case.passes}{penalty}"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capabilities of both orders."""
        return {
            "joint": _capability("joint", "all forwards before one backward", "backward_error"),
            "retained": _capability("retained", "several backwards through one forward", "joint"),
        }


def _capability(order: Passes, condition: str, after: str) -> Capability:
    """Return the capability of an order."""
    return Capability(
        lambda case: case.passes == order,
        lambda case: case.without(PassOrder),
        replace(GENTLE, accumulation=2, situations=(PassOrder(order),)),
        frozenset({condition}),
        after,
    )


def _offered(draft: Draft, order: Passes, checkpoint: Checkpoint) -> bool:
    """Return whether the implementation takes an order of passes and a checkpoint together."""
    needed = {_NEEDED[name] for name in (order, checkpoint) if name in _NEEDED}
    if (order, checkpoint) == ("joint", "reentrant"):
        needed.add("in_parts")
    return all(map(draft.offer.has, needed))


def _for_the_loss(draft: Draft) -> Layer:
    """Return a layer whose parameter only the loss uses, in the dtype of the first layer if it may."""
    dtype = draft.model.layers[0].dtype
    return Layer("loss_only", dtype="float64" if dtype == "float64" else "float32")


def _without_batch_norm(model: Model) -> Model:
    """Return a model without BatchNorms. None is tied, and they stand behind all tied layers."""
    layers = tuple(layer for layer in model.layers if layer.kind != "batch_norm")
    return replace(model, layers=layers)
