"""Unused layers: forwards that pass layers by, so that their parameters get no gradient.

Standard library only: the rank side imports this module under any interpreter.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.dtypes import LOW_PRECISION
from ddp_invariants.cases.fields import between, require
from ddp_invariants.cases.layers import PASSING, Layer, Layout, Model
from ddp_invariants.cases.program import Unused
from ddp_invariants.cases.shrink import simpler_each
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import BASE, Capability, of_situation
from ddp_invariants.situations.draft import Draft


@dataclass(frozen=True)
class UnusedLayers(Situation):
    """Layers that some forwards pass by. In every step a rank trains a parameter with elements.

    A rank that passes all trained layers by has a loss that reaches no parameter. All inputs of
    such a case require a gradient, so that backward can run.

    Attributes:
        layers: The layers, each with the forwards that pass it by.
    """

    options: ClassVar[dict[str, Any]] = {"unused": False}
    moment: ClassVar[str] = "layers"
    part: ClassVar[type] = Unused

    layers: tuple[Unused, ...]
    kind: Literal["unused"] = "unused"

    def check(self, case: TrainingCase) -> None:
        """Require layers that can be passed by, and that leave something to train."""
        require(bool(self.layers), "unused", self.layers, "at least one layer")
        can_be = passable(case.model)
        for index, each in enumerate(self.layers):
            _check_one(case, f"unused[{index}]", each, can_be)
        for step in range(case.steps):
            _check_training(case, step)

    def unscripted(self, case: TrainingCase) -> str:
        """Return why no script can show a loss that reaches no parameter."""
        return "the loss of a rank reaches no parameter" if unreached(case) else ""

    def simpler(self) -> Iterator["UnusedLayers"]:
        """Yield fewer layers, and layers that more forwards pass by."""
        for layers in simpler_each(self.layers, lambda each: Unused(each.layer)):
            if layers:
                yield UnusedLayers(layers)

    def without_layer(self, index: int) -> "UnusedLayers | None":
        """Return the situation after a layer is removed from the model."""
        return self._kept(
            replace(each, layer=each.layer - (each.layer > index))
            for each in self.layers
            if each.layer != index
        )

    def without_unreached(self, case: TrainingCase) -> "UnusedLayers | None":
        """Return the situation where all forwards use the first trained layer of the model."""
        trained = next(
            index for index in range(len(case.model.layers)) if case.model.trains_layer(index)
        )
        return self._kept(each for each in self.layers if each.layer != trained)

    def used_by_some(self, world_size: int) -> "UnusedLayers | None":
        """Return the situation where some rank uses each layer in each step.

        It is rank 0 for the first layer, rank 1 for the second one, and so on in turn.
        """
        return self._kept(
            each
            for each in self.layers
            if (
                each.micro_step is not None
                if each.rank is None
                else each.rank != each.layer % world_size
            )
        )

    def in_one_backward(self) -> "UnusedLayers | None":
        """Return the layers that whole steps pass by."""
        return self._kept(each for each in self.layers if each.micro_step is None)

    @staticmethod
    def _kept(layers: Iterator[Unused]) -> "UnusedLayers | None":
        kept = tuple(layers)
        return UnusedLayers(kept) if kept else None

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw layers in every case if the option `unused` asks for them.

        If every case accumulates gradients, some micro-steps pass a layer by in one of four
        cases. An implementation may send gradients of layers that the last micro-step passes by.
        """
        if not draft.wanted["unused"]:
            return
        if not draft.wanted["accumulated"] or draft.wanted["between_steps"]:
            if not draft.wanted["between_steps"] and draft.one_in(4):
                draft.add(cls(_whole_model(draft)))
                return
            draft.add_layers(*_last_layers(draft))
            draft.add(cls(_in_whole_steps(draft)))
        elif draft.accumulation > 1 and draft.one_in(4):
            draft.add_layers(draft.square())
            rank = draft.any_rank() if draft.coin() else None
            micro_steps = draft.st.integers(0, draft.accumulation - 1)
            most = draft.accumulation - 1
            skipped = draft.draw(draft.st.sets(micro_steps, min_size=1, max_size=most))
            last = len(draft.model.layers) - 1
            draft.add(cls(tuple(Unused(last, rank, None, each) for each in sorted(skipped))))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return whether forwards pass layers by, as a coverage table counts it."""
        some = "all on a rank" if unreached(case) else "some"
        return {"unused layers": "none" if case.get(cls) is None else some}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capabilities to leave parameters unused: some, all on a rank, on all ranks.

        The probe leaves a layer unused on all ranks first. An implementation that waits for every
        gradient says so in the next step, where it would hang if one rank used the layer.
        """
        layers = (Unused(1, step=0), Unused(2, rank=1, step=1))
        every = tuple(Unused(index, rank=1, step=1) for index in range(len(BASE.model.layers)))
        return {
            "unused": replace(
                of_situation(
                    cls,
                    replace(BASE, steps=3, situations=(cls(layers),)),
                    "unused on all ranks",
                    "unused on some ranks",
                    "used at one step and not at another",
                    "used in some micro-steps only",
                    after="join",
                ),
                varieties={
                    "on a rank, later": lambda case: _later(case, on_one_rank=True),
                    "on all ranks, later": lambda case: _later(case, on_one_rank=False),
                    "in the last micro-step": lambda case: any(
                        unused.rank is None and unused.micro_step == case.accumulation - 1
                        for unused in case.unused
                    ),
                },
            ),
            "unreached": Capability(
                unreached,
                _reached,
                replace(BASE, steps=3, situations=(cls(every),)),
                after="unused",
                words="a rank that uses none of its parameters at a step: its loss reaches none",
            ),
            "unused_by_all": Capability(
                unused_by_all,
                _used_by_some,
                replace(BASE, steps=3, situations=(cls(layers[:1]),)),
                frozenset({"unused on all ranks"}),
                after="unreached",
                words="parameters that no rank uses at a step",
                varieties={"after some ranks used them": _used_before_by_some},
            ),
        }


