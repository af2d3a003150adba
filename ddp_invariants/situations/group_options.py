"""Groups of parameters whose options in the optimizer differ.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between, require
from ddp_invariants.cases.program import Optimizer
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft

GROUPED = "groups of parameters with options of their own"
"""The condition of a rule that a case in the situation meets."""


@dataclass(frozen=True)
class GroupOptions(Situation):
    """An optimizer over two groups of parameters: every second parameter has options of its own.

    The first group has the options of the case's optimizer.

    Attributes:
        log2_rate: Binary logarithm of the factor on the second group's learning rate.
        decays: False if the second group has no weight decay.
    """

    beyond_scripts: ClassVar[str] = "groups of parameters have options of their own"
    options: ClassVar[dict[str, Any]] = {"grouped": False}
    moment: ClassVar[str] = "forwards"
    hides_nothing: ClassVar[bool] = True

    log2_rate: int = -2
    decays: bool = True
    kind: Literal["group options"] = "group options"

    def check(self, case: TrainingCase) -> None:
        """Require a learning rate in range, and an optimizer that nothing else regroups."""
        between("group_options.log2_rate", self.log2_rate, -8, -1)
        least = case.optimizer.log2_lr + self.log2_rate
        require(least >= -30, "group_options.log2_rate", self.log2_rate, "a rate of 2**-30 or more")
        require(
            all(each.kind not in ("schedule", "module use") for each in case.situations),
            "group_options",
            self.log2_rate,
            "none if a schedule or another use changes the groups",
        )
        require(
            all(action.kind != "assign" for action in case.between_steps),
            "between_steps",
            case.between_steps,
            "no 'assign' if groups have options of their own",
        )

    @property
    def words(self) -> str:
        """The options of the second group."""
        return f"group_options=lr*2**{self.log2_rate}" + ("" if self.decays else "+no_decay")

    def simpler(self) -> Iterator["GroupOptions"]:
        """Yield a quarter of the learning rate as the only option that differs."""
        if self != GroupOptions():
            yield GroupOptions()

    def of_second(self, plan: Optimizer) -> Optimizer:
        """Return the optimizer as it is for the second group."""
        decay = plan.weight_decay if self.decays else 0.0
        return replace(plan, log2_lr=max(plan.log2_lr + self.log2_rate, -30), weight_decay=decay)

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw options in one of four cases where the option `grouped` asks for it."""
        taken = any(each.kind in ("schedule", "module use") for each in draft.situations)
        if draft.wanted["grouped"] and draft.one_in(4) and not taken:
            draft.add(cls(draft.choice((-2, -1, -4)), decays=draft.coin()))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the groups of the optimizer, as a coverage table counts them."""
        found = case.get(cls)
        if found is None:
            return {"groups of parameters": "one"}
        return {"groups of parameters": "two rates" if found.decays else "two rates, one decay"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train groups with options of their own."""
        probe = GENTLE.with_situation(cls())
        words = "groups of parameters with options of their own"
        return {"group_options": of_situation(cls, probe, GROUPED, after="schedule", words=words)}
