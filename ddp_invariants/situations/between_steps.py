"""Actions between steps: evaluations, freezing, saving and loading, and others.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import Situation, TrainingCase, brief
from ddp_invariants.cases.fields import STRICT, between, require
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, BetweenStepsKind
from ddp_invariants.cases.shrink import simpler_each
from ddp_invariants.situations.capability import FOUR, GENTLE, Capability

_FORWARDS = ("forward only", "evaluation with gradients")
"""Actions with a forward that autograd follows and that has no backward."""


@dataclass(frozen=True)
class Actions(Situation):
    """What the program does on every rank between steps.

    Attributes:
        actions: The actions. Those before the same step happen in this order.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    actions: tuple[BetweenSteps, ...]
    kind: Literal["between steps"] = "between steps"

    def check(self, case: TrainingCase) -> None:
        """Insist on steps and layers of the case, and on something to train at every step."""
        require(bool(self.actions), "interludes", self.actions, "at least one action")
        for index, action in enumerate(self.actions):
            _check_one(case, f"interludes[{index}]", action)
        if any(action.freezes for action in self.actions):
            for step in range(case.steps):
                case.at(step)  # The model refuses to have nothing to train.

    @property
    def words(self) -> str:
        """The actions, without what is usual."""
        return f"between_steps={brief(self.actions)}"

    def simpler(self) -> Iterator["Actions"]:
        """Yield fewer actions, and actions before the first possible step."""
        for actions in simpler_each(
            self.actions, lambda action: BetweenSteps(action.kind, min(1, action.step))
        ):
            if actions:
                yield Actions(actions)

    def without_layer(self, index: int) -> "Actions | None":
        """Return the situation once a layer of the model is taken out."""
        actions = tuple(
            replace(action, layer=max(action.layer - (action.layer > index), 0))
            for action in self.actions
            if action.layer != index or not action.freezes
        )
        return Actions(actions) if actions else None

    def at(self, case: TrainingCase, step: int) -> TrainingCase:
        """Return the case with the model and the optimizer as the actions up to a step leave them."""
        layers, optimizer = list(case.model.layers), case.optimizer
        for action in self.actions:
            if action.step > step:
                continue
            if action.freezes:
                frozen = action.kind == "freeze"
                layers[action.layer] = replace(layers[action.layer], frozen=frozen)
            if action.kind == "learning rate":
                optimizer = replace(optimizer, log2_lr=max(optimizer.log2_lr - 2, -30))
            if action.kind == "decay":
                optimizer = replace(
                    optimizer,
                    momentum=optimizer.momentum / 2,
                    weight_decay=optimizer.weight_decay / 2,
                )
        model = replace(case.model, layers=tuple(layers))
        return replace(case.without(Actions), model=model, optimizer=optimizer)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Actions":
        """Build the situation from the fields of its JSON form."""
        return cls(tuple(BetweenSteps(**action) for action in plain["actions"]))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the kinds of actions, as a coverage table counts them."""
        return {"between steps": {action.kind for action in case.between_steps} or "nothing"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capabilities to bear each kind of action."""
        quiet = Capability(
            lambda case: (
                case.accumulation > 1
                and case.passes == "alternate"
                and any(action.kind in _FORWARDS for action in case.between_steps)
            ),
            lambda case: _without(case, *_FORWARDS),
            replace(GENTLE, accumulation=2, situations=(Actions((BetweenSteps("forward only"),)),)),
            after="forward_only",
        )
        found: dict[str, Capability] = {}
        after = "in_parts"
        for name, (kind, *situations) in _CAPABILITIES.items():
            found[name] = _capability(kind, situations, after)
            after = name
            if name == "forward_only":
                found["forward_only_quiet"], after = quiet, "forward_only_quiet"
        return found


_CAPABILITIES: dict[str, tuple[BetweenStepsKind, *tuple[str, ...]]] = {
    "evaluation": ("evaluation", "an evaluation"),
    "evaluation_with_gradients": ("evaluation with gradients", "an evaluation with gradients"),
    "forward_only": ("forward only", "a forward without a backward"),
    "learning_rate": ("learning rate", "a new learning rate"),
    "decay": ("decay", "less momentum and weight decay"),
    "freeze": ("freeze", "a layer frozen", "frozen for a while"),
    "unfreeze": ("unfreeze", "a layer trained from then on"),
    "cast": ("cast", "parameters cast and cast back"),
    "copy": ("copy", "a deep copy"),
    "assign": ("assign", "parameters assigned"),
    "state": ("reload", "saved and loaded"),
    "buffers_written": ("buffers", "buffers written to between steps"),
}
"""Capabilities in the order in which they are probed: the kind of action, and the situations of rules."""


def _capability(kind: BetweenStepsKind, situations: list[str], after: str) -> Capability:
    """Return the capability to bear a kind of action."""
    layers: tuple[Layer, ...] = (
        *FOUR[:2],
        Layer("linear", 4, frozen=kind == "unfreeze"),
        Layer("linear", 4),
    )
    action = BetweenSteps(kind, 1, 2)
    if kind == "buffers":
        layers, action = (*FOUR, Layer("statistics")), BetweenSteps("buffers")
    model = Model(4, layers)
    return Capability(
        lambda case: any(action.kind == kind for action in case.between_steps),
        lambda case: _without(case, kind),
        replace(GENTLE, model=model, steps=3, situations=(Actions((action,)),)),
        frozenset(situations),
        after,
    )


def _without(case: TrainingCase, *kinds: str) -> TrainingCase:
    """Return the case without actions of some kinds."""
    actions = tuple(action for action in case.between_steps if action.kind not in kinds)
    return case.with_situation(Actions(actions)) if actions else case.without(Actions)


def _check_one(case: TrainingCase, where: str, action: BetweenSteps) -> None:
    """Insist on a step of the case, and on a layer and tensors that the action can change."""
    layers = case.model.layers
    between(f"{where}.step", action.step, 1, case.steps - 1)
    between(f"{where}.layer", action.layer, 0, len(layers) - 1)
    require(
        not action.clears or case.zero_grad != "never",
        "zero_grad",
        case.zero_grad,
        f"another where gradients do not outlive a {action.kind}",
    )
    require(
        action.kind != "assign" or all(layer.tied is None for layer in layers),
        f"{where}.kind",
        action.kind,
        "another where layers are tied: what is assigned to two names is two tensors",
    )
    require(
        action.kind != "copy" or not case.outside,
        "outside",
        case.outside,
        "0 where a copy is taken: process groups have none",
    )
    require(
        not action.freezes
        or (
            bool(layers[action.layer].parameters)
            and layers[action.layer].tied is None
            and all(layer.tied != action.layer for layer in layers)
        ),
        f"{where}.layer",
        action.layer,
        "the index of a layer with parameters of its own, which is tied to none",
    )
