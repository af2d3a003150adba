"""Groups of parameters whose options in the optimizer differ.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between, require
from ddp_invariants.cases.program import Optimizer
from ddp_invariants.cases.shrink import simpler_fields
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
        log2_later: Binary logarithm of another factor on it from the second step on, as of a schedule
            for this group alone.
        decays: False if the second group has no weight decay.
    """

    beyond_scripts: ClassVar[str] = "groups of parameters have options of their own"
    options: ClassVar[dict[str, Any]] = {"grouped": False}
    moment: ClassVar[str] = "forwards"
    hides_nothing: ClassVar[bool] = True

    log2_rate: int = -2
    log2_later: int = 0
    decays: bool = True
    kind: Literal["group options"] = "group options"

    def check(self, case: TrainingCase) -> None:
        """Require a learning rate in range, and an optimizer that nothing else regroups."""
        between("group_options.log2_rate", self.log2_rate, -8, -1)
        between("group_options.log2_later", self.log2_later, -8, 0)
        least = case.optimizer.log2_lr + self.log2_rate + self.log2_later
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
        later = f",{self.log2_rate + self.log2_later}" if self.log2_later else ""
        return f"group_options=lr*2**{self.log2_rate}{later}" + ("" if self.decays else "+no_decay")

    def simpler(self) -> Iterator["GroupOptions"]:
        """Yield a quarter of the learning rate as the only option that differs."""
        yield from simpler_fields(self, GroupOptions())

    def of_second(self, plan: Optimizer, step: int = 0) -> Optimizer:
        """Return the optimizer as it is for the second group at a step."""
        decay = plan.weight_decay if self.decays else 0.0
        log2_lr = plan.log2_lr + self.log2_rate + (self.log2_later if step else 0)
        return replace(plan, log2_lr=max(log2_lr, -30), weight_decay=decay)

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw options in one of four cases where the option `grouped` asks for it."""
        taken = any(each.kind in ("schedule", "module use") for each in draft.situations)
        if draft.wanted["grouped"] and draft.one_in(4) and not taken:
            rate, later = draft.choice((-2, -1, -4)), draft.choice((0, -2))
            draft.add(cls(rate, later, decays=draft.coin()))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the groups of the optimizer, as a coverage table counts them."""
        found = case.get(cls)
        if found is None:
            return {"groups of parameters": "one"}
        rates = "two rates, one of them scheduled" if found.log2_later else "two rates"
        return {"groups of parameters": rates if found.decays else f"{rates}, one decay"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train groups with options of their own."""
        probe = GENTLE.with_situation(cls(log2_later=-2))
        words = "groups of parameters with options of their own"
        return {"group_options": of_situation(cls, probe, GROUPED, after="schedule", words=words)}
