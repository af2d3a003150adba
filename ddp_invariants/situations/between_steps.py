"""Actions between steps: evaluations, freezing, saving and loading, and others.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import between, require
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import EVALUATIONS, BetweenSteps, BetweenStepsKind
from ddp_invariants.cases.shrink import simpler_each
from ddp_invariants.cases.situation import Situation
from ddp_invariants.errors import CaseError
from ddp_invariants.situations.capability import FOUR, GENTLE, Capability
from ddp_invariants.situations.draft import Draft
from ddp_invariants.situations.unused import UnusedLayers

_FORWARDS = ("forward only", "evaluation with gradients")
"""The actions with a forward that autograd records, and without a backward."""

_HARMLESS: tuple[BetweenStepsKind, ...] = (
    "evaluation",
    "evaluation with gradients",
    "inference",
    "learning rate",
    "decay",
    "save",
)
"""The actions that hide nothing else in a probe.

Others change the parameters or the wrapper, which may repair what an earlier action has broken.
"""

_RENEWING: tuple[BetweenStepsKind, ...] = ("reload", "assign")
"""The actions that make a new optimizer."""

_BESIDE_PRUNED: tuple[BetweenStepsKind, ...] = (
    *(kind for kind in _HARMLESS if kind != "save"),
    *("forward only", "freeze", "unfreeze", "weights", "prune"),
)
"""The actions beside a pruned layer.

