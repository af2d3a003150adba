"""Injected failures: an exception of the user's own, or the death of a rank.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between, require
from ddp_invariants.cases.levels import Level
from ddp_invariants.cases.program import InjectedFailure, InjectedFailureKind
from ddp_invariants.cases.shrink import simpler_fields
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import BASE, Capability
from ddp_invariants.situations.draft import Draft

_PARAMETERS = (None, None, 1, 0, 2, 3, 5, 8)
"""The parameters to draw from whose gradient's hook raises; None for the middle layer's result."""


@dataclass(frozen=True)
class FailureInjection(Situation):
    """The injection of a failure at one step.

    Attributes:
        failure: The failure and its step.
    """

    options: ClassVar[dict[str, Any]] = {"injected_failures": ()}
    level: ClassVar[Level] = "robust"
    moment: ClassVar[str] = "failures"
    in_whole_steps: ClassVar[bool] = True
    part: ClassVar[type] = InjectedFailure

    failure: InjectedFailure
    kind: Literal["injected failure"] = "injected failure"

    def check(self, case: TrainingCase) -> None:
        """Require a rank and a step of the case; the step after the failure must start clean."""
        failure = self.failure
        between("injected_failure.rank", failure.rank, 0, case.world_size - 1)
        between("injected_failure.step", failure.step, 0, case.steps - 1)
        if failure.kind != "death":
            require(
                case.zero_grad != "never",
                "zero_grad",
                case.zero_grad,
                "another value if a step is run again: the gradients of the first attempt must be cleared",
            )
            require(
                not (case.unused or case.exhausted),
                "injected_failure",
                failure.kind,
                "null if some ranks do not compute every gradient: only the other ranks would raise",
            )
            return
        require(
            case.perturbation.kind == "none",
            "perturbation.kind",
            case.perturbation.kind,
            "'none' if a rank dies: the harness cannot deliver withheld results then",
        )
        require(failure.step > 0, "injected_failure.step", failure.step, "from 1 if a rank dies")
        require(case.rounds == 1, "rounds", case.rounds, "1 if a rank dies")

    def simpler(self) -> Iterator["FailureInjection"]:
        """Yield failures of the same kind with one field at a time set to its default."""
        plainest = InjectedFailure(self.failure.kind)
        yield from (FailureInjection(failure) for failure in simpler_fields(self.failure, plainest))

    def unscripted(self, case: TrainingCase) -> str:
        """Return why no script shows the failure; "" if a script can."""
        if self.failure.kind == "death":
            return "a rank is killed in the middle"
        several = "an exception is caught in a step of several micro-steps"
        return several if case.accumulation > 1 else ""

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw a failure in every case, of the kinds in the option `injected_failures`."""
        kinds: list[InjectedFailureKind] = [
            kind
            for kind in draft.wanted["injected_failures"]
            if kind == "death" or draft.offer.has(kind.replace(" ", "_"))
        ]
        if not kinds:
            return
        kind, step = draft.choice(kinds), draft.small()
        # No rank dies in the first step: an implementation may set something up there, and wait
        # for all ranks without a limit.
        step = step % draft.steps if kind != "death" else 1 + step % max(draft.steps - 1, 1)
        draft.steps = max(draft.steps, step + 1)
        parameter = draft.choice(_PARAMETERS)
        if kind != "backward error":
            parameter = None
        rank, interrupts = draft.any_rank(), draft.one_in(4)
        interrupts = interrupts and kind != "death" and draft.offer.has("interrupts")
        draft.add(cls(InjectedFailure(kind, step, rank, parameter, interrupts)))
        draft.clearings = ("set_to_none", "zero")

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the failure, as a coverage table counts it."""
        failure = case.injected_failure
        if failure is None:
            return {"injected_failure": "none"}
        by_hook = "" if failure.parameter is None else " by a parameter's hook"
        raised = {"interrupting"} if failure.interrupts else set[str]()
        return {"injected_failure": {failure.kind + by_hook, *raised}}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capabilities to go on after an exception."""
        return {
            "forward_error": replace(
                _capability("forward error", "an exception in forward", "one_rank"),
                varieties={"before buffers change again": _fails_before_buffers_change},
            ),
            "backward_error": replace(
                _capability("backward error", "an exception in backward", "forward_error"),
                varieties={
                    "after a layer": lambda case: _raises(case, by_a_hook=False),
                    "at a parameter": lambda case: _raises(case, by_a_hook=True),
                },
            ),
            "interrupts": Capability(
                lambda case: case.injected_failure is not None and case.injected_failure.interrupts,
                _uninterrupted,
                replace(
                    BASE,
                    situations=(cls(InjectedFailure("forward error", interrupts=True)),),
                    steps=3,
                ),
                after="backward_error",
                level=cls.level,
            ),
        }


def _raises(case: TrainingCase, *, by_a_hook: bool) -> bool:
    """Return whether a backward raises, and does so by a parameter's hook or not, as asked."""
    failure = case.injected_failure
    if failure is None or failure.kind != "backward error":
        return False
    return (failure.parameter is not None) == by_a_hook


def _uninterrupted(case: TrainingCase) -> TrainingCase:
    """Return the case with an ordinary exception in place of one that is no `Exception`."""
    failure = case.injected_failure
    assert failure is not None
    return case.with_situation(FailureInjection(replace(failure, interrupts=False)))


def _fails_before_buffers_change(case: TrainingCase) -> bool:
    """Return whether a forward raises, and later forwards change buffers by their batches."""
    failure = case.injected_failure
    return (
        failure is not None
        and failure.kind == "forward error"
        and failure.step + 1 < case.steps
        and any(layer.kind == "statistics" for layer in case.model.layers)
    )


def _capability(kind: InjectedFailureKind, condition: str, after: str) -> Capability:
    """Return a capability to go on after an exception.

    It is probed in the first step: some implementations that refuse a later exception are wrong
    after one in the first step.
    """
    return Capability(
        lambda case: case.injected_failure is not None and case.injected_failure.kind == kind,
        lambda case: case.without(FailureInjection),
        replace(BASE, situations=(FailureInjection(InjectedFailure(kind)),), steps=3),
        frozenset({condition}),
        after,
        level=FailureInjection.level,
    )
