"""A learning-rate schedule: the optimizer's learning rate changes before every step.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between, require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft


@dataclass(frozen=True)
class RateSchedule(Situation):
    """A learning rate that a schedule sets before every step.

    Attributes:
        log2_factors: Binary logarithms of the factors on the case's learning rate, one per
            step. After the last, the first follows.
    """

    beyond_scripts: ClassVar[str] = "the learning rate changes at every step"
    options: ClassVar[dict[str, Any]] = {"scheduled": False}
    moment: ClassVar[str] = "forwards"
    hides_nothing: ClassVar[bool] = True

    log2_factors: tuple[int, ...]
    kind: Literal["schedule"] = "schedule"

    def check(self, case: TrainingCase) -> None:
        """Insist on a schedule that changes the rate, and keeps it a power of two in range."""
        factors = self.log2_factors
        require(
            2 <= len(factors) <= 16 and len(set(factors)) > 1,
            "schedule",
            factors,
            "2 to 16 factors, some of them different",
        )
        for index, factor in enumerate(factors):
            between(f"schedule[{index}]", factor, -8, 0)
        require(
            all(action.kind != "learning rate" for action in case.between_steps),
            "schedule",
            factors,
            "null if an action between steps changes the learning rate",
        )
        least = case.optimizer.log2_lr + min(factors)
        require(least >= -30, "schedule", factors, "factors that keep the rate at 2**-30 or more")

    @property
    def words(self) -> str:
        """The factors of the steps."""
        return f"schedule={','.join(map(str, self.log2_factors))}"

    def simpler(self) -> Iterator["RateSchedule"]:
        """Yield the schedule of two rates, an eighth at every second step.

        A wrong factor of two could also come from a sum over two ranks that is never divided.
        """
        if self.log2_factors != (0, -3):
            yield RateSchedule((0, -3))

    def at(self, case: TrainingCase, step: int) -> TrainingCase:
        """Return the case with the optimizer as it makes a step."""
        factor = self.log2_factors[step % len(self.log2_factors)]
        log2_lr = max(case.optimizer.log2_lr + factor, -30)
        return replace(
            case.without(RateSchedule), optimizer=replace(case.optimizer, log2_lr=log2_lr)
        )

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw a schedule in one of four cases where the option `scheduled` asks for it."""
        if draft.wanted["scheduled"] and draft.one_in(4):
            draft.add(cls(draft.choice(((0, -1), (-2, -1, 0), (0, -3), (-1, 0, -1, -4)))))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return how the learning rate goes on, as a coverage table counts it."""
        return {"learning rate": "constant" if case.get(cls) is None else "scheduled"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train with a schedule."""
        probe = replace(GENTLE, steps=3, situations=(cls((0, -1)),))
        words = "a learning rate that a schedule sets before every step"
        condition = "a scheduled learning rate"
        return {"schedule": of_situation(cls, probe, condition, after="decay", words=words)}
