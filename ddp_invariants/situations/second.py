"""A second wrapper: the program wraps and trains another model, or wraps the same model again.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import one_of, require
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import FOUR, GENTLE, Capability
from ddp_invariants.situations.draft import Draft

Second = Literal[
    "unused",
    "in turn",
    "inside",
    "crossed",
    "joint",
    "paused",
    "before",
    "smaller",
    "again",
    "kept",
    "dropped",
]

BESIDE: tuple[Second, ...] = ("in turn", "inside", "crossed", "joint", "paused")
"""The uses of a second wrapper whose model is trained in the same steps."""
SAME: tuple[Second, ...] = ("again", "kept", "dropped")
"""The uses in which both wrappers have the same module, one after the other."""


@dataclass(frozen=True)
class SecondWrapper(Situation):
    """A second wrapper in the same program.

    Attributes:
        use: `unused`: another model is wrapped as well, and never called. `in turn`: another model
            makes a step before each step. `inside`: another model makes its step between a forward
            and its backward. `crossed`: both forwards come before both backwards, which come in the
            same order. `joint`: one backward of the sum of both losses, or both backwards of two
            engines. `paused`: another model makes a step before each step, and the whole step runs
            inside the `no_sync` of that model's wrapper, as that of a discriminator whose gradients
            nobody needs. `before`: another model was trained before, and its wrapper is deleted.
            `smaller`: all ranks but the last have wrapped another model over a group of their own
            before. `again`: the same model was wrapped and trained for a step, and has its first
            values again; that wrapper is deleted. `kept`: the same, and that wrapper still exists.
            `dropped`: the same, and it is deleted only once the model is wrapped again, as if both
            have one name in the program.
        alike: True if the other model has the same layers as the case's. Then names, shapes and
            sizes do not tell the two models apart.
    """

    beyond_scripts: ClassVar[str] = "the program has a second wrapper"
    options: ClassVar[dict[str, Any]] = {"second": False}
    moment: ClassVar[str] = "program"
    in_earlier_run: ClassVar[bool] = False

    use: Second
    alike: bool = False
    kind: Literal["second wrapper"] = "second wrapper"

    def check(self, case: TrainingCase) -> None:
        """Require plain steps, with which those of another model can be interleaved."""
        one_of("second wrapper", self.use, Second)
        require(
            not self.alike or (self.use in BESIDE and _is_plain(case.model)),
            "second wrapper.alike",
            self.alike,
            "false if no other model is trained in the same steps, or if the case's model has "
            "buffers or draws random numbers",
        )
        require(
            case.accumulation == 1, "accumulation", case.accumulation, "1 beside a second model"
        )
        case.require_plain(
            "beside a second wrapper",
            passes="alternate",
            exhausted=(),
            saved_by=None,
            scaler=None,
            penalty=None,
            autocast=False,
        )
        require(
            self.use != "smaller" or (case.world_size > 1 and not case.outside),
            "second wrapper",
            self.use,
            "another use if there is one rank, or if some ranks train nothing",
        )
        require(
            not case.in_parts,
            "checkpoint",
            "reentrant",
            "another checkpoint beside a second wrapper",
        )
        require(
            not any(action.kind == "reload" for action in case.between_steps),
            "between_steps",
            case.between_steps,
            "no 'reload' beside a second wrapper",
        )

    def simpler(self) -> Iterator["SecondWrapper"]:
        """Yield the plainest use of another model, or of the same one."""
        if self.alike:
            yield SecondWrapper(self.use)
        plainest: Second = "again" if self.use in SAME else "in turn"
        if self.use not in (plainest, "unused", "before"):
            yield SecondWrapper(plainest)

    def other(self, case: TrainingCase) -> TrainingCase:
        """Return the training of the other model, as a case of its own."""
        plan = case.optimizer
        return replace(
            case,
            model=case.model if self.alike else _OTHER,
            data=Data(samples=2 * case.world_size * case.steps, batch_size=2),
            optimizer=replace(plan, log2_lr=min(plan.log2_lr, -8)),
            values="real",
            log2_scale=0,
            zero_grad="set_to_none",
            situations=(),
            rounds=1,
            seed=case.seed ^ 1,
        )

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw a second wrapper in every case if the option `second` asks for it."""
        if not draft.wanted["second"]:
            return
        uses = [use for use in _USES if draft.offer.has(_CAPABILITIES[use])]
        if uses:
            draft.accumulation = 1
            use = draft.choice(uses)
            if use == "smaller":
                draft.world_size, draft.outside = max(2, draft.world_size), 0
                draft.data = replace(draft.data, samples=max(draft.world_size, draft.data.samples))
            alike = use in BESIDE and _is_plain(draft.model) and draft.one_in(3)
            draft.add(cls(use, alike))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the use of a second wrapper, as a coverage table counts it."""
        second = case.get(cls)
        if second is None:
            return {"second wrapper": "none"}
        return {"second wrapper": {second.use, *(("alike",) if second.alike else ())}}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capabilities to run beside another wrapper, and after one of the same model."""
        return {
            "beside": _capability("crossed", BESIDE, "decay", "another wrapper in the same steps"),
            "wrapped_again": _capability(
                "again", SAME, "beside", "a model that was wrapped before"
            ),
            "smaller_before": _capability(
                "smaller", ("smaller",), "wrapped_again", "another wrapper over some of the ranks"
            ),
        }


_OTHER = Model(2, (Layer("linear", 3), Layer("linear", 2), Layer("linear", 2), Layer("linear", 1)))
"""The model that the second wrapper trains."""
_USES: tuple[Second, ...] = (
    "in turn",
    "inside",
    "crossed",
    "joint",
    "paused",
    "again",
    "kept",
    "dropped",
    "unused",
    "before",
    "smaller",
)
_CAPABILITIES: dict[Second, str] = {
    **dict.fromkeys(_USES, "beside"),
    **dict.fromkeys(SAME, "wrapped_again"),
    "smaller": "smaller_before",
}


def _is_plain(model: Model) -> bool:
    """Return whether a model has no buffers, and draws no random numbers.

    Draws of the other model would move the random generator between those of the case's model.
    """
    return not any(layer.buffers or layer.of_kind.draws for layer in model.layers)


_WRAPPED_TWICE: dict[Second, str] = {
    "again": "a model wrapped again once its wrapper is deleted",
    "kept": "a model wrapped again beside its first wrapper",
    "dropped": "a model wrapped again before its first wrapper is deleted",
}


def condition(use: Second) -> str:
    """Return the condition of a rule that a case with a use meets."""
    if use in SAME:
        return _WRAPPED_TWICE[use]
    if use in BESIDE:
        return "two wrappers in the same steps"
    return "a second wrapper, not used in the same steps"


def _capability(use: Second, uses: tuple[Second, ...], after: str, words: str) -> Capability:
    """Return the capability of the uses that the same probe shows."""
    mine = {_CAPABILITIES[each] for each in uses}
    probe = replace(GENTLE, model=Model(4, FOUR[:2]), steps=3, situations=(SecondWrapper(use),))
    return Capability(
        lambda case: (
            (second := case.get(SecondWrapper)) is not None and _CAPABILITIES[second.use] in mine
        ),
        lambda case: case.without(SecondWrapper),
        probe,
        frozenset({condition(each) for each in _USES if _CAPABILITIES[each] in mine}),
        after,
        words,
        {each: partial(_is_used, each) for each in _USES if _CAPABILITIES[each] in mine},
    )


def _is_used(use: Second, case: TrainingCase) -> bool:
    second = case.get(SecondWrapper)
    return second is not None and second.use == use
