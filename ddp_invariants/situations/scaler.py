"""Loss scaling: a `torch.amp.GradScaler` scales the loss, and skips a step that overflows.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.program import LossScale, Poison
from ddp_invariants.cases.shrink import simpler_fields
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft
from ddp_invariants.situations.poison import Poisoned


@dataclass(frozen=True)
class Scaler(Situation):
    """A loss scaler on every rank.

    Attributes:
        plan: Its first scale, and how the scale grows and falls.
    """

    options: ClassVar[dict[str, Any]] = {"scaled": 0}
    moment: ClassVar[str] = "values"
    part: ClassVar[type] = LossScale

    plan: LossScale
    kind: Literal["scaler"] = "scaler"

    def check(self, case: TrainingCase) -> None:
        """Require a scale that stays in range, and on gradients that torch can unscale."""
        plan = self.plan
        least = plan.log2_scale - plan.log2_backoff * case.steps
        require(
            plan.most(case.steps) <= 126 and least >= -126,
            "scaler",
            plan,
            "a scale that stays between 2**-126 and 2**126, whichever steps overflow",
        )
        require(
            case.zero_grad != "never",
            "zero_grad",
            case.zero_grad,
            "another value if a loss is scaled: a gradient left in place is already unscaled",
        )
        require(
            case.scalable,
            "scaler",
            plan,
            "null if a gradient is sparse, or of a dtype that torch does not unscale, or if SGD's "
            "fused kernels have momentum: after a skipped first step, torch goes on with an "
            "uninitialised momentum",
        )
        require(
            case.exhausted == () and case.saved_by is None,
            "scaler",
            plan,
            "null if a rank runs out of batches, or a state is loaded that other ranks saved",
        )

    def simpler(self) -> Iterator["Scaler"]:
        """Yield plans with one field at a time as in the plainest plan."""
        yield from (Scaler(plan) for plan in simpler_fields(self.plan, LossScale(4)))

    def scripted_setup(self) -> list[str]:
        """Return a script's lines that make the scaler."""
        plan = self.plan
        return [
            (
                f'scaler = torch.amp.GradScaler("cpu", init_scale=2.0**{plan.log2_scale}, '
                f"growth_factor=2.0**{plan.log2_growth},"
            ),
            (
                f"                              backoff_factor=2.0**-{plan.log2_backoff}, "
                f"growth_interval={plan.interval})"
            ),
        ]

    def scripted_loss(self, loss: str) -> str:
        """Return the expression from which a script's backward starts."""
        return f"scaler.scale({loss})"

    def scripted_step(self) -> list[str]:
        """Return a script's lines that make an update."""
        unscaling = ["scaler.unscale_(optimizer)"] if self.plan.unscaled else []
        return [*unscaling, "scaler.step(optimizer)", "scaler.update()"]

    def fitted(self, case: TrainingCase) -> TrainingCase:
        """Return the case with the scaler; unchanged if torch cannot scale its gradients."""
        if not case.scalable:
            return case
        plan = self.plan
        most = 126 - plan.most(case.steps) + plan.log2_scale
        plan = replace(plan, log2_scale=min(plan.log2_scale, most))
        # The scale must stay in range even if every step is skipped.
        if plan.log2_scale < plan.log2_backoff * case.steps - 126:
            plan = replace(plan, log2_backoff=1)
        zero_grad = "zero" if case.zero_grad == "never" else case.zero_grad
        return replace(case, zero_grad=zero_grad).with_situation(Scaler(plan))

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw a plan in one of `scaled` cases, an option; in no case if the option is 0.

        If every case has a plan, half of the cases also have a value that is not finite. Some
        scales are so large that the scaled loss overflows by itself. Then the scale falls far, so
        that later steps do not overflow.
        """
        one_in, st = draft.wanted["scaled"], draft.st
        if not one_in or not draft.offer.has("scaler"):
            return
        if not draft.choice((True, *(False,) * (one_in - 1))):
            return
        plans = st.builds(
            LossScale,
            st.sampled_from((4, 16, 4, 122)),
            st.sampled_from((2, 1, 3)),
            st.sampled_from((1, 1, 3)),
            st.sampled_from((1, 1, 40)),
            st.booleans(),
        )
        draft.add(cls(draft.draw(plans)))
        if one_in == 1 and draft.coin():
            Poisoned.add_to(draft, ("inf", "nan"))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the first scale, as a coverage table counts it."""
        return {"loss scale": "none" if case.scaler is None else f"2**{case.scaler.log2_scale}"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to work with a loss scaler."""
        situation = cls(LossScale(4, unscaled=True))
        overflow = Poisoned(Poison(1, 1, "inf"))
        probe = replace(GENTLE, steps=3, situations=(overflow, situation))
        return {
            "scaler": of_situation(
                cls,
                probe,
                "a step skipped",
                "a step made after one that was skipped",
                "a scale that grew",
                "gradients unscaled before the step",
                after="clipping",
            )
        }
