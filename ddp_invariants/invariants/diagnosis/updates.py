"""Explanations of a parameter that is wrong after an optimizer step.

The optimizers are computed again in float64, from the ranks' values at the start of each step's
forward. They use one of three gradients: the one the ranks held, their own, or none.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ddp_invariants.cases.formats import ROUNDOFF, FloatArray, coarsest
from ddp_invariants.cases.program import Optimizer
from ddp_invariants.invariants.diagnosis import gradients
from ddp_invariants.invariants.diagnosis.causes import caused, words
from ddp_invariants.invariants.diagnosis.optimizers import Past
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import Moment, Tensors
from ddp_invariants.records.verdict import Cause, Failure


def of_difference(view: EvidenceView, failure: Failure, step: int, rank: int, name: str) -> Failure:
    """Add the causes to a failure about parameters, or optimizer state, that differ between ranks.

    A difference that existed earlier in the step comes first.
    """
    started = view.noted("forward", step)
    names = [name] if started is not None and name in started[0].by_name else []
    if started is not None and any(
        _differs(started, tensor) for tensor in names or started[0].by_name
    ):
        when = "INIT-1" if step == 0 else "PARAM-3: they moved after the step before"
        return caused(
            failure,
            [
                Cause(
                    "started different",
                    f"they differ already when step {step}'s forward starts ({when})",
                )
            ],
        )
    reduced = view.noted("reduced", step)
    if reduced is not None:
        held = names or sorted({tensor for tensors in reduced for tensor in tensors.by_name})
        wrong = next((tensor for tensor in held if _differs(reduced, tensor)), None)
        if wrong is not None:
            return caused(failure, [_of_its_gradient(view, step, rank, wrong, "GRAD-1")])
    known = names and view.declared.update != "own"
    return of_update(view, failure, step, rank, name) if known else failure


def _differs(records: tuple[Tensors, ...], name: str) -> bool:
    held = [tensors.by_name.get(name) for tensors in records]
    return any(
        (value is None) != (held[0] is None)
        or (
            value is not None
            and held[0] is not None
            and not np.array_equal(value, held[0], equal_nan=True)
        )
        for value in held
    )


def _of_its_gradient(view: EvidenceView, step: int, rank: int, name: str, rule: str) -> Cause:
    """Return the cause that the gradient is already wrong, with the gradient's cause if known."""
    fitting = tuple(gradients.causes(view, step, rank, name))
    why = words(fitting)
    text = f"the gradient of step {step} is wrong already ({rule}), and the update follows from it"
    kind = (
        f"gradient: {fitting[0].kind}"
        if len({cause.kind for cause in fitting}) == 1
        else "gradient"
    )
    return Cause(kind, text + (f": {why}" if why else ""))


def of_update(view: EvidenceView, failure: Failure, step: int, rank: int, name: str) -> Failure:
    """Add the possible causes to a failure about a parameter after a step."""
    try:
        return caused(failure, _of_update(view, step, rank, name))
    except (KeyError, ValueError, IndexError):
        return failure  # The evidence is too odd for a diagnosis; the failure gets no cause.


def of_a_move(view: EvidenceView, failure: Failure, name: str) -> Failure:
    """Add the causes to a failure about a parameter that changed between an update and a forward.

    All steps of the run with such a change are considered.
    """
    try:
        fits = [_of_one_move(view, step, name) for step in view.steps("forward")[1:]]
    except (KeyError, ValueError):
        return failure  # The evidence is too odd for a diagnosis; the failure gets no cause.
    moved = [causes for causes in fits if causes is not None]
    kinds = (
        set.intersection(*({cause.kind for cause in causes} for causes in moved))
        if moved
        else set()
    )
    if {"update undone", "start restored"} <= kinds:
        # Both fit if every step starts from the first step's start.
        kinds.remove("update undone")
    return caused(failure, [cause for cause in (moved[0] if moved else ()) if cause.kind in kinds])


