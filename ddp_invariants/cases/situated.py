"""The fields of a case's situations, each under a name of its own.

Standard library only: the rank side imports this module under any interpreter.
"""

from typing import Any, Literal, TypeVar

from ddp_invariants.cases.program import (
    BetweenSteps,
    Exhausted,
    InjectedFailure,
    LossScale,
    Perturbation,
    Poison,
    Unused,
)
from ddp_invariants.cases.situation import Situation

NoSync = Literal["plain", "nested", "error", "interrupt"]
Passes = Literal["alternate", "joint", "retained"]
Penalised = Literal["inputs", "weights"]
Default = TypeVar("Default")


class Situated:
    """The base of a case with situations: their fields, with defaults where there is none.

    Attributes:
        situations: At most one of each kind.
    """

    situations: tuple[Situation, ...]

    def _of(self, kind: str, field: str, default: Default) -> Default:
        """Return a field of the situation of a kind, or the default where there is none."""
        return next(
            (getattr(each, field) for each in self.situations if each.kind == kind), default
        )

    @property
    def poison(self) -> Poison | None:
        """A value that is not finite, or None."""
        return self._of("poison", "poison", None)

    @property
    def perturbation(self) -> Perturbation:
        """The perturbation of the timing of collectives."""
        return self._of("perturbation", "perturbation", Perturbation())

    @property
    def injected_failure(self) -> InjectedFailure | None:
        """The failure on purpose, or None."""
        return self._of("injected failure", "failure", None)

    @property
    def no_sync(self) -> NoSync:
        """The way in which all micro-steps but the last leave out communication."""
        return self._of("no_sync", "style", "plain")

    @property
    def unused(self) -> tuple[Unused, ...]:
        """The layers that some forwards pass by."""
        return self._of("unused", "layers", ())

    @property
    def evaluated_layer(self) -> int | None:
        """The layer that is in evaluation mode while the others train; None for none."""
        return self._of("evaluated layer", "layer", None)

    @property
    def crossed(self) -> int | None:
        """The rank whose branches are computed in the other order; None for none."""
        return self._of("crossed", "rank", None)

    @property
    def exchanged_by(self) -> int:
        """The number of ranks by which batches move to other ranks; 0 for none."""
        return self._of("exchanged", "by", 0)

    @property
    def passes(self) -> Passes:
        """The order of the forwards and backwards of a step."""
        return self._of("passes", "order", "alternate")

    @property
    def between_steps(self) -> tuple[BetweenSteps, ...]:
        """The actions of the program between steps."""
        return self._of("between steps", "actions", ())

    @property
    def exhausted(self) -> tuple[Exhausted, ...]:
        """The ranks that have batches for some of the steps only."""
        return self._of("exhausted", "ranks", ())

    @property
    def saved_by(self) -> int | None:
        """The number of ranks that saved the state to load; None if no state is loaded."""
        return self._of("resized", "saved_by", None)

    @property
    def earlier(self) -> tuple[Any, ...]:
        """The cases that the same processes run before."""
        return self._of("earlier runs", "runs", ())

    @property
    def penalty(self) -> Penalised | None:
        """What every loss has a penalty on; None for a loss without."""
        return self._of("penalty", "of", None)

    @property
    def clip(self) -> float | None:
        """The largest norm of all gradients together that a step is made with; None for any."""
        return self._of("clipping", "norm", None)

    @property
    def scaler(self) -> LossScale | None:
        """The plan of the loss scaler, or None."""
        return self._of("scaler", "plan", None)

    @property
    def autocast(self) -> bool:
        """True if forwards run under `torch.autocast` to bfloat16."""
        return any(each.kind == "autocast" for each in self.situations)
