"""A stream of random numbers that all ranks share: the program seeds it alike on each rank.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft

SHARED = "a stream of random numbers that ranks share"
"""The condition of rules that only such cases meet."""


@dataclass(frozen=True)
class SharedStream(Situation):
    """A program that seeds the generators of Python and numpy alike on all ranks after wrapping.

    By numbers of such a stream all ranks make one choice, as of the layers to drop or of the next
    task.
    """

    beyond_scripts: ClassVar[str] = "all ranks share a stream of random numbers"
    options: ClassVar[dict[str, Any]] = {"shared_stream": False}
    moment: ClassVar[str] = "program"
    may_be_left_out: ClassVar[bool] = True
    hides_nothing: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    kind: Literal["shared stream"] = "shared stream"

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw it in one of four cases if the option `shared_stream` asks for it."""
        if draft.wanted["shared_stream"] and draft.one_in(4):
            draft.add(cls())

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return whether ranks share a stream, as a coverage table counts it."""
        return {
            "streams of random numbers": "each rank's own" if case.get(cls) is None else "shared"
        }

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to train so."""
        words = "a program that seeds Python's and numpy's generators alike on all ranks"
        probe = replace(GENTLE, steps=2, situations=(cls(),))
        capability = of_situation(cls, probe, SHARED, after="optimizer_first", words=words)
        return {"shared_stream": capability}