def _of_one_move(view: EvidenceView, step: int, name: str) -> list[Cause] | None:
    """Return the causes that explain a parameter's values at a step's start.

    Returns:
        None if the values are those that the step before left, or that the program wrote since then.
    """

    def held(moment: Moment, number: int) -> FloatArray:
        return np.stack([tensors.by_name[name] for tensors in view.every_rank(moment, number)])

    by_program = view.noted("written", step) is not None
    now_W = held("forward", step)
    left_W = held("written", step) if by_program else held("updated", step - 1)
    then_W, first_W = held("forward", step - 1), held("forward", 0)
    wrong = [
        rank
        for rank in range(len(now_W))
        if not np.array_equal(now_W[rank], left_W[rank], equal_nan=True)
    ]
    if not wrong:
        return None
    roundoff = coarsest(view.every_rank("forward", 0)[0].layout.dtypes)
    slack, exact = 4 * len(now_W) * roundoff * np.abs(left_W).sum(0), np.zeros_like(now_W[0])
    guesses = [
        *(
            (
                (
                    "own copies",
                    f"it is the value that step {step - 1} left, without what the program wrote",
                    held("updated", step - 1),
                    exact,
                ),
            )
            if by_program
            else ()
        ),
        (
            "update undone",
            f"it is the value at the start of step {step - 1}: a step's update is undone",
            then_W,
            exact,
        ),
        (
            "start restored",
            "it is the value at the start of the first step: every update is undone",
            first_W,
            exact,
        ),
        (
            "overwritten",
            f"it is rank 0's value after step {step - 1}: overwritten by rank 0",
            left_W[:1],
            exact,
        ),
        (
            "averaged",
            (
                f"it is the mean of the ranks' values after step {step - 1}: parameters were "
                "averaged"
            ),
            left_W.mean(0, keepdims=True),
            slack,
        ),
    ]
    return [
        Cause(kind, text)
        for kind, text, value_W, off in guesses
        if (np.abs(now_W - value_W) <= off)[wrong].all()
        and (np.abs(left_W - value_W) > off)[wrong].any()
    ]


def _of_update(view: EvidenceView, step: int, rank: int, name: str) -> list[Cause]:
    numbers = [
        number for number in range(step + 1) if number == step or not view.is_skipped(number)
    ]
    scales_T = [view.scale(number) for number in numbers]
    records = [view.noted("reduced", number) for number in numbers]
    starts_T = [view.every_rank("forward", number)[rank].by_name[name] for number in numbers]
    own_T = [
        np.sum(
            [
                view.every_rank("local", micro)[rank].by_name[name]
                for micro in view.micro_steps(number)
            ],
            axis=0,
        )
        / scale
        for number, scale in zip(numbers, scales_T, strict=True)
    ]
    means_T = [view.expected.local_means(number) for number in numbers]
    right_T = [
        _part(view, number, name, mean.centre) / scale
        for number, mean, scale in zip(numbers, means_T, scales_T, strict=True)
    ]
    known = all(record is not None and name in record[rank].by_name for record in records)
    held_T = (
        [
            record[rank].by_name[name] / scale
            for record, scale in zip(records, scales_T, strict=True)
            if record is not None
        ]
        if known
        else right_T
    )
    after = view.every_rank("updated", step)[rank].by_name[name]
    slot = next(
        slot for slot in view.every_rank("updated", step)[rank].layout.slots if slot.name == name
    )
    roundings = 32 * ROUNDOFF.get(slot.dtype or "", np.nan)
    group = view.group_of(name)
    past = Past([view.plans(number)[group] for number in numbers], starts_T, held_T)
    right, right_most = replace(past, gradients_T=right_T).updated()

    def equals(predicted: tuple[FloatArray, FloatArray]) -> bool:
        slack = roundings * predicted[1]
        return bool(
            (np.abs(after - predicted[0]) <= slack).all()
            and (np.abs(right - predicted[0]) > slack + roundings * right_most).any()
        )

    if known and gradients.is_wrong(view, step, name) and equals(past.updated()):
        return [_of_its_gradient(view, step, rank, name, "GRAD-2")]
    guesses = [
        *_guesses(past, own_T, rank, view.case.world_size),
        *(_scaled(past, scales_T) if view.case.scaler else ()),
        *_of_copies(view, past, step, rank, name),
        *(
            (
                Cause(
                    "options of another group",
                    f"it was updated with the options of parameter group {other}, not of {group}",
                ),
                replace(past, plans_T=[view.plans(number)[other] for number in numbers]).updated,
            )
            for other in range(len(view.plans(step)))
            if other != group
        ),
    ]
    return [cause for cause, predicted in guesses if equals(predicted())]


def _part(view: EvidenceView, step: int, name: str, flat_P: FloatArray) -> FloatArray:
    """Return one parameter's elements of a flat record."""
    layout = view.layout(step)
    number = [slot.name for slot in layout.slots].index(name)
    return flat_P[layout.starts[number] : layout.starts[number + 1]].reshape(
        layout.slots[number].shape_of_numbers
    )


def _of_copies(
    view: EvidenceView, past: Past, step: int, rank: int, name: str
) -> Iterator[tuple[Cause, Callable[[], tuple[FloatArray, FloatArray]]]]:
    if view.noted("written", step) is not None:
        left = view.every_rank("updated", step - 1)[rank].by_name[name]
        yield (
            Cause(
                "own copies",
                "it was updated from a copy that lacks what the program wrote before the step",
            ),
            replace(past, starts_T=[*past.starts_T[:-1], left]).updated,
        )