Others load or copy the layer, whose tensors have other names then, or write to its mask.
"""

_NEEDED: dict[BetweenStepsKind, str] = {
    "evaluation with gradients": "evaluation_with_gradients",
    "inference": "inference_mode",
    "forward only": "forward_only",
    "learning rate": "learning_rate",
    "reload": "state",
    "save": "state",
    "weights": "weights_written",
    "prune": "pruned",
}
"""The capability that a kind of action needs, for kinds whose capability has another name."""


@dataclass(frozen=True)
class Actions(Situation):
    """The actions of the program on every rank between steps.

    Attributes:
        actions: The actions. Those before the same step happen in this order.
        adds: True if the optimizer lacks the layers that are frozen at the start. When the program
            unfreezes such a layer, it adds the layer's parameters to the optimizer as a group.
    """

    beyond_scripts: ClassVar[str] = "something happens between steps"
    options: ClassVar[dict[str, Any]] = {
        "between_steps": (),
        "written": False,
        "evaluations": False,
    }
    moment: ClassVar[str] = "program"
    part: ClassVar[type] = BetweenSteps

    actions: tuple[BetweenSteps, ...]
    adds: bool = False
    kind: Literal["between steps"] = "between steps"

    def check(self, case: TrainingCase) -> None:
        """Require steps and layers of the case, and something to train at every step."""
        require(bool(self.actions), "between_steps", self.actions, "at least one action")
        for index, action in enumerate(self.actions):
            _check_one(case, f"between_steps[{index}]", action)
        if any(action.freezes for action in self.actions):
            for step in range(case.steps):
                case.at(step)  # Raises if nothing is left to train.
        renewing = [action.kind for action in self.actions if action.kind in _RENEWING]
        require(
            not (self.adds and renewing),
            "between_steps",
            renewing,
            "none of them if groups are added: a new optimizer would not have the groups",
        )
        writing = [action.kind for action in self.actions if action.kind == "weights"]
        require(
            not writing or "reload" not in renewing,
            "between_steps",
            writing,
            "none of them if a state is loaded, which is compared with what the step before left",
        )
        if any(action.kind == "prune" for action in self.actions):
            _check_pruned(case, self.actions)
        require(
            not self.adds or all(each.kind != "group options" for each in case.situations),
            "between_steps",
            self.words,
            "no groups that are added beside groups with options of their own",
        )

    def fitted(self, case: TrainingCase) -> TrainingCase:
        """Return a drawn case with the actions, and without unused layers if these exclude them.

        At a step whose only trained layer is unused, nothing would be trained.
        """
        try:
            return case.with_situation(self)
        except CaseError:  # Nothing else that is drawn excludes the actions.
            return case.without(UnusedLayers).with_situation(self)

    @property
    def joins(self) -> bool:
        """True if no action changes what a later one, or a later step, would show."""
        return all(action.kind in _HARMLESS for action in self.actions)

    def joined(self, other: "Actions") -> "Actions":
        """Return the actions of both, if none changes what another one would show.

        Raises:
            CaseError: One does: a state that is loaded would lack what was written before.
        """
        if not (self.joins and other.joins):
            raise CaseError(f"{self.words} and {other.words} change each other")
        return Actions((*self.actions, *other.actions), adds=self.adds or other.adds)

    def simpler(self) -> Iterator["Actions"]:
        """Yield fewer actions, actions before the second step or the first, and no added groups."""
        for actions in simpler_each(
            self.actions, lambda action: BetweenSteps(action.kind, min(1, action.step))
        ):
            if actions:
                yield replace(self, actions=actions)
        if self.adds:
            yield replace(self, adds=False)

    def without_layer(self, index: int) -> "Actions | None":
        """Return the situation after a layer is removed from the model."""
        actions = tuple(
            replace(action, layer=max(action.layer - (action.layer > index), 0))
            for action in self.actions
            if action.layer != index or not action.freezes
        )
        return replace(self, actions=actions) if actions else None

    def at(self, case: TrainingCase, step: int) -> TrainingCase:
        """Return the case as the actions up to a step leave its model and its optimizer."""
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
                    beta_1=optimizer.beta_1 / (1 if optimizer.kind == "sgd" else 2),
                    weight_decay=optimizer.weight_decay / 2,
                )
        model = replace(case.model, layers=tuple(layers))
        return replace(case.without(Actions), model=model, optimizer=optimizer)

    @classmethod
    def prepare(cls, draft: Draft) -> None:
        """Let a program with actions often accumulate gradients, and leave layers unused."""
        kinds = draft.wanted["between_steps"]
        if kinds:
            # A state saved after unused layers lacks some of the optimizer's tensors.
            unused = draft.one_in(2 if kinds[0] == "reload" else 4)
            draft.wanted |= {"accumulated": True, "unused": unused}
            draft.micro_steps = (1, 1, 2, 3)
        draft.wanted["between_steps"] = tuple(
            kind for kind in kinds if draft.offer.has(_NEEDED.get(kind, kind))
        )

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw actions of the kinds in the option `between_steps`, in every case.

        In one of four cases, the option `written` asks for writing to buffers, and `evaluations`
        asks for an evaluation.
        """
        actions: tuple[BetweenSteps, ...] = ()
        adds = False
        if draft.wanted["between_steps"]:
            # Add a layer to freeze or unfreeze: it is not tied, and other layers are trained. With
            # a bias, several parameters change at once.
            draft.add_layers(draft.square(frozen=draft.coin(), bias=draft.coin()))
            actions = _drawn(draft, draft.wanted["between_steps"])
            lasts = all(action.kind not in _RENEWING for action in actions)
            unfreezes = any(
                action.kind == "unfreeze" and draft.model.layers[action.layer].frozen
                for action in actions
            )
            adds = draft.coin() and draft.offer.has("unfreeze_in_group") and unfreezes and lasts
            if any(action.clears for action in actions):
                draft.clear_gradients()
        if draft.wanted["written"] and draft.offer.has("buffers_written"):
            step = 1 + draft.small() % (draft.steps - 1)
            actions = (BetweenSteps("buffers", step),) if draft.one_in(4) else ()
        if draft.wanted["evaluations"] and not actions:
            offered = [kind for kind in EVALUATIONS if draft.offer.has(_NEEDED.get(kind, kind))]
            if offered and draft.one_in(4):
                actions = (BetweenSteps(draft.choice(offered), draft.any_step()),)
        if actions:
            draft.add(cls(actions, adds=adds))
        if any(action.kind == "copy" for action in actions):
            draft.outside = 0  # A process group cannot be copied.

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the kinds of actions, as a coverage table counts them."""
        return {"between steps": {action.kind for action in case.between_steps} or "nothing"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capabilities to go on training after each kind of action."""
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
        table: dict[str, Capability] = {}
        after = "in_parts"
        for name, (kind, *conditions) in _CAPABILITIES.items():
            table[name] = _capability(kind, conditions, after)
            after = name
            if name == "forward_only":
                table["forward_only_quiet"], after = quiet, "forward_only_quiet"
        saving = {
            "after other options of the optimizer": _saves_new_options,
            "after another save": _saves_twice,
            "after a layer that no rank used": _saves_less_state,
        }
        table["cast"] = replace(table["cast"], varieties={"with gradients": _casts_gradients})
        table["unfreeze_in_group"] = _added()
        return {**table, "state": replace(table["state"], varieties=saving)}


_CAPABILITIES: dict[str, tuple[BetweenStepsKind, *tuple[str, ...]]] = {
    "evaluation": ("evaluation", "an evaluation"),
    "evaluation_with_gradients": ("evaluation with gradients", "an evaluation with gradients"),
    "inference_mode": ("inference", "an evaluation under inference mode"),
    "forward_only": ("forward only", "a forward without a backward"),
    "learning_rate": ("learning rate", "a new learning rate"),
    "decay": ("decay", "less momentum and weight decay"),
    "freeze": ("freeze", "a layer frozen", "frozen for some steps"),
    "unfreeze": ("unfreeze", "a layer unfrozen"),
    "cast": ("cast", "parameters cast and cast back"),
    "copy": ("copy", "a deep copy"),
    "assign": ("assign", "parameters assigned"),
    "state": ("reload", "saved and loaded"),
    "buffers_written": ("buffers", "buffers written to between steps"),
    "weights_written": ("weights", "parameters halved"),
    "pruned": ("prune", "a layer pruned"),
}
"""The capabilities in the order of probing, with their kinds of action and the rules' conditions."""


