"""The order of passes: forwards and backwards of a step that do not alternate.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import Passes, Situation, TrainingCase
from ddp_invariants.cases.fields import STRICT, one_of, require
from ddp_invariants.situations.capability import GENTLE, Capability


@dataclass(frozen=True)
class PassOrder(Situation):
    """An order of a step's forwards and backwards in which they do not alternate.

    Attributes:
        order: `joint` runs all forwards and one backward of their summed losses; `retained` runs
            one forward on the first batch, and every backward through it.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    order: Passes
    kind: Literal["passes"] = "passes"

    def check(self, case: TrainingCase) -> None:
        """Insist on several micro-steps, and on layers that the order does not disturb."""
        one_of("passes", self.order, Passes)
        require(self.order != "alternate", "passes", self.order, "'joint' or 'retained'")
        require(
            case.accumulation > 1,
            "passes",
            self.order,
            "'alternate' where a step has one backward",
        )
        require(
            self.order != "joint" or not case.model.norms_batches,
            "passes",
            self.order,
            "another where a layer is a batch_norm: autograd refuses its backward once its buffers have been written, "
            "as they are by whoever broadcasts them when a forward starts",
        )
        require(
            not case.in_parts or case.zero_grad != "never",
            "zero_grad",
            case.zero_grad,
            "another where a gradient comes in parts: added to what is left they round otherwise than among themselves",
        )

    @property
    def words(self) -> str:
        """The order."""
        return f"passes={self.order}"

    def in_one_backward(self) -> None:
        """Return nothing: in steps of one backward the passes alternate."""

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the order, as a coverage table counts it."""
        return {"passes": f"{case.passes}, with a penalty" if case.penalty else case.passes}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capabilities of both orders."""
        return {
            "joint": _capability("joint", "all forwards before one backward", "backward_error"),
            "retained": _capability("retained", "several backwards through one forward", "joint"),
        }


def _capability(order: Passes, situation: str, after: str) -> Capability:
    """Return the capability of an order."""
    return Capability(
        lambda case: case.passes == order,
        lambda case: case.without(PassOrder),
        replace(GENTLE, accumulation=2, situations=(PassOrder(order),)),
        frozenset({situation}),
        after,
    )
