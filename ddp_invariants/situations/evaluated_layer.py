"""A layer in evaluation mode while the rest of the model trains, as frozen BatchNorms are.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between, require
from ddp_invariants.cases.layers import Layer
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability, of_situation
from ddp_invariants.situations.draft import Draft

KEPT_MODE = "a layer's mode kept"
"""The condition of rules that only such cases meet."""
OF_LAYER = "layer's mode"
"""The name of a row of evidence that holds the modes of the module and its layers after a step."""

_SWITCHING = ("evaluation mode", "second wrapper")
"""The situations in which the program switches the mode of the whole module in each step."""


@dataclass(frozen=True)
class EvaluatedLayer(Situation):
    """A layer that the program puts into evaluation mode, while the wrapper stays in training mode.

    Attributes:
        layer: The index of the layer. A BatchNorm then norms by its running statistics, a dropout
            passes its input on, and no forward changes the layer's buffers.
        before: True if the program does so before it wraps the module. Each time the program has put
            the wrapper into training mode, it puts the layer into evaluation mode again.
        since: The step before which the program switches the layer, if not before the wrapping; 0 for
            right after the wrapping. Programs freeze the statistics of BatchNorms so after some epochs.
            Until then the layer trains, and each rank's batches change its buffers differently.
    """

    beyond_scripts: ClassVar[str] = "a layer is in evaluation mode"
    options: ClassVar[dict[str, Any]] = {"evaluated_layer": 64}
    moment: ClassVar[str] = "layers"
    may_be_left_out: ClassVar[bool] = True
    hides_nothing: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    layer: int = 0
    before: bool = False
    since: int = 0
    kind: Literal["evaluated layer"] = "evaluated layer"

    def check(self, case: TrainingCase) -> None:
        """Require a layer and a step of the case, and that nothing switches the layer back."""
        between("evaluated_layer.layer", self.layer, 0, len(case.model.layers) - 1)
        between("evaluated_layer.since", self.since, 0, case.steps - 1)
        drops = case.model.layers[self.layer].of_kind.draws
        require(
            not self.since or not (self.before or drops or case.saved_by or case.accumulation > 1),
            "evaluated_layer.since",
            self.since,
            "0 if the layer is switched before the wrapping, if it draws random numbers, if the run "
            "goes on from a saved state, or if a step has several micro-steps, between which a "
            "wrapper may make the buffers equal",
        )
        require(
            not any(each.kind in _SWITCHING for each in case.situations),
            "evaluated_layer",
            self.layer,
            "null if the whole wrapper is in evaluation mode, or has a second one beside it",
        )

    @property
    def words(self) -> str:
        """The layer, and the moment at which the program switches it."""
        before = ",before=True" if self.before else ""
        since = f",since={self.since}" if self.since else ""
        return f"evaluated_layer=(layer={self.layer}{before}{since})"

    def simpler(self) -> Iterator["EvaluatedLayer"]:
        """Yield the same layer, switched right after wrapping."""
        if self.before or self.since:
            yield replace(self, before=False, since=0)

    def without_layer(self, index: int) -> "EvaluatedLayer | None":
        """Return the situation after a layer is removed from the model."""
        if index == self.layer:
            return None
        return replace(self, layer=self.layer - (self.layer > index))

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw it in one of as many cases as the option `evaluated_layer` says.

        A layer that computes differently in evaluation is chosen if there is one. In every other
        case a dropout is added.
        """
        wanted = draft.one_in(draft.wanted["evaluated_layer"])
        if not (wanted and draft.offer.has("part_mode")):
            return
        if draft.coin() and draft.offer.has("dropout"):
            draft.add_layers(Layer("dropout"), draft.square())
        layers = draft.model.layers
        indices = [number for number, each in enumerate(layers) if _differs(each)]
        indices = indices or [*range(len(layers))]
        index, before, later = indices[draft.small() % len(indices)], draft.coin(), draft.coin()
        since = draft.any_step()
        if later and layers[index].buffers and not layers[index].of_kind.draws:
            draft.add(cls(index, since=since))
        else:
            draft.add(cls(index, before))

    def fitted(self, case: TrainingCase) -> TrainingCase:
        """Return a drawn case in which the layer is switched at a moment that the case allows."""
        fitted: TrainingCase = self.fitted_or_left_out(case)
        if fitted is case:
            fitted = replace(self, since=0).fitted_or_left_out(case)
        return fitted

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the kind of the layer in evaluation, as a coverage table counts it."""
        found = case.get(cls)
        kind = "none" if found is None else case.model.layers[found.layer].kind
        return {"layer in evaluation": kind}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to leave a layer in evaluation mode."""
        probe = replace(GENTLE, situations=(cls(),))
        words = "a layer in evaluation mode while the wrapper is in training mode"
        capability = of_situation(cls, probe, KEPT_MODE, after="param_groups", words=words)
        varieties = {
            "that computes differently then": _computes_differently,
            "since before the wrapping": _is_switched_before,
            "since a later step": _is_switched_later,
        }
        return {"part_mode": replace(capability, varieties=varieties)}


def _differs(layer: Layer) -> bool:
    """Return whether a layer computes differently in evaluation mode."""
    return layer.of_kind.draws or bool(layer.buffers)


def _computes_differently(case: TrainingCase) -> bool:
    """Return whether a layer in evaluation computes differently than in training."""
    found = case.get(EvaluatedLayer)
    return found is not None and _differs(case.model.layers[found.layer])


def _is_switched_before(case: TrainingCase) -> bool:
    """Return whether the program puts a layer into evaluation before it wraps the module."""
    found = case.get(EvaluatedLayer)
    return found is not None and found.before


def _is_switched_later(case: TrainingCase) -> bool:
    """Return whether the program puts a layer into evaluation mode after some steps."""
    found = case.get(EvaluatedLayer)
    return found is not None and found.since > 0
