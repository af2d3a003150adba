"""Batches that the ranks exchange: each rank computes the batch that another would compute.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between
from ddp_invariants.cases.levels import Level
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.draft import Draft

EXCHANGED = "batches exchanged between ranks"
"""The condition of rules that only such cases meet."""


@dataclass(frozen=True)
class Exchanged(Situation):
    """A run in which rank r computes the batches of rank r + by, counted modulo the world size.

    The global batch is the same.

    Attributes:
        by: The number of ranks by which batches move.
    """

    level: ClassVar[Level] = "core"
    options: ClassVar[dict[str, Any]] = {"exchanged": False}
    moment: ClassVar[str] = "program"
    in_whole_steps: ClassVar[bool] = True
    hides_nothing: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    by: int
    kind: Literal["exchanged"] = "exchanged"

    def check(self, case: TrainingCase) -> None:
        """Require another rank."""
        between("exchanged", self.by, 1, case.world_size - 1)

    def simpler(self) -> Iterator["Exchanged"]:
        """Yield the exchange between neighbours."""
        if self.by > 1:
            yield Exchanged(1)

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw it in every case of several ranks if the option `exchanged` asks for it."""
        if draft.wanted["exchanged"] and draft.world_size > 1:
            draft.add(cls(1 + draft.small() % (draft.world_size - 1)))

    def fitted(self, case: TrainingCase) -> TrainingCase:
        """Return the case with small integers, whose mean is exact, if it has several ranks."""
        fitted: TrainingCase = self.fitted_or_left_out(replace(case, values="integer"))
        return fitted

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return whose batches the ranks compute, as a coverage table counts it."""
        return {"batches of": "the rank" if case.get(cls) is None else "another rank"}
