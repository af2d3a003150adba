"""Uses of the wrapped module that a program makes besides training it.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import one_of, require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.errors import CaseError
from ddp_invariants.situations.capability import GENTLE, Capability
from ddp_invariants.situations.draft import Draft
from ddp_invariants.situations.own_buffers import OwnBuffers
from ddp_invariants.situations.schedule import RateSchedule
from ddp_invariants.situations.second import SecondWrapper

Use = Literal["names", "modes", "hooks", "copies", "wrapper copies", "groups", "states"]
_LATER: tuple[Use, ...] = ("copies", "wrapper copies", "states")
"""The uses that happen before the second step."""
_LEFT_OUT: tuple[tuple[Use, ...], ...] = (
    ("states",),
    ("wrapper copies",),
    ("wrapper copies", "states"),
    ("copies", "wrapper copies"),
)
"""Of these, those that not every case of several steps may have."""


@dataclass(frozen=True)
class ModuleUse(Situation):
    """Uses of the module, its wrapper or its optimizer, none of which changes a number.

    Attributes:
        uses: `names` lists the wrapper's parameters, buffers and state; `modes` switches it to
            evaluation and back, and applies a function to all modules; `hooks` registers hooks for
            forwards and backwards on the module and its children before it is wrapped; `copies`
            alters and trains a deep copy of the module before the second step; `wrapper copies`
            trains a deep copy of the wrapper for a step, while the wrapper's gradients of the first
            step still exist; `groups` adds a group with half of the parameters to the optimizer;
            `states` loads zeros for the parameters before the second step, as a program loads averaged
            weights to evaluate them, and then loads the wrapper's own state back.
    """

    beyond_scripts: ClassVar[str] = "the program uses the module besides training it"
    options: ClassVar[dict[str, Any]] = {"module_uses": False}
    moment: ClassVar[str] = "forwards"
    hides_nothing: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    uses: tuple[Use, ...]
    kind: Literal["module use"] = "module use"

    def check(self, case: TrainingCase) -> None:
        """Require uses, and training in which the twin repeats every forward."""
        require(bool(self.uses), "module_use", self.uses, "at least one use")
        require(
            list(self.uses) == [use for use in get_args(Use) if use in self.uses],
            "module_use",
            self.uses,
            "each use once, in the order of " + ", ".join(get_args(Use)),
        )
        for use in self.uses:
            one_of("module_use", use, Use)
        require(
            case.passes != "retained" and case.injected_failure is None,
            "module_use",
            self.uses,
            "none if a forward is not repeated, or fails",
        )
        require(
            "groups" not in self.uses or (not case.between_steps and case.saved_by is None),
            "module_use",
            self.uses,
            "no 'groups' if another optimizer loads a state",
        )
        require(
            "wrapper copies" not in self.uses or not case.model.has("loss_only"),
            "module_use",
            self.uses,
            "no 'wrapper copies' if a layer is used by the loss only: a copy has another loss",
        )
        require(
            not {*_LATER} & {*self.uses} or case.steps > 1,
            "module_use",
            self.uses,
            "no copies and no 'states' in a single step",
        )
        copied = not {"copies", "wrapper copies"}.isdisjoint(self.uses)
        require(
            not (copied and case.outside),
            "module_use",
            self.uses,
            "no copies if the process group is not the default one: the module's hooks may hold it, "
            "and no process group can be copied",
        )
        require(
            not (copied and any(action.kind == "prune" for action in case.between_steps)),
            "module_use",
            self.uses,
            "no copies if a layer is pruned: its weight is computed, and torch copies only leaves of "
            "a graph",
        )
        require(
            "wrapper copies" not in self.uses
            or not (case.exhausted or case.poison or case.get(SecondWrapper)),
            "module_use",
            self.uses,
            "no 'wrapper copies' if a rank runs out of batches, if a gradient is not finite, or beside "
            "a second wrapper",
        )
        require(
            "states" not in self.uses or not (case.exhausted or case.get(OwnBuffers)),
            "module_use",
            self.uses,
            "no 'states' if a rank runs out of batches, or keeps its own buffers: loading may "
            "communicate, and may broadcast buffers",
        )

    def joined(self, other: "ModuleUse") -> "ModuleUse":
        """Return the uses of both."""
        uses = {*self.uses, *other.uses}
        return ModuleUse(tuple(use for use in get_args(Use) if use in uses))

    def simpler(self) -> Iterator["ModuleUse"]:
        """Yield each use alone."""
        if len(self.uses) > 1:
            yield from (ModuleUse((use,)) for use in self.uses)

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw some uses in every case if the option `module_uses` asks for them."""
        if not draft.wanted["module_uses"]:
            return
        drawn = draft.draw(draft.st.sets(draft.st.sampled_from(get_args(Use)), min_size=1))
        scheduled = draft.coin()
        draft.add(cls(tuple(use for use in get_args(Use) if use in drawn)))
        if "groups" in drawn and scheduled and not draft.wanted["between_steps"]:
            # A group that is added later must follow a new learning rate, too.
            draft.add(RateSchedule((0, -3)))

    def fitted(self, case: TrainingCase) -> TrainingCase:
        """Return a drawn case with the uses that can happen in it."""
        fewer: tuple[tuple[Use, ...], ...] = ((), *_LEFT_OUT, _LATER)
        others: tuple[tuple[Use, ...], ...] = ((), ("groups",))
        for dropped in ((*first, *second) for second in others for first in fewer):
            uses = tuple(use for use in self.uses if use not in dropped)
            try:
                return case.with_situation(ModuleUse(uses))
            except CaseError:
                continue
        return case

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the uses, as a coverage table counts them."""
        use = case.get(cls)
        return {"uses of the module": "none" if use is None else set(use.uses)}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to offer each use."""
        table: dict[str, Capability] = {}
        after = "parameter_outputs"
        for use, (name, conditions, words) in _CAPABILITIES.items():
            table[name] = _capability(use, conditions, after, words)
            after = name
        return table