def _capability(kind: BetweenStepsKind, conditions: list[str], after: str) -> Capability:
    """Return the capability to go on training after a kind of action."""
    layers: tuple[Layer, ...] = (
        *FOUR[:2],
        Layer("linear", 4, frozen=kind == "unfreeze"),
        Layer("linear", 4),
    )
    action = BetweenSteps(kind, 1, 2)
    kinds: tuple[BetweenStepsKind, ...] = ("reload", "save") if kind == "reload" else (kind,)
    if kind == "buffers":
        layers, action = (*FOUR, Layer("statistics")), BetweenSteps("buffers")
    model = Model(4, layers)
    return Capability(
        lambda case: any(action.kind in kinds for action in case.between_steps),
        lambda case: _without(case, *kinds),
        replace(GENTLE, model=model, steps=3, situations=(Actions((action,)),)),
        frozenset(conditions),
        after,
    )


def _adds(case: TrainingCase) -> bool:
    """Return whether the optimizer gets layers only when the program unfreezes them."""
    found = case.get(Actions)
    return found is not None and found.adds


def _added() -> Capability:
    """Return the capability to get a layer's parameters when the program unfreezes the layer."""
    layers = (*FOUR[:2], Layer("linear", 4, frozen=True), Layer("linear", 4))
    unfreezing = Actions((BetweenSteps("unfreeze", 1, 2),), adds=True)
    probe = replace(GENTLE, model=Model(4, layers), steps=3, situations=(unfreezing,))
    return Capability(
        _adds,
        lambda case: case.with_situation(Actions(case.between_steps)),
        probe,
        after="unfreeze",
        words="a group of parameters that the optimizer gets when their layer is unfrozen",
    )


def _saves_new_options(case: TrainingCase) -> bool:
    """Return whether a state is saved after the program changed options of the optimizer."""
    kinds = [action.kind for action in case.between_steps]
    changed = [number for number, kind in enumerate(kinds) if kind in _NEW_OPTIONS]
    return bool(changed) and "reload" in kinds[changed[0] :]


def _saves_twice(case: TrainingCase) -> bool:
    """Return whether a state is saved and loaded after another one was saved."""
    kinds = [action.kind for action in case.between_steps]
    return "save" in kinds and "reload" in kinds[kinds.index("save") :]


def _saves_less_state(case: TrainingCase) -> bool:
    """Return whether a state is saved that lacks tensors of a layer in the model's middle.

    The optimizer keeps tensors for each layer, and no rank has used the layer in some step before.
    """
    last = len(case.model.layers) - 1
    saved = max(
        (action.step for action in case.between_steps if action.kind == "reload"), default=0
    )
    return case.optimizer.stateful and any(
        unused.rank is None and unused.layer < last and (unused.step or 0) < saved
        for unused in case.unused
        if unused.micro_step is None
    )


def _casts_gradients(case: TrainingCase) -> bool:
    """Return whether gradients are cast with the parameters, and used after that."""
    return case.zero_grad != "set_to_none" and any(action.keeps for action in case.between_steps)


_NEW_OPTIONS = ("learning rate", "decay")


def _without(case: TrainingCase, *kinds: str) -> TrainingCase:
    """Return the case without actions of some kinds."""
    found = case.get(Actions) or Actions(())
    actions = tuple(action for action in found.actions if action.kind not in kinds)
    if not actions:
        return case.without(Actions)
    return case.with_situation(replace(found, actions=actions))


def _check_one(case: TrainingCase, where: str, action: BetweenSteps) -> None:
    """Require a step of the case, and on a layer and tensors that the action can change."""
    layers = case.model.layers
    between(f"{where}.step", action.step, _first_step(action.kind), case.steps - 1)
    between(f"{where}.layer", action.layer, 0, len(layers) - 1)
    require(
        not action.clears or case.zero_grad != "never",
        "zero_grad",
        case.zero_grad,
        f"another value, since gradients do not outlive a {action.kind}",
    )
    require(
        action.kind != "assign" or not case.model.shares_tensors,
        f"{where}.kind",
        action.kind,
        "another kind if a tensor has two names: assigning to both makes two tensors",
    )
    require(
        action.kind != "copy" or not case.outside,
        "outside",
        case.outside,
        "0 if a copy is taken: process groups cannot be copied",
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
        "the index of a layer with parameters of its own that is tied to no other layer",
    )


