"""PARAM: after every optimizer step all ranks hold the parameters of single-process training."""

import numpy as np

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.implementation.names import OPTIMIZER
from ddp_invariants.invariants.compare import apart, outside
from ddp_invariants.invariants.diagnosis import updates
from ddp_invariants.invariants.draws import ANY_WORLD, Draws
from ddp_invariants.invariants.exclusions import BY_ITSELF, OWN_UPDATE, Exclusion, lacks
from ddp_invariants.invariants.grad import mean_of_the_local_gradients
from ddp_invariants.invariants.reduced import TWO_RANKS
from ddp_invariants.invariants.rule import (
    NotAbout,
    Script,
    Tally,
    Unjudged,
    first_failure,
    not_about,
)
from ddp_invariants.invariants.scaling import (
    moved_by_a_skipped_step,
    next_scale,
    wrong_scale,
    wrongly_skipped,
)
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.evidence import Moment
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.between_passes import (
    CLEARED,
    CONDITIONS,
    EVALUATED_BETWEEN,
    BetweenPasses,
)
from ddp_invariants.situations.clearing import CLEARED_BY_MODULE, ClearedByModule
from ddp_invariants.situations.evaluation_mode import EVALUATED, EvaluationMode
from ddp_invariants.situations.group_options import GROUPED, GroupOptions
from ddp_invariants.situations.optimizer_first import MADE_FIRST, OptimizerFirst
from ddp_invariants.situations.schedule import RateSchedule
from ddp_invariants.situations.tensor_rate import TENSOR_RATE, TensorRate

_SOURCE = "it follows from equal states, equal gradients and equal optimizers"


def _identical(
    view: EvidenceView, tally: Tally, rule: str, fact: str, moment: Moment
) -> Failure | None:
    for step in view.steps(moment):
        records = view.every_rank(moment, step)
        tally.meet({TWO_RANKS: len(records) > 1})
        for rank, tensors in enumerate(records[1:], start=1):
            tally.compared += sum(tensors.layout.sizes)
            difference = apart(records[0], tensors, "rank 0 holds")
            if difference is not None:
                failure = Failure(
                    rule,
                    fact,
                    f"rank {rank} of {len(records)}, after step {step}, {difference.place}",
                    difference.words,
                )
                return updates.of_difference(view, failure, step, rank, difference.name)
    return None