NAMES, MODES, HOOKS, COPIES, WRAPPER_COPIES, STATES = (
    "names listed",
    "modes switched",
    "hooks on modules",
    "a deep copy trained",
    "a deep copy of the wrapper trained",
    "another state loaded",
)
COPIED_GRADIENTS = "gradients of a copy"
"""The name of a row of evidence that holds the gradients of a wrapper's copy."""

_CAPABILITIES: dict[Use, tuple[str, tuple[str, ...], str]] = {
    "names": (
        "module_names",
        (NAMES,),
        "a wrapper that lists the names of parameters, buffers and state as the module does",
    ),
    "modes": (
        "module_modes",
        (MODES,),
        "a wrapper that passes train(), eval() and apply() on to the module",
    ),
    "hooks": ("module_hooks", (HOOKS,), "hooks on the module and its children"),
    "copies": ("module_copies", (COPIES,), "a deep copy of the module that is trained by itself"),
    "wrapper copies": (
        "wrapper_copies",
        (WRAPPER_COPIES,),
        "a deep copy of the wrapper that is trained beside it",
    ),
    "groups": ("param_groups", (), "a group of parameters added to the optimizer"),
    "states": (
        "states_exchanged",
        (STATES,),
        "other parameters that are loaded into the wrapper, before its own state is loaded back",
    ),
}
"""By use: its capability, the rules' conditions, and its meaning."""

CAPABILITIES = tuple(name for name, _, _ in _CAPABILITIES.values())
"""The names of the capabilities."""


def _capability(use: Use, conditions: tuple[str, ...], after: str, words: str) -> Capability:
    """Return the capability to offer a use."""

    def present(case: TrainingCase) -> bool:
        module_use = case.get(ModuleUse)
        return module_use is not None and use in module_use.uses

    def removed(case: TrainingCase) -> TrainingCase:
        module_use = case.get(ModuleUse)
        kept = () if module_use is None else tuple(each for each in module_use.uses if each != use)
        return case.with_situation(ModuleUse(kept)) if kept else case.without(ModuleUse)

    probe = replace(GENTLE, situations=(ModuleUse((use,)),))
    return Capability(present, removed, probe, frozenset(conditions), after, words)
