"""Uneven inputs: ranks that run out of batches before the other ranks do.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between, require
from ddp_invariants.cases.program import Data, Exhausted
from ddp_invariants.cases.shrink import simpler_each
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft


@dataclass(frozen=True)
class UnevenInputs(Situation):
    """Ranks that have batches for some of the steps only.

    All ranks train within the context that the implementation offers for uneven inputs. These ranks
    are the first to leave it; the others go on.

    Attributes:
        ranks: The ranks, each with the number of steps for which it has batches.
    """

    beyond_scripts: ClassVar[str] = "some ranks run out of batches"
    options: ClassVar[dict[str, Any]] = {"uneven": False}
    moment: ClassVar[str] = "program"
    part: ClassVar[type] = Exhausted

    ranks: tuple[Exhausted, ...]
    kind: Literal["exhausted"] = "exhausted"

    def check(self, case: TrainingCase) -> None:
        """Require ranks and steps of the case, and on little else in it."""
        ranks = [each.rank for each in self.ranks]
        for index, each in enumerate(self.ranks):
            between(f"exhausted[{index}].rank", each.rank, 0, case.world_size - 1)
            between(f"exhausted[{index}].steps", each.steps, 1, case.steps - 1)
        require(
            0 < len(set(ranks)) == len(ranks) < case.world_size,
            "exhausted",
            ranks,
            "different ranks, and not all ranks",
        )
        require(
            case.zero_grad != "never",
            "zero_grad",
            case.zero_grad,
            "another value if a rank runs out of batches",
        )
        case.require_plain("if a rank runs out of batches", passes="alternate", between_steps=())
        require(
            not case.sparse,
            "exhausted",
            ranks,
            "none if a gradient is sparse: a rank without the gradient cannot know its indices",
        )

    def simpler(self) -> Iterator["UnevenInputs"]:
        """Yield fewer ranks, and ranks that have one batch."""
        for ranks in simpler_each(self.ranks, lambda each: Exhausted(each.rank)):
            if ranks:
                yield UnevenInputs(ranks)

    @classmethod
    def prepare(cls, draft: Draft) -> None:
        """Accumulate gradients in every fourth case of the option `uneven`."""
        if draft.wanted["uneven"]:
            draft.micro_steps = (1, 1, 1, 2)

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw ranks in every case of several ranks if the option `uneven` asks for them."""
        if not draft.wanted["uneven"] or draft.world_size == 1:
            return
        # A rank without a batch cannot know the rows of the sparse gradients of other ranks.
        first, *rest = draft.model.layers
        draft.model = replace(draft.model, layers=(replace(first, sparse=False), *rest))
        draft.steps = max(draft.steps, 2)
        row = draft.st.tuples(draft.st.integers(0, 7), draft.st.integers(0, 7))
        rows = draft.draw(draft.st.lists(row, min_size=1, max_size=3))[: draft.world_size - 1]
        ends = {rank % draft.world_size: 1 + step % (draft.steps - 1) for rank, step in rows}
        draft.add(cls(tuple(Exhausted(rank, step) for rank, step in sorted(ends.items()))))
        draft.clear_gradients()

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the number of such ranks, as a coverage table counts it."""
        return {"ranks out of batches": str(len(case.exhausted))}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train on uneven inputs."""
        probe = replace(
            GENTLE,
            steps=3,
            world_size=3,
            data=Data(samples=18, batch_size=2),
            situations=(cls((Exhausted(0, 1), Exhausted(2, 2))),),
        )
        return {
            "join": of_situation(
                cls,
                probe,
                "a rank without batches",
                "two ranks left at different steps",
                after="resized",
            )
        }