def _check_pruned(case: TrainingCase, actions: tuple[BetweenSteps, ...]) -> None:
    """Require that layers are pruned once each, and that nothing relies on their tensors' names."""
    kinds = {action.kind for action in actions}
    require(
        kinds <= {*_BESIDE_PRUNED},
        "between_steps",
        sorted(kinds),
        "none that loads or copies tensors if a layer is pruned",
    )
    pruned = [action.layer for action in actions if action.kind == "prune"]
    require(len(pruned) == len(set(pruned)), "between_steps", pruned, "each layer pruned once")
    require(
        all(_may_be_pruned(case.model, index) for index in pruned),
        "between_steps",
        pruned,
        "linear layers with a real weight of their own, which is contiguous, and used once a forward",
    )
    require(
        case.passes == "alternate",
        "passes",
        case.passes,
        "alternate if a layer is pruned: each of its forwards computes its weight anew",
    )
    others = {"direct forwards", "second wrapper", "exchanged", "resized"}
    require(
        not others & {each.kind for each in case.situations},
        "situations",
        sorted(each.kind for each in case.situations),
        f"none of {', '.join(sorted(others))} if a layer is pruned",
    )


def _may_be_pruned(model: Model, index: int) -> bool:
    """Return whether pruning a layer without a zero in the mask changes no bit."""
    layer = model.layers[index]
    return (
        layer.kind == "linear"
        and layer.layout == "contiguous"
        and not (layer.complex or layer.twice)
        and layer.checkpoint == "none"
        and layer.tied is None
        and all(each.tied != index for each in model.layers)
    )


def _first_step(kind: BetweenStepsKind) -> int:
    """Return the first step that an action may come before.

    A forward in training mode moves buffers, which are judged as they are when training starts.
    """
    return int(kind not in EVALUATIONS)


def _beside_pruned(actions: list[BetweenSteps]) -> list[BetweenSteps]:
    """Return the actions without those that the first one excludes, if it prunes or another does."""
    if not any(action.kind == "prune" for action in actions):
        return actions
    if actions[0].kind not in _BESIDE_PRUNED:
        return [action for action in actions if action.kind != "prune"]
    pruned = set[int]()
    kept = []
    for action in actions:
        again = action.kind == "prune" and action.layer in pruned
        if action.kind in _BESIDE_PRUNED and not again:
            kept.append(action)
        if action.kind == "prune":
            pruned.add(action.layer)
    return kept


def _drawn(draft: Draft, kinds: tuple[BetweenStepsKind, ...]) -> tuple[BetweenSteps, ...]:
    """Draw actions, and give the case enough steps that a step follows each action."""
    st, layers = draft.st, draft.model.layers
    rows = st.tuples(st.integers(0, 63), st.integers(0, 7), st.integers(0, 7))
    alone = [
        index
        for index, layer in enumerate(layers)
        if layer.tied is None
        and layer.kind in ("linear", "scale")
        and all(second.tied != index for second in layers)
        and index
    ][::-1] or [len(layers) - 1]
    draft.steps = max(draft.steps, 2)
    if draft.model.shares_tensors:
        # `assign` would turn such a tensor into two, one for each of its names.
        kinds = tuple(kind for kind in kinds if kind != "assign") or ("evaluation",)
    actions = []
    for kind_number, step, layer in draft.draw(st.lists(rows, min_size=1, max_size=4)):
        kind = kinds[kind_number % len(kinds)]
        # To unfreeze a layer changes something only if it is frozen.
        places = [place for place in alone if layers[place].frozen] if kind == "unfreeze" else alone
        if kind == "prune":
            places = [place for place in alone if _may_be_pruned(draft.model, place)]
            kind = kind if places else "evaluation"
        places = places or alone
        changed = places[layer % len(places)] if kind in ("freeze", "unfreeze", "prune") else 0
        first = _first_step(kind)
        keeps = kind == "cast" and draft.zero_grad != "set_to_none" and bool(layer % 2)
        at = first + step % (draft.steps - first)
        actions.append(BetweenSteps(kind, at, changed, keeps))
        # Layers may take turns, and then as many parameters are trained as before.
        trained = [place for place in alone if not layers[place].frozen]
        if kind == "unfreeze" and "freeze" in kinds and trained and layer % 2:
            actions.append(BetweenSteps("freeze", at, trained[0]))
    actions = _beside_pruned(actions)
    actions.sort(key=lambda action: action.step)
    if kinds[0] == "reload" and all(action.kind != "reload" for action in actions):
        # Save what the other actions have changed.
        actions.append(BetweenSteps("reload", draft.steps - 1))
    return tuple(actions)