def _later(case: TrainingCase, *, on_one_rank: bool) -> bool:
    """Return whether a trained layer is unused after the first step, where its gradient is None.

    Leftovers of the first step show only there.
    """
    return case.zero_grad == "set_to_none" and any(
        (unused.rank is not None) == on_one_rank
        and case.model.layers[unused.layer].tied is None
        and case.model.trains_layer(unused.layer)
        and (case.steps > 1 if unused.step is None else unused.step > 0)
        for unused in case.unused
    )


def unreached(case: TrainingCase) -> bool:
    """Return whether the loss of some forward reaches no parameter that is trained then."""
    if not case.unused:
        return False
    # The program may freeze the layers that are left.
    models = [case.at(step).model for step in range(case.steps)]
    return any(
        not models[step].trains(case.passed_by(rank, step, micro_step))
        for rank, step, micro_step in itertools.product(
            range(case.world_size), range(case.steps), range(case.accumulation)
        )
    )


def unused_by_all(case: TrainingCase) -> bool:
    """Return whether all forwards of a step, on all ranks, pass a layer by."""
    ranks, layers = range(case.world_size), {each.layer for each in case.unused}
    return any(
        all(layer in case.never_used(rank, step) for rank in ranks)
        for step, layer in itertools.product(range(case.steps), layers)
    )


def _used_before_by_some(case: TrainingCase) -> bool:
    """Return whether no rank uses a layer at a step, and some ranks, but not all, used it before.

    Only where a gradient is None, leftovers of those steps show.
    """
    ranks, layers = range(case.world_size), {each.layer for each in case.unused}
    for layer in layers if case.zero_grad == "set_to_none" else ():
        users: set[int] = set()
        for step in range(case.steps):
            now = {rank for rank in ranks if layer not in case.never_used(rank, step)}
            if not now and 0 < len(users) < case.world_size:
                return True
            users |= now
    return False


def _used_by_some(case: TrainingCase) -> TrainingCase:
    """Return a case in which some rank uses each layer in each step."""
    found = case.get(UnusedLayers)
    kept = None if found is None else found.used_by_some(case.world_size)
    fewer = case if kept is None else case.with_situation(kept)
    return case.without(UnusedLayers) if unused_by_all(fewer) else fewer


def _reached(case: TrainingCase) -> TrainingCase:
    """Return a case in which the loss of every forward reaches a parameter."""
    found = case.get(UnusedLayers)
    kept = None if found is None else found.without_unreached(case)
    fewer = case if kept is None else case.with_situation(kept)
    return case.without(UnusedLayers) if unreached(fewer) else fewer


def passable(model: Model) -> list[int]:
    """Return the indices of the layers that a forward can pass by, the last one first."""
    widths = model.widths()
    return [
        index
        for index, layer in enumerate(model.layers)
        if layer.kind not in PASSING and widths[index] == widths[index + 1] and not layer.sparse
    ][::-1]


def _check_one(case: TrainingCase, where: str, unused: Unused, can_be: list[int]) -> None:
    """Require one of the layers that can be passed by, and on a rank and steps of the case."""
    between(f"{where}.layer", unused.layer, 0, len(case.model.layers) - 1)
    require(
        unused.layer in can_be,
        f"{where}.layer",
        unused.layer,
        "the index of a layer with parameters and dense gradients, whose outputs are as wide as its inputs",
    )
    if unused.rank is not None:
        between(f"{where}.rank", unused.rank, 0, case.world_size - 1)
    if unused.step is not None:
        between(f"{where}.step", unused.step, 0, case.steps - 1)
    if unused.micro_step is not None:
        between(f"{where}.micro_step", unused.micro_step, 0, case.accumulation - 1)
        require(
            case.passes != "retained",
            f"{where}.micro_step",
            unused.micro_step,
            "null if a step has one forward",
        )


