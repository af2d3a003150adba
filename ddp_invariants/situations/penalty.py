"""A gradient penalty: a loss that holds a gradient, which the program asks autograd for.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation


@dataclass(frozen=True)
class Penalty(Situation):
    """The squared gradient of the outputs by the inputs, added to every loss.

    The program asks autograd for the gradient with `create_graph`. Only the unwrapped twin module
    computes the result: the oracle has no second derivatives.
    """

    beyond_scripts: ClassVar[str] = "a penalty on gradients is a part of the loss"

    kind: Literal["penalty"] = "penalty"

    def check(self, case: TrainingCase) -> None:
        """Require plain passes, and on little else in the case."""
        plain = case.passes == "alternate" and all(
            layer.checkpoint == "none" for layer in case.model.layers
        )
        require(
            plain,
            "penalty",
            True,  # noqa: FBT003 - the value that the message quotes
            "false if passes do not alternate, or a layer is computed again",
        )
        require(
            case.zero_grad != "never",
            "zero_grad",
            case.zero_grad,
            "another value if the loss has a penalty: a gradient left in place may be reduced once more",
        )
        case.require_plain(
            "if a loss carries a penalty",
            clip=None,
            scaler=None,
            exhausted=(),
            saved_by=None,
            between_steps=(),
        )

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train with a penalty."""
        return {
            "penalty": of_situation(
                cls,
                GENTLE.with_situation(cls()),
                "a penalty on gradients by the inputs",
                after="retained",
            )
        }
