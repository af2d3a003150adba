"""no_sync in unusual ways: nested, or left by an exception.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from ddp_invariants.cases.case import NoSync, TrainingCase
from ddp_invariants.cases.fields import one_of, require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import BASE, Capability
from ddp_invariants.situations.draft import Draft


@dataclass(frozen=True)
class NoSyncStyle(Situation):
    """An unusual way in which all micro-steps except the last avoid communication.

    Attributes:
        style: `nested` enters and leaves a second no_sync within the first, before its backward;
            `error` leaves a no_sync before the last micro-step by an exception of the user's own;
            `interrupt` does so by an exception that is no `Exception`, as `KeyboardInterrupt` is
            none. The program catches either outside.
    """

    beyond_scripts: ClassVar[str] = "a no_sync is nested, or left by an exception"
    moment: ClassVar[str] = "accumulation"

    style: NoSync
    kind: Literal["no_sync"] = "no_sync"

    def check(self, case: TrainingCase) -> None:
        """Require several backwards per step, in turn with forwards."""
        one_of("no_sync", self.style, NoSync)
        require(self.style != "plain", "no_sync", self.style, "'nested', 'error' or 'interrupt'")
        require(
            case.accumulation > 1,
            "no_sync",
            self.style,
            "'plain' if a step has one backward",
        )
        require(
            case.passes == "alternate",
            "no_sync",
            self.style,
            "'plain' if backwards do not alternate with forwards",
        )

    def in_one_backward(self) -> None:
        """Return nothing: steps of one backward have no no_sync."""

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw a style if every case accumulates gradients."""
        if draft.wanted["accumulated"]:
            style: NoSync = draft.choice(("plain", "plain", "nested", "error", "interrupt"))
            if style != "plain":
                draft.add(cls(style))

    def fitted(self, case: TrainingCase) -> TrainingCase:
        """Return a drawn case with the style; unchanged if a step has one backward."""
        return case.with_situation(self) if case.accumulation > 1 else case

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the style, as a coverage table counts it."""
        found = case.get(cls)
        return {"no_sync": "plain" if found is None else found.style}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capabilities to nest a no_sync, and to leave one by each exception."""
        return {
            "no_sync_nested": _capability("nested", "a nested no_sync", "accumulation"),
            "no_sync_error": _capability("error", "an exception inside no_sync", "no_sync_nested"),
            "no_sync_interrupt": _capability(
                "interrupt", "an interruption inside no_sync", "no_sync_error"
            ),
        }


def _capability(style: NoSync, condition: str, after: str) -> Capability:
    """Return the capability of a style."""
    return Capability(
        lambda case: case.no_sync == style,
        lambda case: case.without(NoSyncStyle),
        replace(BASE, accumulation=2, situations=(NoSyncStyle(style),)),
        frozenset({condition}),
        after,
        level="extended" if style == "nested" else "robust",
    )
