"""Earlier runs: the same processes train other cases before.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.layers import Layer
from ddp_invariants.cases.plain import from_plain
from ddp_invariants.cases.program import Data
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.cases.situation import Situation
from ddp_invariants.cases.text import describe
from ddp_invariants.situations.draft import Draft

MOST_RUNS = 32
"""The most earlier runs of a case."""


@dataclass(frozen=True)
class EarlierRuns(Situation):
    """Runs of other cases in the same processes, before the run of the case itself.

    Each has process groups and a model of its own, and the world of the case.

    Attributes:
        runs: The other cases, in their order.
    """

    beyond_scripts: ClassVar[str] = "the same processes train several times"
    options: ClassVar[dict[str, Any]] = {"earlier": False}
    moment: ClassVar[str] = "forwards"
    in_whole_steps: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    runs: tuple[TrainingCase, ...]
    kind: Literal["earlier runs"] = "earlier runs"

    def check(self, case: TrainingCase) -> None:
        """Require a few plain runs in the world of the case."""
        count = len(self.runs)
        require(1 <= count <= MOST_RUNS, "earlier runs", count, f"1 to {MOST_RUNS} runs")
        case.require_plain("after earlier runs", poison=case.poison, unused=case.unused)
        for run in case.runs[:-1]:
            run.require_plain("in an earlier run", poison=run.poison, unused=run.unused)
            require(run.get(EarlierRuns) is None, "earlier runs", run, "a run without earlier runs")

    @property
    def words(self) -> str:
        """The number of runs, and the last of them."""
        others = f"{len(self.runs)} runs, the last: " if len(self.runs) > 1 else ""
        return f"after=({others}{describe(self.runs[-1])})"

    def simpler(self) -> Iterator["EarlierRuns"]:
        """Yield fewer runs, and simpler ones."""
        for number, run in enumerate(self.runs):
            before, after = self.runs[:number], self.runs[number + 1 :]
            if before or after:
                yield EarlierRuns((*before, *after))
            for plainer in simpler(run):
                assert isinstance(plainer, TrainingCase)
                yield EarlierRuns((*before, plainer, *after))

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "EarlierRuns":
        """Build the situation from the fields of its JSON form, except for `kind`."""
        runs = tuple(map(from_plain, plain["runs"]))
        return cls(tuple(run for run in runs if isinstance(run, TrainingCase)))

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw one or two runs in every case if the option `earlier` asks for it.

        Their models have other layers than the case's, or other layers of the same sizes, or are
        the same model with other values.
        """
        if not draft.wanted["earlier"]:
            return
        runs = []
        for number in range(draft.choice((1, 1, 2))):
            longer = (*draft.model.layers, draft.square())
            layers = draft.choice(
                (draft.model.layers, longer, (Layer("linear", 3), Layer("linear", 2)))
            )
            runs.append(
                TrainingCase(
                    model=replace(draft.model, layers=layers),
                    world_size=draft.world_size,
                    outside=draft.outside,
                    data=Data(samples=8, batch_size=2),
                    steps=draft.choice((1, 2)),
                    bucket_cap=draft.choice((None, 1, 64)),
                    seed=1 + number,
                )
            )
        draft.add(cls(tuple(runs)))

    def each(self, change: Any) -> "EarlierRuns":
        """Return the situation with every run changed."""
        return replace(self, runs=tuple(map(change, self.runs)))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return whether there are earlier runs, as a coverage table counts it."""
        return {"earlier runs": "none" if case.get(cls) is None else "some"}