def _check_training(case: TrainingCase, step: int) -> None:
    """Require that some rank trains a parameter in each micro-step of a step, and others may."""
    for micro_step in range(case.accumulation):
        require(
            any(
                case.model.trains(case.passed_by(rank, step, micro_step))
                for rank in range(case.world_size)
            ),
            "unused",
            case.unused,
            f"fewer, so that a rank trains a parameter with elements at step {step}",
        )


def _whole_model(draft: Draft) -> tuple[Unused, ...]:
    """Draw a model of which one rank uses no layer, in one step or in all."""
    draft.world_size = max(2, draft.world_size)
    # Every rank still gets a batch.
    draft.data = replace(draft.data, samples=max(draft.world_size, draft.data.samples))
    layers = (draft.square(),) * draft.choice((1, 2, 3))
    draft.model = replace(draft.model, inputs=draft.model.widths()[-1], layers=layers)
    rank, step = draft.any_rank(), draft.any_step() if draft.coin() else None
    return tuple(Unused(index, rank, step) for index in range(len(layers)))


def _last_layers(draft: Draft) -> tuple[Layer, ...]:
    """Draw the layers of which the last one may be passed by.

    In one of eight cases more parameters come before it than a word has bits. It has buffers in one
    of four cases; otherwise its weight lies in memory in a drawn way, and in one of four cases it has
    a dtype of its own. A rank that sends zeros for it must lay them out as the other ranks lay out
    their gradients.
    """
    square = draft.square()
    if draft.one_in(8) and draft.offer.has("terms"):
        return Layer("terms", draft.choice((65, 64, 129)), dtype=square.dtype), square
    if draft.one_in(4) and square.dtype == "float32" and draft.offer.has("batch_norm"):
        return Layer("linear", 4), Layer("batch_norm")
    layouts: tuple[Layout, ...] = ("contiguous", "contiguous", "transposed", "strided")
    layouts += ("channels_last",) if square.outputs % 4 == 0 else ()
    if draft.one_in(4):
        # A rank that passes the layer by has no gradient of this dtype.
        square = replace(square, dtype=draft.choice(LOW_PRECISION))
    return (replace(square, layout=draft.choice(layouts)),)


def _in_whole_steps(draft: Draft) -> tuple[Unused, ...]:
    """Draw layers that whole steps pass by, in one of five patterns."""
    widths = draft.model.widths()
    square = [index for index in passable(draft.model) if index]
    pattern = draft.choice((*("any",) * 4, "together", "lone", "first", "first", "switched"))
    first = draft.model.layers[0]
    tied = any(layer.tied == 0 for layer in draft.model.layers)
    if pattern == "together":
        # One rank never uses the layer, and the other ranks do not use it at the last step.
        return Unused(square[0], draft.any_rank()), Unused(square[0], step=draft.steps - 1)
    if pattern == "lone" and draft.world_size > 1:
        # One rank alone uses the layer, in one step or in all.
        user, step = draft.any_rank(), draft.any_step() if draft.coin() else None
        others = [rank for rank in range(draft.world_size) if rank != user]
        return tuple(Unused(square[0], rank, step) for rank in others)
    if pattern == "first" and first.kind == "linear" and not tied:
        # The last layer, which is square, is still trained. A rank that passes the first one by may
        # meet the model's dtypes in another order.
        own = LOW_PRECISION if first.dtype == "float32" else ()
        dtype = draft.choice((first.dtype, first.dtype, *own))
        layers = (Layer("linear", widths[1], dtype=dtype), *draft.model.layers[1:])
        draft.model = replace(draft.model, inputs=widths[1], layers=layers)
        return (Unused(0, None if draft.coin() else draft.any_rank(), draft.any_step()),)
    if pattern == "switched":
        return _switched(draft, square[0])
    return _any_layers(draft, square)


def _switched(draft: Draft, layer: int) -> tuple[Unused, ...]:
    """Draw the step at which the use of a layer begins, or ends; an implementation may get used to it."""
    draft.steps = max(2, draft.steps, draft.choice((0, 5)))
    step, rank = 1 + draft.small() % (draft.steps - 1), draft.choice((None, draft.any_rank()))
    steps = range(step) if draft.coin() else range(step, draft.steps)
    return tuple(Unused(layer, rank, each) for each in steps)


def _any_layers(draft: Draft, square: list[int]) -> tuple[Unused, ...]:
    """Draw one to four layers; the first of the model is not among them, so it is trained."""
    st = draft.st
    # The columns: the layer (often the same), True for one rank alone, the rank, True for every
    # step, and the step.
    rows = st.tuples(
        st.sampled_from((0, 0, 0, 1, 2, 3)),
        st.booleans(),
        st.integers(0, 7),
        st.booleans(),
        st.integers(0, 7),
    )
    return tuple(
        Unused(
            square[layer % len(square)],
            rank % draft.world_size if alone else None,
            None if always else step % draft.steps,
        )
        for layer, alone, rank, always, step in draft.draw(st.lists(rows, min_size=1, max_size=4))
    )
