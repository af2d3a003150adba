"""A penalty in the loss, on gradients or on parameters.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import one_of, require
from ddp_invariants.cases.shrink import without_kinds
from ddp_invariants.cases.situated import Penalised
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability


@dataclass(frozen=True)
class Penalty(Situation):
    """A penalty that the program adds to every loss.

    Attributes:
        of: `inputs`: the penalty is the squared gradient of the outputs by the inputs, which the
            program asks autograd for with `create_graph`. Only the unwrapped twin module computes
            the result: the oracle has no second derivatives. `weights`: the penalty is half the
            sum of all squared trained parameters, times the batch's first target. So the gradient
            has a part that comes from no forward, and that differs between ranks. A `loss_only`
            layer has no other part.
    """

    beyond_scripts: ClassVar[str] = "a penalty is a part of the loss"

    of: Penalised = "inputs"
    kind: Literal["penalty"] = "penalty"

    def check(self, case: TrainingCase) -> None:
        """Require plain passes, and on little else in the case."""
        one_of("penalty", self.of, Penalised)
        plain = case.passes == "alternate" and all(
            layer.checkpoint == "none" for layer in case.model.layers
        )
        require(
            plain,
            "penalty",
            self.of,
            "none if passes do not alternate, or a layer is computed again",
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
        if self.of == "weights":
            case.require_plain("if parameters are penalised", sparse=False)

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capabilities to train with either penalty."""
        return {
            "penalty": _capability("inputs", "a penalty on gradients by the inputs", "retained"),
            "weight_penalty": _capability("weights", "a penalty on parameters", "penalty"),
        }


def _capability(of: Penalised, condition: str, after: str) -> Capability:
    """Return the capability to train with a penalty."""
    return Capability(
        lambda case: case.penalty == of,
        lambda case: without_kinds(case, "loss_only").without(Penalty),
        GENTLE.with_situation(Penalty(of)),
        frozenset({condition}),
        after,
        level=Penalty.level,
    )