def _scaled(
    past: Past, scales_T: list[float]
) -> Iterator[tuple[Cause, Callable[[], tuple[FloatArray, FloatArray]]]]:
    scaled = list(zip(past.gradients_T, scales_T, strict=True))
    yield (
        Cause(
            "unscaled twice", "it was updated with the gradient divided by the loss scale once more"
        ),
        replace(past, gradients_T=[g / scale for g, scale in scaled]).updated,
    )
    yield (
        Cause(
            "old scale",
            "it was updated with the gradient divided by the first step's loss scale, not by its "
            "own",
        ),
        replace(past, gradients_T=[g * scale / scales_T[0] for g, scale in scaled]).updated,
    )
    yield (
        Cause(
            "never unscaled", "it was updated with the gradient of the scaled loss: never unscaled"
        ),
        replace(past, gradients_T=[g * scale for g, scale in scaled]).updated,
    )


def _guesses(
    past: Past, own_T: list[FloatArray], rank: int, world_size: int
) -> Iterator[tuple[Cause, Callable[[], tuple[FloatArray, FloatArray]]]]:
    g_T = past.gradients_T
    before = len(g_T) - 2
    start = past.starts_T[-1]

    def with_last(g: FloatArray) -> Callable[[], tuple[FloatArray, FloatArray]]:
        return replace(past, gradients_T=[*g_T[:-1], g]).updated

    yield (
        Cause("no update", "it is the value at the start of the step: no update was made"),
        lambda: (start, np.zeros_like(start)),
    )
    yield (
        Cause("updated twice", "the update was made twice with the same gradient"),
        lambda: past.updated(last=2),
    )
    own = Cause("own gradient", f"it was updated with rank {rank}'s own local gradient")
    yield own, replace(past, gradients_T=own_T).updated
    yield own, with_last(own_T[-1])
    if world_size > 1:
        yield (
            Cause(
                "summed",
                f"it was updated with {world_size} times the gradient: summed, never divided",
            ),
            replace(past, gradients_T=[world_size * g for g in g_T]).updated,
        )
        yield (
            Cause(
                "divided twice",
                f"it was updated with 1/{world_size} of the gradient: divided twice",
            ),
            replace(past, gradients_T=[g / world_size for g in g_T]).updated,
        )
    yield (
        Cause("ascended", "the update has the wrong sign"),
        replace(past, gradients_T=[-g for g in g_T]).updated,
    )
    yield from _of_settings(past)
    if before >= 0:
        yield (
            Cause("stale gradient", f"it was updated with step {before}'s gradient: one step late"),
            with_last(g_T[before]),
        )
        yield (
            Cause("state lost", "the optimizer's state of the steps before was lost"),
            lambda: past.updated(forgets=True),
        )


def _of_settings(
    past: Past,
) -> Iterator[tuple[Cause, Callable[[], tuple[FloatArray, FloatArray]]]]:
    """Yield the causes in which the optimizer uses a wrong weight decay or learning rate."""
    plan, g_T = past.plans_T[-1], past.gradients_T

    def planned(**changes: object) -> list[Optimizer]:
        return [
            replace(each, **changes)  # type: ignore[arg-type]  # checked by the plan
            for each in past.plans_T
        ]

    if plan.weight_decay and plan.kind == "adamw":
        yield (
            Cause(
                "decay in the gradient",
                f"weight decay {plan.weight_decay} was added to the gradient, as Adam does, "
                "instead of subtracted from the parameter",
            ),
            replace(
                past,
                plans_T=planned(weight_decay=0.0),
                gradients_T=[
                    g + plan.weight_decay * start
                    for g, start in zip(g_T, past.starts_T, strict=True)
                ],
            ).updated,
        )
    first = past.plans_T[0]
    for name in ("weight_decay", "momentum", "beta_1"):
        old, new = getattr(first, name), getattr(plan, name)
        if old != new:
            option = name.replace("_", " ")
            yield (
                Cause(
                    f"old {option}",
                    f"it was updated with {option} {old:g}, that of the first step, not with {new:g}",
                ),
                replace(past, plans_T=planned(**{name: old})).updated,
            )
    decays = {each.weight_decay for each in past.plans_T}
    if plan.weight_decay and 2 * plan.weight_decay not in decays:
        yield (
            Cause("weight decay twice", f"weight decay {plan.weight_decay} was applied twice"),
            replace(past, plans_T=planned(weight_decay=2 * plan.weight_decay)).updated,
        )
    if plan.weight_decay:
        yield (
            Cause("weight decay lost", f"weight decay {plan.weight_decay} was not applied"),
            replace(past, plans_T=planned(weight_decay=0.0)).updated,
        )
    if plan.lr != first.lr:
        yield (
            Cause(
                "old learning rate",
                f"it was updated with {first.lr:g}, the learning rate of the first step, not with "
                f"{plan.lr:g}",
            ),
            replace(past, plans_T=planned(log2_lr=first.log2_lr)).updated,
        )