@training.rule(
    "PARAM-1",
    "After every optimizer step all parameters are bitwise identical on all ranks.",
    needs=(TWO_RANKS,),
    source=_SOURCE,
    of_reduced=("agreement",),
    after="GRAD-10",
    script=Script(checks=("equal_parameters",), follows_unused=True, follows_scaler=True),
    level="core",
)
def identical_on_all_ranks(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare bitwise, on every step."""
    return _identical(
        view,
        tally,
        "PARAM-1",
        "parameters differ between ranks after an optimizer step",
        "updated",
    )


@training.rule(
    "PARAM-2",
    "After every optimizer step the optimizer's state is bitwise identical on all ranks.",
    needs=(TWO_RANKS, "optimizer with state"),
    source=_SOURCE,
    of_reduced=("agreement",),
    excluded=(
        Exclusion(
            "shards the optimizer's state, or keeps it in a form of its own",
            lambda claims: bool(claims.declared.zero) or claims.declared.optimizer == "own",
        ),
    ),
    after="PARAM-1",
    script=Script(checks=("equal_state",), follows_unused=True, follows_scaler=True),
    level="core",
)
def optimizer_state_is_identical(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare momentum, moments and step counts bitwise."""
    stateful = any(tensors.layout.slots for tensors in view.every_rank("state"))
    tally.meet({"optimizer with state": stateful})
    if view.evidence.ranks[0].driven.get(OPTIMIZER) and _is_dealt(view):
        raise Unjudged(
            "the optimizer, which wrapping was given or returned, keeps a parameter's state on only "
            "some ranks: if it shards its state, declare optimizer = own"
        )
    return _identical(
        view, tally, "PARAM-2", "the optimizer's state differs between ranks", "state"
    )


def _is_dealt(view: EvidenceView) -> bool:
    """Return whether the ranks hold states of different parameters."""
    return any(
        len({tuple(slot.name for slot in tensors.layout.slots) for tensors in records}) > 1
        for records in (view.every_rank("state", step) for step in view.steps("state"))
    )


def moved_between(view: EvidenceView, tally: Tally, step: int) -> Failure | None:
    """Return a failure if a step's forward does not start from the values that the last step left.

    If the program has written to the parameters since then, the forward must start from what it wrote.
    The rules judge each step from its own start, so this check covers the time between steps. A
    broadcast by a sum may change the sign of a zero, and a cast the bits of a NaN: a cast from
    bfloat16 knows only one NaN.
    """
    by_program = any(
        (action.kind, action.step) == ("weights", step) for action in view.case.between_steps
    )
    before, owner = (
        (view.every_rank("written", step), "the program wrote")
        if by_program
        else (view.every_rank("updated", step - 1), f"step {step - 1} left")
    )
    for rank, (left, started) in enumerate(
        zip(before, view.every_rank("forward", step), strict=True)
    ):
        tally.compared += sum(started.layout.sizes)
        difference = apart(left, started, owner)
        if difference is not None:
            failure = Failure(
                "PARAM-3",
                "parameters change between one step's update and the next step's forward",
                f"rank {rank} of {view.case.world_size}, step {step}, {difference.place}",
                difference.words,
            )
            return updates.of_a_move(view, failure, difference.name)
    return None


def moved(view: EvidenceView, tally: Tally) -> Failure | None:
    """Return the failure of the first step that does not start from what the last one left."""
    return first_failure(moved_between(view, tally, step) for step in view.steps("updated")[1:])


def _between_passes(case: TrainingCase) -> dict[str, bool]:
    """Return the conditions of what happens between a forward and its backward."""
    found = case.get(BetweenPasses)
    return {
        condition: found is not None and found.action == action
        for action, condition in CONDITIONS.items()
    }


def require_own_gradients(view: EvidenceView) -> None:
    """Insist that what the program does to gradients reaches those that the optimizer uses.

    Raises:
        Unjudged: The program clips or scales `.grad`, and some gradients lie in `.main_grad`.
    """
    altered = view.case.clip is not None or view.case.scaler is not None
    if altered and any("gradients" in rank.driven for rank in view.evidence.ranks):
        raise Unjudged("the program clips or scales .grad, and gradients lie in .main_grad")


@training.rule(
    "PARAM-3",
    "Every step moves the parameters as single-process training on the global batch does.",
    needs=(
        TWO_RANKS,
        "momentum",
        "weight decay",
        "AdamW",
        "Adam",
        "Nesterov momentum",
        "other constants of Adam",
        "steps that maximise",
        MADE_FIRST,
        "a fused step",
        "gradients clipped",
        "a scheduled learning rate",
        TENSOR_RATE,
        EVALUATED,
        GROUPED,
        CLEARED,
        EVALUATED_BETWEEN,
    ),
    source=_SOURCE,
    draws=Draws(
        world_sizes=ANY_WORLD,
        least_steps=2,
        clipped=True,
        scheduled=True,
        evaluated=True,
        between_passes=True,
        cleared_by_module=8,
        optimizer_first=12,
        tensor_rate=16,
        grouped=True,
        scaled=8,
        autocast=8,
    ),
    of_reduced=("trajectory",),
    excluded=(OWN_UPDATE,),
    after="PARAM-2",
    script=Script(checks=("twin", "plain", "mean", "trajectory"), follows_main=False),
    level="core",
)
def trajectory_of_single_process_training(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the oracle: bitwise if the arithmetic is exact, else within a derived bound."""
    plan = view.case.optimizer
    met = {
        "AdamW": plan.kind == "adamw",
        "Adam": plan.kind == "adam",
        "Nesterov momentum": plan.nesterov,
        "other constants of Adam": bool(plan.differing_constants),
        "steps that maximise": plan.maximize,
        MADE_FIRST: view.case.get(OptimizerFirst) is not None,
        "a fused step": plan.kernels == "fused",
        "momentum": plan.kind == "sgd" and plan.momentum > 0,
        "weight decay": plan.weight_decay > 0,
        "a scheduled learning rate": view.case.get(RateSchedule) is not None,
        TENSOR_RATE: view.case.get(TensorRate) is not None,
        EVALUATED: view.case.get(EvaluationMode) is not None,
        GROUPED: view.case.get(GroupOptions) is not None,
        **_between_passes(view.case),
        TWO_RANKS: view.case.world_size > 1,
    }
    require_own_gradients(view)
    for step in view.steps("updated"):
        if step and (failure := moved_between(view, tally, step)) is not None:
            return failure
        truth = view.expected.truth(step).updated
        local = view.every_rank("local", view.micro_steps(step)[0])[0]
        names = [slot.name for slot in local.layout.slots if slot.dtype is not None]
        for rank, tensors in enumerate(view.every_rank("updated", step)):
            held_P = np.concatenate(
                [tensors.by_name[name].ravel() for name in names if name in tensors.by_name]
            )
            if held_P.shape != truth.centre.shape:
                raise Unjudged(
                    "the parameters after the step have other names or sizes than before it"
                )
            difference = outside(local, held_P, truth, tally)
            if difference is not None:
                failure = Failure(
                    "PARAM-3",
                    "parameters do not move as in single-process training on the global batch",
                    f"rank {rank} of {view.case.world_size}, after step {step}, {difference.place}",
                    difference.words,
                )
                return updates.of_update(view, failure, step, rank, difference.name)
        tally.meet(
            {
                **met,
                "momentum": met["momentum"] and step > 0,  # The first step has none yet.
                "gradients clipped": _is_clipped(view, step),
            }
        )
    return None


def _is_clipped(view: EvidenceView, step: int) -> bool:
    """Return whether the norm of a step's gradient is above the limit to which the case clips it."""
    if view.case.clip is None:
        return False
    norm = np.linalg.norm(view.expected.truth(step).gradient.centre) / view.scale(step)
    return bool(norm > view.case.clip)


def every_step(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge every step's gradients, if they are visible, and every step's update.

    Of lossy values, only the agreement of the ranks is judged. Of an update that is not known, it is
    also judged that a step starts from what the last one left.
    """
    if view.declared.exactness == "lossy":
        return identical_on_all_ranks(view, tally)
    failure = (
        None if view.declared.gradients == "hidden" else mean_of_the_local_gradients(view, tally)
    )
    if view.declared.update == "own" or view.loads_unknown_state:
        return failure or identical_on_all_ranks(view, tally) or moved(view, tally)
    return failure or trajectory_of_single_process_training(view, tally)


def _norms_by_other_forwards(case: TrainingCase) -> bool:
    """Return whether more than the steps' forwards may change what a norm in evaluation norms by."""
    index = case.evaluated_layer
    if index is None or not case.model.layers[index].of_kind.norms_batches:
        return False
    return case.injected_failure is not None or any(
        action.evaluates or action.kind == "buffers" for action in case.between_steps
    )


@training.rule(
    "PARAM-4",
    "With one rank, training is bitwise the same as training without a wrapper.",
    needs=("one rank",),
    source=_SOURCE,
    applies="capability",
    draws=Draws(world_sizes=(1,)),
    excluded=(
        BY_ITSELF,
        OWN_UPDATE,
        Exclusion(
            "declares that gradients are rounded",
            lambda claims: claims.declared.exactness != "bitwise",
        ),
        Exclusion(
            "declares that the optimizer updates a copy", lambda claims: bool(claims.declared.main)
        ),
        Exclusion(
            "makes no updates of SGD, and those of Adam may be computed in other steps",
            lambda claims: claims.declared.optimizer == "own" and not claims.has("sgd"),
        ),
        lacks("does not run in a world of one rank", "one_rank"),
    ),
    after="MOD-4",
    script=Script(checks=("plain", "alone")),
    level="core",
)
def one_rank_is_plain_training(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the same steps without a wrapper, in the same process.

    Zeros of either sign are equal: a sum that starts at zero, such as the mean over one rank, makes
    0 of -0.
    """
    case = view.case
    not_about(
        {
            "more than one rank": case.world_size > 1,
            "forwards and backwards do not alternate, and plain training has no such "
            "order": case.passes != "alternate",
            "the penalty's part of a gradient may be added in another order": (
                case.penalty == "weights"
            ),
            "training starts from a loaded state": case.saved_by is not None,
            "parameters are recreated with another memory layout, so sums are computed in "
            "another order": any(
                action.kind in ("cast", "assign") for action in case.between_steps
            ),
            "an unused parameter may have a gradient of zero, and weight decay then moves it": bool(
                case.unused
            ),
            "autocast may cast a parameter once per use, so its gradients may be added in "
            "another order": bool(case.recast),
            "a sparse gradient may be subtracted entry by entry, or as one sum": case.sparse,
            "gradients that are not cleared may be added to the sum of a step's gradients": (
                case.zero_grad == "never" and case.accumulation > 1
            ),
            "gradients may be added in a wider format, and are then rounded once": (
                case.accumulation > 2
            ),
            "the norm of gradients may be added up in another order": case.clip is not None,
            "the statistics of a norm in evaluation mode come from forwards that plain training does "
            "not repeat": _norms_by_other_forwards(case),
            "an optimizer of its own may compute the same in other steps": (
                view.declared.optimizer == "own" and case.optimizer.kind != "sgd"
            ),
            "fused kernels round by an element's place, which a flat buffer moves": (
                case.optimizer.kernels == "fused"
            ),
        }
    )
    for step in view.steps("updated"):
        tally.met.add("one rank")
        plain, wrapped = (
            view.every_rank("plain", step)[0],
            view.every_rank("updated", step)[0],
        )
        tally.compared += sum(wrapped.layout.sizes)
        difference = apart(plain, wrapped, "plain training gives")
        if difference is not None:
            return Failure(
                "PARAM-4",
                "training on one rank differs from plain training",
                f"rank 0 of 1, after step {step}, {difference.place}",
                difference.words,
            )
    return None


@training.rule(
    "PARAM-5",
    "A frozen parameter does not change. A parameter that is frozen for some steps does not change "
    "during these steps.",
    needs=("frozen parameter", "frozen for some steps", CLEARED_BY_MODULE),
    source=_SOURCE,
    applies="capability",
    draws=Draws(
        world_sizes=ANY_WORLD,
        every_kind=True,
        between_steps=("freeze", "unfreeze"),
        evaluated=True,
        cleared_by_module=2,
    ),
    excluded=(lacks("supports no frozen parameters", "frozen"),),
    after="GRAD-4",
    script=Script(checks=("frozen",)),
)
def frozen_parameters_stay(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare bitwise from the first forward on, or over each step that freezes the parameter."""
    cleared = view.case.get(ClearedByModule) is not None
    always = {
        row.name for row in view.evidence.ranks[0].structure_before if not row.requires_grad
    } - view.case.sometimes_frozen
    start = view.every_rank("forward")
    for step in view.steps("updated"):
        for_now, now = view.left_frozen(step), view.every_rank("forward", step)
        for rank, tensors in enumerate(view.every_rank("updated", step)):
            for name in sorted((always | for_now) & tensors.by_name.keys()):
                tally.met.add("frozen for some steps" if name in for_now else "frozen parameter")
                tally.meet({CLEARED_BY_MODULE: cleared})
                before, after = (
                    (now if name in for_now else start)[rank].by_name[name],
                    tensors.by_name[name],
                )
                tally.compared += after.size
                if before.shape != after.shape or not np.array_equal(before, after, equal_nan=True):
                    where = (
                        f"rank {rank} of {view.case.world_size}, after step {step}, "
                        f"parameter {name!r} {after.shape}"
                    )
                    return Failure(
                        "PARAM-5",
                        "a frozen parameter moved",
                        where,
                        f"{after.ravel()[:4]}, expected {before.ravel()[:4]}",
                    )
    return None


SKIPPED, UNSCALED = "a step skipped", "gradients unscaled before the step"
SCALED = (
    TWO_RANKS,
    SKIPPED,
    "a step made after one that was skipped",
    "a scale that grew",
    UNSCALED,
)


@training.rule(
    "PARAM-6",
    "With a loss scaler all ranks skip exactly the steps whose gradients are not finite, and change "
    "nothing in them. The other steps are those of training without a scaler. All ranks have the "
    "same scale.",
    needs=SCALED,
    source=(
        "the documentation of torch.amp.GradScaler: a step whose gradients overflow is skipped, and "
        "the scale reduced"
    ),
    applies="capability",
    draws=Draws(least_steps=2, scaled=1, autocast=4),
    of_reduced=("values",),
    excluded=(lacks("supports no loss scaler", "scaler"),),
    after="GRAD-7",
    script=Script(checks=("twin", "skips"), follows_scaler=True),
)
def every_rank_skips_the_same_steps(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge each rank's scale, check that skipped steps move nothing, and judge the other steps.

    The oracle judges the steps that are made. If any rank's gradient is not finite, the sum is not
    finite in any order. Finite gradients may add up to more than their format holds. Then the order
    of summation decides whether they overflow, and the rule asks only that all ranks agree.
    """
    plan = view.case.scaler
    if plan is None:
        raise NotAbout("no loss scaler")
    require_own_gradients(view)
    scale, made_in_a_row, met = (
        view.scale(0),
        0,
        {TWO_RANKS} if view.case.world_size > 1 else set(),
    )
    met |= {UNSCALED} if plan.unscaled or view.case.clip is not None else set()
    for step in view.steps("updated"):
        skips, overflows = view.skips(step), view.overflows(step)
        tally.compared += len(skips)
        failure = wrongly_skipped(view, step, skips, overflows=overflows)
        if failure is not None:
            return failure
        made_in_a_row = 0 if skips[0] else made_in_a_row + 1
        scale, made_in_a_row = next_scale(plan, scale, made_in_a_row)
        failure = wrong_scale(view, step, scale) or (
            moved_by_a_skipped_step(view, tally, step) if skips[0] else None
        )
        if failure is not None:
            return failure
        grew = not skips[0] and not made_in_a_row
        met |= {SKIPPED} if skips[0] else {SCALED[2]} if SKIPPED in met else set()
        met |= {"a scale that grew"} if grew else set()
    tally.met |= met
    failure = every_step(view, tally)
    return failure and failure.told_by("PARAM-6", "with a loss scaler")
