"""MOD: a wrapped module is still a module, for hooks, names, modes, copies and states."""

from itertools import zip_longest

from ddp_invariants.invariants.draws import Draws
from ddp_invariants.invariants.exclusions import BY_ITSELF, lacks
from ddp_invariants.invariants.rule import MovedAfter, NotAbout, Script, Tally, Unjudged
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.evaluated_layer import KEPT_MODE, OF_LAYER, EvaluatedLayer
from ddp_invariants.situations.module_use import (
    COPIED_GRADIENTS,
    COPIES,
    HOOKS,
    MODES,
    NAMES,
    STATES,
    WRAPPER_COPIES,
    ModuleUse,
)

_SOURCE = (
    "torch.nn.Module in torch's documentation: hooks, names, modes, copies and states of a module"
)
_DRAWS = Draws(least_steps=2, module_uses=True, evaluations=True, evaluated_layer=2)
SWITCHED = "training changes the mode of a layer"
"""The fact of failures that explain other losses and buffers."""
_SCRIPT = Script(beyond=ModuleUse.beyond_scripts)


@training.rule(
    "MOD-1",
    "Hooks on the module and its children fire as often as without the wrapper, in the same order "
    "and with the same shapes.",
    needs=(HOOKS,),
    source=_SOURCE,
    applies="capability",
    draws=_DRAWS,
    excluded=(BY_ITSELF, lacks("supports no hooks on modules", "module_hooks")),
    after="CALL-4",
    costs=3,
    script=_SCRIPT,
)
def hooks_fire_as_unwrapped(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare the events of hooks on the replica with those on its twin, step by step."""
    return _used_alike(
        view, tally, "MOD-1", {"hooks": (HOOKS, "a hook does not fire as unwrapped")}
    )


@training.rule(
    "MOD-2",
    "The wrapper lists parameters, buffers and state by the module's names, up to one prefix, and "
    "its train(), eval() and apply() reach the module and all its children, and return no other "
    "module. Training changes the mode of none of them.",
    needs=(NAMES, MODES),
    source=_SOURCE,
    applies="capability",
    draws=_DRAWS,
    excluded=(
        BY_ITSELF,
        lacks("is no module with names and modes", "module_names", "module_modes"),
    ),
    after="MOD-1",
    # A layer in another mode computes other losses and moves other buffers.
    moved_after=MovedAfter("INIT-4", lambda failure: failure.fact == SWITCHED),
    costs=3,
    script=_SCRIPT,
)
def names_and_modes_are_the_modules(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare the wrapper's lists, its switches and what they return with the unwrapped twin's."""
    otherwise = "the wrapper does not act as the module"
    uses = {
        "names": (NAMES, otherwise),
        "modes": (MODES, otherwise),
        OF_LAYER: (KEPT_MODE, SWITCHED),
    }
    return _used_alike(view, tally, "MOD-2", uses)


@training.rule(
    "MOD-3",
    "A deep copy of the wrapped module or of its wrapper is independent of it: neither altering nor "
    "training the copy changes the module's parameters, buffers or gradients. If the wrapper "
    "has `__deepcopy__`, the copy's gradients are equal on all ranks, too.",
    needs=(COPIES, WRAPPER_COPIES),
    source=_SOURCE,
    applies="capability",
    draws=_DRAWS,
    excluded=(
        BY_ITSELF,
        lacks("supports no deep copy of its module", "module_copies", "wrapper_copies"),
    ),
    after="MOD-2",
    needs_all=True,
    costs=3,
    script=_SCRIPT,
)
def copies_are_independent(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare what a copy's training does to the module with what it does to the twin."""
    fact = "a deep copy is not independent of the module"
    uses = {"copies": (COPIES, fact), "wrapper copies": (WRAPPER_COPIES, fact)}
    return _used_alike(view, tally, "MOD-3", uses) or _copies_agree(view, tally)


@training.rule(
    "MOD-4",
    "After a state is loaded into the wrapper, the wrapper saves the parameters of that state, bitwise.",
    needs=(STATES,),
    source=_SOURCE,
    applies="capability",
    draws=_DRAWS,
    excluded=(BY_ITSELF, lacks("cannot load another state", "states_exchanged")),
    after="MOD-3",
    costs=3,
    script=_SCRIPT,
)
def a_loaded_state_is_the_state(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare the parameters that the wrapper saves with those that were loaded into it.

    Its own state is loaded back in the end, so other rules judge the later steps as ever.
    """
    fact = "the wrapper saves other parameters than were loaded"
    return _used_alike(view, tally, "MOD-4", {"states": (STATES, fact)})


def _copies_agree(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare the gradients of each rank's copy of the wrapper with those of rank 0's copy.

    Raises:
        Unjudged: Only some ranks recorded such gradients.
    """
    gradients_W = [
        use.got for each in view.evidence.ranks for use in each.uses if use.use == COPIED_GRADIENTS
    ]
    if not gradients_W:
        return None
    if len(gradients_W) < view.case.world_size:
        raise Unjudged(view.cut_short or "only some ranks recorded the gradients of a copy")
    tally.compared += sum(map(len, gradients_W))
    for rank, gradients in enumerate(gradients_W):
        if gradients != gradients_W[0]:
            where = f"rank {rank} of {view.case.world_size}, step 1"
            return Failure(
                "MOD-3",
                "the gradients of a deep copy of the wrapper differ between ranks",
                where,
                _first_difference(gradients, gradients_W[0]),
            )
    return None


def _used_alike(
    view: EvidenceView, tally: Tally, rule: str, uses: dict[str, tuple[str, str]]
) -> Failure | None:
    """Compare the events of some uses of the module with those of its twin.

    Args:
        view: The evidence.
        tally: The counts.
        rule: The rule.
        uses: The uses, each with the condition that it meets and the fact of a failure.
    """
    found, kept = view.case.get(ModuleUse), view.case.get(EvaluatedLayer)
    made = {*(() if found is None else found.uses), *(() if kept is None else (OF_LAYER,))}
    if not made & uses.keys():
        raise NotAbout("the program uses the module only for training")
    for rank, evidence in enumerate(view.evidence.ranks):
        for use in evidence.uses:
            if use.use not in uses:
                continue
            tally.compared += 1
            condition, fact = uses[use.use]
            tally.met.add(condition)
            if use.got != use.expected:
                where = f"rank {rank} of {view.case.world_size}, step {use.step}"
                return Failure(rule, fact, where, _first_difference(use.got, use.expected))
    if not tally.compared:
        raise Unjudged(view.cut_short or "no use of the module was recorded")
    return None


def _first_difference(got: list[str], expected: list[str]) -> str:
    """Return the first event that differs, in words."""
    number, (one, other) = next(
        (number, pair)
        for number, pair in enumerate(zip_longest(got, expected, fillvalue="nothing more"))
        if pair[0] != pair[1]
    )
    return f"event {number}: {one}; expected: {other} ({len(got)} of {len(expected)} events)"
