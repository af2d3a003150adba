"""Tests of diagnosis: a cause is named only if this cause alone explains the evidence."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from handmade import CASE, SCALE, WEIGHT, Array, altered, everywhere, right

from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, Data, Optimizer, Perturbation, Poison, Unused
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.invariants import judge
from ddp_invariants.invariants.diagnosis.causes import narrowed
from ddp_invariants.invariants.diagnosis.predictions import lowered
from ddp_invariants.oracle.training import batches
from ddp_invariants.records.evidence import Moment, ShardEvidence, TrainingEvidence
from ddp_invariants.records.trace import Call
from ddp_invariants.records.verdict import Cause, Failure
from ddp_invariants.search.enlarge import telling
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.penalty import Penalty
from ddp_invariants.situations.perturbation import Perturbed
from ddp_invariants.situations.poison import Poisoned
from ddp_invariants.situations.unused import UnusedLayers

BIAS = "layers.0.bias"

THREE = replace(CASE, world_size=3, values="real", data=Data(samples=24), seed=1)
"""A case with fractions and three ranks, so that no two values are equal by chance."""
MICRO = replace(THREE, accumulation=2, data=Data(samples=48, batch_size=2))


def kinds(failure: Failure | None) -> set[str]:
    """Return the kinds of the causes that fit a failure."""
    assert failure is not None
    return {cause.kind for cause in failure.causes}


def on_ranks(
    evidence: TrainingEvidence, moment: Moment, step: int, name: str, values_W: Any
) -> TrainingEvidence:
    """Return evidence in which every rank holds its own value of a tensor."""
    for rank, value in enumerate(values_W):
        evidence = altered(
            evidence,
            rank,
            moment,
            step,
            name,
            lambda v, value=value: np.asarray(value).astype(v.dtype),
        )
    return evidence


def local(evidence: TrainingEvidence, name: str = WEIGHT, *numbers: int) -> Array:
    """Return the ranks' local gradients, summed over micro-steps, in shape (W, …)."""
    return np.stack(
        [
            np.sum(
                [rank.tensors["local", number].by_name[name] for number in numbers or (0,)], axis=0
            )
            for rank in evidence.ranks
        ]
    )


def alike(value: Array) -> list[Array]:
    """Return the same value for each of three ranks."""
    return [value] * 3


def with_part(g_W: Array, part_W: Array) -> list[Array]:
    """Return the mean for every rank, with all but its first two elements replaced by a part's."""
    mean = g_W.mean(0)
    return [
        np.concatenate([mean.ravel()[:2], part.ravel()[2:]]).reshape(mean.shape) for part in part_W
    ]


GRADIENTS: list[tuple[str, Callable[[Array], Any], str]] = [
    ("never reduced", lambda g: g, "it equals rank 1's own local gradient: never reduced"),
    (
        "never reduced",
        lambda g: [g.mean(0), g[1], g.mean(0)],
        "it equals rank 1's own local gradient: never reduced",
    ),
    ("divided, not reduced", lambda g: g / 3, "local gradient / 3: divided, but not reduced"),
    ("zero", lambda g: 0 * g, "it is zero: the gradient was lost"),
    (
        "broadcast",
        lambda g: alike(g[2]),
        "it equals rank 2's local gradient: broadcast instead of reduced",
    ),
    ("summed", lambda g: alike(g.sum(0)), "got / expected = 3 = world size: summed, never divided"),
    (
        "divided twice",
        lambda g: alike(g.mean(0) / 3),
        "got / expected = 1/3 = 1 / world size: divided twice",
    ),
    ("doubled", lambda g: alike(2 * g.mean(0)), "got / expected = 2: accumulated once too often"),
    ("divided by 5", lambda g: alike(g.sum(0) / 5), "the sum was divided by 5, not by 3"),
    (
        "left out",
        lambda g: alike((g[0] + g[2]) / 3),
        "with rank 1's gradient left out (counted as zero)",
    ),
    (
        "left out",
        lambda g: alike((g[0] + g[2]) / 2),
        "over ranks [0, 2] alone: rank 1's gradient is left out",
    ),
    ("counted twice", lambda g: alike((g.sum(0) + g[2]) / 3), "rank 2's gradient counted twice"),
    ("counted twice", lambda g: alike((g.sum(0) + g[2]) / 4), "rank 2's gradient counted twice"),
    (
        "subgroup",
        lambda g: [g[:2].mean(0), g[:2].mean(0), g[2]],
        "alone: reduced in a part of the group",
    ),
    ("maximum", lambda g: alike(g.max(0)), "it is the maximum over the ranks"),
    ("minimum", lambda g: alike(g.min(0) / 3), "it is the minimum over the ranks / 3"),
    ("product", lambda g: alike(g.prod(0)), "it is the product over the ranks"),
    ("sum of squares", lambda g: alike((g**2).sum(0)), "it is the sum of squares over the ranks"),
    ("reordered", lambda g: alike(g.mean(0).T), "in transposed order"),
    (
        "reordered",
        lambda g: alike(np.roll(g.mean(0).ravel(), 1).reshape(2, 2)),
        "the mean's elements in another order",
    ),
    ("bfloat16", lambda g: alike(lowered(g.mean(0), "bfloat16")), "rounded to bfloat16"),
    ("float16", lambda g: alike(lowered(g, "float16").mean(0)), "rounded to float16"),
    (
        "never reduced",
        lambda g: with_part(g, g),
        "elements 2 to 3 of 4, which equal rank 1's own local gradient",
    ),
    ("zero", lambda g: with_part(g, 0 * g), "elements 2 to 3 of 4, which are zero: lost"),
]


@pytest.mark.parametrize(
    ("kind", "held", "words"),
    GRADIENTS,
    ids=[f"{kind}-{n}" for n, (kind, _, _) in enumerate(GRADIENTS)],
)
def test_a_gradients_cause_is_named_and_a_near_miss_of_it_is_not(
    kind: str, held: Callable[[Array], Any], words: str
) -> None:
    """The cause of a wrong gradient is named only if it predicts every wrong element.

    With one wrong element moved by a hundredth, no cause is named.
    """
    evidence = right(THREE)
    values_W = held(local(evidence))
    rules = judge(on_ranks(evidence, "reduced", 0, WEIGHT, values_W))
    failure = rules["GRAD-1"].failure or rules["GRAD-2"].failure
    assert failure is not None
    assert kinds(failure) == {kind}
    assert words in failure.perhaps
    moved = [np.array(value, np.float64) for value in values_W]
    moved[1].flat[2] += 0.01 * (1 + abs(moved[1].flat[2]))
    rules = judge(on_ranks(evidence, "reduced", 0, WEIGHT, moved))
    near = rules["GRAD-1"].failure
    assert near is not None
    assert kinds(near) == set()
    assert near.perhaps == ""


@pytest.mark.parametrize("case", [THREE, MICRO], ids=["one micro-step", "two"])
def test_a_penalty_that_stays_local_is_named(case: TrainingCase) -> None:
    """The penalty's part is the parameter times a number of each batch, which differs by rank."""
    evidence = right(case.with_situation(Penalty("weights")))
    assert not any(finding.failure for finding in judge(evidence).values())
    micro_steps = range(case.accumulation)
    targets_W = sum(batches(case)[number].targets_WBO[:, 0, 0] for number in micro_steps)
    weight = evidence.ranks[0].tensors["forward", 0].by_name[WEIGHT]
    part_W = np.multiply.outer(targets_W / case.accumulation, weight)
    mean = local(evidence, WEIGHT, *micro_steps).mean(0) - part_W.mean(0)
    rules = judge(on_ranks(evidence, "reduced", 0, WEIGHT, mean + part_W))
    failure = rules["GRAD-13"].failure
    assert kinds(failure) == {"penalty not reduced"}
    assert failure is not None
    assert "only what comes through a forward was reduced" in failure.perhaps
    doubled = judge(on_ranks(evidence, "reduced", 0, WEIGHT, mean + 2 * part_W))
    assert kinds(doubled["GRAD-13"].failure) == set()


def test_what_overflows_a_lower_precision_is_told_as_rounded_to_it() -> None:
    """A gradient that overflows a lower precision is diagnosed as rounded to that precision.

    An infinity, or the NaN made from two of them, has no distance to a prediction. It must equal
    the prediction.
    """
    evidence = right(THREE)
    large_W = 2.0**20 * local(evidence)
    with np.errstate(over="ignore", invalid="ignore"):
        held = lowered(large_W, "float16").mean(0)
    assert not np.isfinite(held).all()
    rules = judge(
        on_ranks(on_ranks(evidence, "local", 0, WEIGHT, large_W), "reduced", 0, WEIGHT, alike(held))
    )
    failure = rules["GRAD-2"].failure
    assert failure is not None
    assert kinds(failure) == {"float16"}


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        ("last micro-step only", lambda a, b: a + b.mean(0)),
        ("first micro-step only", lambda a, b: a.mean(0) + b),
        ("micro-steps lost", lambda _, b: alike(b.mean(0))),
        ("last micro-step lost", lambda a, _: alike(a.mean(0))),
    ],
)
def test_a_cause_of_wrong_accumulation_is_named(
    kind: str, held: Callable[[Array, Array], Any]
) -> None:
    """The cause of wrong accumulation is named if one of two micro-steps is lost or not reduced."""
    evidence = right(MICRO)
    rules = judge(
        on_ranks(
            evidence,
            "reduced",
            0,
            WEIGHT,
            held(local(evidence, WEIGHT, 0), local(evidence, WEIGHT, 1)),
        )
    )
    assert kinds(rules["GRAD-1"].failure or rules["GRAD-8"].failure) == {kind}


def test_a_result_that_is_late_by_one_micro_step_is_told_where_each_is_reduced() -> None:
    """Its value tells no stale result from a lost micro-step, unless only the last one sends."""
    evidence = right(MICRO)
    evidence = on_ranks(evidence, "reduced", 0, WEIGHT, alike(local(evidence, WEIGHT, 0).mean(0)))
    assert kinds(judge(evidence)["GRAD-1"].failure or judge(evidence)["GRAD-8"].failure) == {
        "last micro-step lost"
    }
    each = replace(evidence, ranks=tuple(replace(rank, quiet=[]) for rank in evidence.ranks))
    failure = judge(each)["GRAD-2"].failure
    assert kinds(failure) == {"last micro-step lost", "stale in the step"}
    assert failure is not None
    assert failure.perhaps.startswith("either ")


@pytest.mark.parametrize(("factor", "kind"), [(0.5, "micro-steps divided"), (2.0, None)])
def test_two_as_a_factor_of_two_micro_steps_is_no_certain_cause(
    factor: float, kind: str | None
) -> None:
    """A factor of two over two micro-steps has several possible causes, and all are reported."""
    evidence = right(MICRO)
    failure = judge(everywhere(evidence, "reduced", 0, WEIGHT, lambda v: v * np.float32(factor)))[
        "GRAD-8"
    ].failure
    assert failure is not None
    assert kinds(failure) == (
        {kind, "halved", "divided by 6"} if kind else {"doubled", "micro-steps multiplied"}
    )
    assert failure.perhaps.startswith("either ")


def test_what_the_step_before_left_is_named() -> None:
    """A gradient of the step before is named as stale, or as not cleared if it was added."""
    evidence = right(THREE)
    before, fresh = (evidence.ranks[0].tensors["reduced", step].by_name[WEIGHT] for step in (0, 1))
    for value, kind in ((before, "stale"), (before + fresh, "not cleared")):
        assert kinds(
            judge(on_ranks(evidence, "reduced", 1, WEIGHT, alike(value)))["GRAD-5"].failure
        ) == {kind}


def test_a_buffer_read_too_early_is_named() -> None:
    """A gradient that holds the sentinel, divided or not, is diagnosed as read too early."""
    evidence = right(THREE.with_situation(Perturbed(Perturbation("withheld"))))
    failure = judge(
        everywhere(evidence, "reduced", 0, WEIGHT, lambda v: np.full_like(v, 12345.0 / 3))
    )["GRAD-2"].failure
    assert kinds(failure) == {"withheld"}


def test_of_two_causes_that_both_fit_none_is_preferred() -> None:
    """If up to three causes fit, all are reported; if more fit, none is.

    On two ranks a sum is twice the mean, and one rank less is one: three causes fit.
    """
    failure = judge(everywhere(right(), "reduced", 0, WEIGHT, lambda v: v * 2))["GRAD-2"].failure
    assert failure is not None
    assert failure.perhaps == (
        "either got / expected = 2 = world size: summed, never divided; "
        "or got / expected = 2: accumulated once too often; "
        "or got / expected = 2 / 1: the sum was divided by 1, one rank too few; "
        f"only 1 of 3 parameters, {WEIGHT!r}: tied and the first in registration order"
    )
    four = replace(failure, causes=(*failure.causes, Cause("fourth", "a fourth")), perhaps="")
    assert narrowed(four, []).perhaps == ""
    assert narrowed(four, [failure]).perhaps == failure.perhaps
    assert (
        narrowed(four, [replace(failure, causes=failure.causes[:1])]).causes == failure.causes[:1]
    )
    assert narrowed(four, [replace(failure, causes=())]).perhaps == ""


def test_which_rank_it_is_is_said_only_where_that_is_certain() -> None:
    """A cause names a rank only if that rank is certain.

    Two ranks with equal gradients leave open which rank's gradient is left out. A case that
    separates the two ranks settles it.
    """
    first, second = (Cause("left out", f"rank {rank} is left out") for rank in (0, 1))
    open_ = Failure("GRAD-2", "", "", "", "", causes=(first, second))
    assert narrowed(open_, [replace(open_, causes=(second,))]).perhaps == "rank 1 is left out"
    assert narrowed(
        open_, [replace(open_, causes=(Cause("left out", "rank 2 is left out"),))]
    ).causes == (first, second)


def test_a_declared_sum_that_is_divided_is_named() -> None:
    """A gradient that is the mean, where a sum is declared, is diagnosed as divided."""
    evidence = right(THREE)
    assert kinds(judge(evidence, Declarations(reduction="sum"))["GRAD-2"].failure) == {"divided"}


_ORDER = "registration order"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            [WEIGHT],
            (
                f"only 1 of 3 parameters, {WEIGHT!r}: tied, larger than the bucket cap of 12 bytes "
                f"and the first in {_ORDER}"
            ),
        ),
        ([BIAS], f"only 1 of 3 parameters, {BIAS!r}: vectors"),
        ([BIAS, SCALE], f"only 2 of 3 parameters, {BIAS!r}, {SCALE!r}: the last 2 in {_ORDER}"),
        ([WEIGHT, SCALE], ""),
        ([WEIGHT, BIAS, SCALE], ""),
    ],
)
def test_what_wrong_parameters_have_in_common_is_said(names: list[str], words: str) -> None:
    """A common property of the wrong parameters is named only if no right parameter has it.

    At least one parameter must be right.
    """
    evidence = right(replace(THREE, bucket_cap=12))
    for name in names:
        evidence = on_ranks(evidence, "reduced", 0, name, local(evidence, name))
    failure = judge(evidence)["GRAD-1"].failure
    assert failure is not None
    assert failure.perhaps == "it equals rank 1's own local gradient: never reduced" + (
        f"; {words}" if words else ""
    )


STARTS: list[tuple[str, Callable[[Array], Any]]] = [
    ("never broadcast", lambda b: b),
    ("another source", lambda b: alike(b[1])),
    ("averaged", lambda b: alike(b.mean(0))),
    ("summed", lambda b: alike(b.sum(0))),
    ("zero", lambda b: 0 * b),
    ("reordered", lambda b: alike(b[0].T)),
]


@pytest.mark.parametrize(("kind", "held"), STARTS, ids=[kind for kind, _ in STARTS])
def test_a_starts_cause_is_named_and_a_near_miss_of_it_is_not(
    kind: str, held: Callable[[Array], Any]
) -> None:
    """The cause of a wrong start is named only if it predicts the values of every wrong rank.

    If the cause is a copy, the prediction must be right to the last bit.
    """
    evidence = right(THREE)
    built_W = np.stack([rank.tensors["built", 0].by_name[WEIGHT] for rank in evidence.ranks])
    values_W = [np.array(value, np.float64) for value in held(built_W)]
    assert kinds(judge(on_ranks(evidence, "forward", 0, WEIGHT, values_W))["INIT-1"].failure) == {
        kind
    }
    values_W[2].flat[0] += 2.0**-10
    assert (
        kinds(judge(on_ranks(evidence, "forward", 0, WEIGHT, values_W))["INIT-1"].failure) == set()
    )


@pytest.mark.parametrize(("buffer", "is_saved"), [("count", True), ("seen", False)])
def test_buffers_that_alone_were_not_broadcast_are_named(buffer: str, *, is_saved: bool) -> None:
    """A buffer that keeps the value its rank built is diagnosed as never broadcast.

    This holds for integers, floats and bools. A buffer that no state_dict holds is called one.
    """
    evidence, name = right(replace(THREE, world_size=4)), f"layers.5.{buffer}"
    own = evidence.ranks[1].tensors["built buffers", 0].by_name[name]
    failure = judge(altered(evidence, 1, "forward buffers", 0, name, lambda _: own))[
        "INIT-2"
    ].failure
    assert failure is not None
    assert failure.perhaps.startswith("rank 1 still holds its own initial value: never broadcast")
    assert ("persistent=False" not in failure.perhaps) is is_saved


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("loss averaged", lambda t: alike(t.mean())),
        ("loss summed", lambda t: alike(t.sum())),
        ("loss divided", lambda t: t / 3),
        ("loss multiplied", lambda t: t * 3),
        ("loss of another", lambda t: alike(t[2])),
        ("loss lost", lambda t: t * 0),
        (None, lambda t: t + 0.25),
    ],
)
def test_a_losss_cause_is_named(kind: str | None, loss: Callable[[Array], Any]) -> None:
    """The cause of a wrong loss is found from the losses of the ranks' unwrapped twin modules."""
    evidence = right(THREE)
    twins_W = np.array([rank.tensors["loss", 0].values_P[1] for rank in evidence.ranks])
    assert kinds(judge(on_ranks(evidence, "loss", 0, "loss", loss(twins_W)))["LOSS-1"].failure) == (
        {kind} if kind else set()
    )


COUNT, RUNNING = "layers.5.count", "layers.5.running"


@pytest.mark.parametrize(
    ("kind", "name", "step", "value"),
    [
        ("zero", COUNT, 1, lambda e: 0 * e.ranks[0].tensors["forward buffers", 1].by_name[COUNT]),
        (
            "summed",
            COUNT,
            1,
            lambda e: np.array(
                sum(rank.tensors["twin buffers", 0].by_name[COUNT] for rank in e.ranks)
            ),
        ),
        (
            "summed",
            RUNNING,
            1,
            lambda e: sum(rank.tensors["twin buffers", 0].by_name[RUNNING] for rank in e.ranks),
        ),
        ("reset", COUNT, 2, lambda e: e.ranks[0].tensors["built buffers", 0].by_name[COUNT]),
        (
            "moved twice",
            COUNT,
            1,
            lambda e: (
                2 * e.ranks[0].tensors["twin buffers", 0].by_name[COUNT]
                - e.ranks[0].tensors["forward buffers", 0].by_name[COUNT]
            ),
        ),
        (None, COUNT, 1, lambda _: np.array(10)),
    ],
)
def test_where_a_buffer_went_is_named(
    kind: str | None, name: str, step: int, value: Callable[[TrainingEvidence], Array]
) -> None:
    """The cause of a wrong buffer is found from the ranks' unwrapped twin modules.

    The diagnosis compares the buffer with the twins' last values, the step's first values, and the
    values that were built.
    """

    def filled(
        evidence: TrainingEvidence, moment: Moment, number: int, to: int
    ) -> TrainingEvidence:
        return everywhere(evidence, moment, number, name, lambda held: np.full_like(held, to))

    evidence = filled(filled(right(THREE), "built buffers", 0, 1), "forward buffers", 0, 1)
    for number, left in enumerate((3, 5)):  # These values are neither zero nor the built ones.
        evidence = filled(
            filled(evidence, "twin buffers", number, left), "forward buffers", number + 1, left
        )
    assert judge(evidence)["BUF-2"].failure is None
    wrong = value(evidence).astype(np.int64 if name == COUNT else np.float32)
    failure = judge(altered(evidence, 1, "forward buffers", step, name, lambda _: wrong))[
        "BUF-2"
    ].failure
    assert failure is not None
    assert kinds(failure) == ({kind} if kind else set())


def test_a_buffer_that_was_not_moved_is_named() -> None:
    """A buffer that did not move in a step is diagnosed as in evaluation mode."""
    evidence = right(THREE)
    for rank in range(3):
        evidence = altered(evidence, rank, "twin buffers", 0, COUNT, lambda v: np.full_like(v, 3))
    failure = judge(evidence)["BUF-2"].failure
    assert failure is not None
    assert "it is the value at the start of step 0: not moved, as in evaluation" in failure.perhaps


def test_what_a_program_wrote_into_buffers_is_what_the_next_forward_starts_from() -> None:
    """The next forward must start from exactly the values that a program wrote into buffers.

    No forward would have left these values. If they are lost, the diagnosis says so.
    """
    evidence = right(THREE.with_situation(Actions((BetweenSteps("buffers", 1),))))
    written = [rank.tensors["twin buffers", 1] for rank in evidence.ranks]
    evidence = replace(
        evidence,
        ranks=tuple(
            replace(
                rank,
                tensors={
                    **rank.tensors,
                    ("written buffers", 1): written[0],
                    ("forward buffers", 1): written[0],
                },
            )
            for rank in evidence.ranks
        ),
    )
    finding = judge(evidence)["BUF-2"]
    assert finding.failure is None
    assert "buffers written to between steps" in finding.met
    left = evidence.ranks[0].tensors["left buffers", 0].by_name[COUNT]
    for value, words in ((left, "the program's later write is lost"), (left + 7, "")):
        failure = judge(
            altered(evidence, 0, "forward buffers", 1, COUNT, lambda _, value=value: value)
        )["BUF-2"].failure
        assert failure is not None
        assert words in failure.perhaps
        assert bool(words) == bool(failure.perhaps)


def test_what_a_program_wrote_into_parameters_is_what_the_next_step_starts_from() -> None:
    """A step must start from the values that a program wrote into parameters, and update these.

    If they are lost, at once or with the next update, the diagnosis says so.
    """
    evidence = right(MOMENTUM.with_situation(Actions((BetweenSteps("weights", 1),))))
    assert judge(evidence)["PARAM-3"].failure is None
    rank = evidence.ranks[0].tensors
    left, moved = (rank["updated", step].by_name[WEIGHT] for step in (0, 1))
    written = rank["written", 1].by_name[WEIGHT]
    assert (written == left / 2).all()
    lost: list[tuple[Moment, Array, str]] = [
        ("forward", left, "step 0 left, without what the program wrote"),
        # The decay of a step acts on what the step starts from, with the learning rate.
        (
            "updated",
            (moved + (left - written) * (1 - 0.25 / 16)).astype(np.float32),
            "from a copy that lacks what",
        ),
    ]
    for moment, value, words in lost:
        failure = judge(everywhere(evidence, moment, 1, WEIGHT, lambda _, value=value: value))[
            "PARAM-3"
        ].failure
        assert failure is not None
        assert words in failure.perhaps


MOMENTUM = replace(THREE, optimizer=Optimizer(log2_lr=-4, momentum=0.5, weight_decay=0.25))


def sgd(
    evidence: TrainingEvidence,
    step: int,
    *,
    times: int = 1,
    decay: float = 0.25,
    scale: float = 1.0,
) -> Array:
    """Return WEIGHT after a step of SGD with momentum 0.5, computed anew with a possible error."""
    rank = evidence.ranks[0]
    buffer = np.zeros((2, 2))
    value = buffer
    for number in range(step + 1):
        value, g = (
            rank.tensors["forward", number].by_name[WEIGHT],
            rank.tensors["reduced", number].by_name[WEIGHT],
        )
        for _ in range(times if number == step else 1):
            buffer = 0.5 * buffer + scale * g + decay * value
            value = value - 2.0**-4 * buffer
    return value


@pytest.mark.parametrize(
    ("kind", "step", "value"),
    [
        ("updated twice", 0, lambda e: sgd(e, 0, times=2)),
        ("weight decay twice", 0, lambda e: sgd(e, 0, decay=0.5)),
        ("weight decay lost", 0, lambda e: sgd(e, 0, decay=0.0)),
        ("summed", 0, lambda e: sgd(e, 0, scale=3.0)),
        ("no update", 0, lambda e: e.ranks[0].tensors["forward", 0].by_name[WEIGHT]),
        (None, 0, lambda e: sgd(e, 0, scale=1.7)),
    ],
)
def test_an_updates_cause_is_named(
    kind: str | None, step: int, value: Callable[[TrainingEvidence], Array]
) -> None:
    """The cause of a wrong update is found by computing the optimizer again with each error."""
    evidence = right(MOMENTUM)
    failure = judge(on_ranks(evidence, "updated", step, WEIGHT, alike(value(evidence))))[
        "PARAM-3"
    ].failure
    assert kinds(failure) == ({kind} if kind else set())


def test_an_update_that_follows_a_wrong_gradient_points_back_to_it() -> None:
    """An update that follows from a wrong gradient is reported with the gradient's own cause."""
    evidence = right(MOMENTUM)
    evidence = everywhere(evidence, "reduced", 0, WEIGHT, lambda v: v * 3)
    failure = judge(on_ranks(evidence, "updated", 0, WEIGHT, alike(sgd(evidence, 0))))[
        "PARAM-3"
    ].failure
    assert failure is not None
    assert kinds(failure) == {"gradient: summed"}
    assert "(GRAD-2), and the update follows from it: got / expected = 3" in failure.perhaps


def test_parameters_that_differ_point_back_to_what_differed_first() -> None:
    """Parameters that differ are explained by the start or the gradients that differed first."""
    evidence = right(THREE)
    apart = altered(evidence, 1, "updated", 0, WEIGHT, lambda v: v + 1)
    assert kinds(judge(apart)["PARAM-1"].failure) == set()
    started = altered(apart, 1, "forward", 0, WEIGHT, lambda v: v + 1)
    assert kinds(judge(started)["PARAM-1"].failure) == {"started different"}
    own = local(evidence)[1].astype(np.float32)
    assert kinds(
        judge(altered(apart, 1, "reduced", 0, WEIGHT, lambda _: own))["PARAM-1"].failure
    ) == {"gradient: never reduced"}


def test_parameters_that_move_between_steps_are_told_where_they_went() -> None:
    """Parameters that move back to the start between steps are diagnosed as restored."""
    evidence = right(THREE)
    start = evidence.ranks[0].tensors["forward", 0].by_name[WEIGHT]
    restored = evidence
    for step in (1, 2):
        restored = on_ranks(restored, "forward", step, WEIGHT, alike(start))
    assert kinds(judge(restored)["PARAM-3"].failure) == {"start restored"}
    assert (
        kinds(judge(on_ranks(evidence, "forward", 2, WEIGHT, alike(start + 1)))["PARAM-3"].failure)
        == set()
    )


@pytest.mark.parametrize(
    ("held", "kind"),
    [
        (lambda g: np.where(np.isnan(g), 0, g).mean(0), "scrubbed"),
        (lambda g: g[1], "never reduced"),
        (lambda g: g[1] + 1, None),
    ],
)
def test_why_a_nan_did_not_arrive_is_named(
    held: Callable[[Array], Array], kind: str | None
) -> None:
    """A NaN that did not arrive is diagnosed as scrubbed on the way or as never reduced."""
    evidence = right(THREE.with_situation(Poisoned(Poison(0, 1))))
    evidence = altered(evidence, 0, "local", 1, WEIGHT, lambda v: np.full_like(v, np.nan))
    value = held(local(evidence, WEIGHT, 1)).astype(np.float32)
    nan = np.full_like(value, np.nan)
    failure = judge(on_ranks(evidence, "reduced", 1, WEIGHT, [nan, value, nan]))["GRAD-7"].failure
    assert kinds(failure) == ({kind} if kind else set())


def deal(
    rule: str,
    shards: list[list[list[int]]],
    *,
    samples: int,
    shuffle: bool = False,
    epochs: tuple[int, ...] = (0,),
    drop_last: bool = False,
    batch_size: int = 1,
    **answer: object,
) -> Failure | None:
    """Return a rule's failure by a sampler that yields these shards."""
    case = ShardCase(
        world_size=len(shards[0]),
        epochs=epochs,
        data=Data(samples, batch_size, shuffle=shuffle, drop_last=drop_last),
    )
    plain = {
        "lengths": [len(s) for s in shards[0]],
        "shards": shards,
        "again": shards[-1],
        "afresh": shards[-1],
        "reseeded": None,
        "touched": [],
        "batches": None,
        "orders": None,
        "refused": {"rank below 0": "ValueError", "world size 0": "ValueError"},
        **answer,
    }
    return judge(ShardEvidence(case, (plain, plain)))[rule].failure


def permuted(count: int, seed: int) -> list[int]:
    """Return a random permutation of the integers below `count`."""
    order: list[int] = np.random.default_rng(seed).permutation(count).tolist()
    return order


_N = 80
_ORDERS = [permuted(_N, seed) for seed in range(4)]
_DRAWN = np.random.default_rng(0).integers(0, _N, (2, 2, _N // 2)).tolist()


@pytest.mark.parametrize(
    ("rule", "kind", "failure"),
    [
        (
            "SHARD-3",
            "shuffled differently",
            lambda rule: deal(
                rule, [[_ORDERS[0][::2], _ORDERS[1][1::2]]], samples=_N, shuffle=True
            ),
        ),
        (
            "SHARD-3",
            "epoch on some ranks",
            lambda rule: deal(
                rule,
                [[_ORDERS[0][::2], _ORDERS[0][1::2]], [_ORDERS[1][::2], _ORDERS[0][1::2]]],
                samples=_N,
                shuffle=True,
                epochs=(0, 1),
            ),
        ),
        (
            "SHARD-2",
            "with replacement",
            lambda rule: deal(rule, _DRAWN, samples=_N, shuffle=True, epochs=(0, 1)),
        ),
        ("SHARD-2", "rank ignored", lambda rule: deal(rule, [[[0, 3], [0, 3], [0, 3]]], samples=6)),
        (
            "SHARD-3",
            "not sharded",
            lambda rule: deal(rule, [[[0, 1, 2, 3], [0, 1, 2, 3]]], samples=4),
        ),
        ("SHARD-2", "tail dropped", lambda rule: deal(rule, [[[0, 1], [2, 3]]], samples=5)),
        ("SHARD-2", "sharded twice", lambda rule: deal(rule, [[[0, 4], [3, 7]]], samples=8)),
        ("SHARD-1", "off by one", lambda rule: deal(rule, [[[1, 2, 3, 4], [5, 6, 7]]], samples=8)),
        ("SHARD-1", "no padding", lambda rule: deal(rule, [[[0, 2, 4], [1, 3]]], samples=5)),
        (
            "SHARD-1",
            "padding short",
            lambda rule: deal(rule, [[[0], [1], [0], [1], []]], samples=2),
        ),
        (
            "SHARD-3",
            "padding repeats one",
            lambda rule: deal(rule, [[[0, 4], [1, 4], [2, 4], [3, 4]]], samples=5),
        ),
        (
            "SHARD-6",
            "uneven shards",
            lambda rule: deal(rule, [[[0, 2], [1]]], samples=4, batches=[2, 1]),
        ),
        (
            "SHARD-7",
            "unchecked",
            lambda rule: deal(rule, [[[0], [1]]], samples=2, refused={"rank below 0": None}),
        ),
        ("SHARD-2", None, lambda rule: deal(rule, [[[0, 5], [3, 6]]], samples=8)),
        # An index in the place of another one is no padding.
        ("SHARD-2", "replaced", lambda rule: deal(rule, [[[0, 1, 0]]], samples=3)),
        ("SHARD-2", "replaced", lambda rule: deal(rule, [[[0, 2, 0], [1, 0, 0]]], samples=5)),
        ("SHARD-2", "same shard", lambda rule: deal(rule, [[[0], [1], [0]]], samples=3)),
        ("SHARD-1", "past the end", lambda rule: deal(rule, [[[0, 2], [1, 4]]], samples=4)),
        ("SHARD-1", None, lambda rule: deal(rule, [[[0, 2], [1, 5]]], samples=4)),
        (
            "SHARD-1",
            "len one too many",
            lambda rule: deal(rule, [[[0, 2, 4], [1, 3, 5]]], samples=6, lengths=[4, 4]),
        ),
        (
            "SHARD-1",
            "len of the dataset",
            lambda rule: deal(rule, [[[0, 2], [1, 3]]], samples=4, batch_size=2, lengths=[4, 4]),
        ),
        (
            "SHARD-1",
            "len of all batches",
            lambda rule: deal(rule, [[[0, 2], [1, 3]]], samples=4, batch_size=4, lengths=[1, 1]),
        ),
        (
            "SHARD-2",
            "short batches lost",
            lambda rule: deal(rule, [[[0, 1, 2], [5, 6, 7]]], samples=10, batch_size=3),
        ),
        (
            "SHARD-1",
            "endless",
            lambda rule: deal(rule, [[[0] * 1016, [1] * 1016]], samples=2, lengths=[None, None]),
        ),
        (
            "SHARD-2",
            "drop_last ignored",
            lambda rule: deal(rule, [[[0, 2], [1, 0]]], samples=3, drop_last=True),
        ),
        (
            "SHARD-2",
            "short batch lost",
            lambda rule: deal(rule, [[[0, 1], [2, 3]]], samples=7, batch_size=4),
        ),
        ("SHARD-2", "off by one", lambda rule: deal(rule, [[[0, 2], [1, 3]]], samples=6)),
        (
            "SHARD-5",
            "epoch ignored",
            lambda rule: deal(rule, [[_ORDERS[0]]] * 2, samples=_N, shuffle=True, epochs=(0, 1)),
        ),
        (
            "SHARD-5",
            "shuffle ignored",
            lambda rule: deal(
                rule, [[list(range(_N))]] * 2, samples=_N, shuffle=True, epochs=(0, 1)
            ),
        ),
        (
            "SHARD-5",
            "first order kept",
            lambda rule: deal(
                rule,
                [[_ORDERS[0]]] * 2,
                samples=_N,
                shuffle=True,
                epochs=(1, 0),
                afresh=[_ORDERS[1]],
            ),
        ),
        (
            "SHARD-5",
            None,
            lambda rule: deal(
                rule,
                [[_ORDERS[0]], [_ORDERS[0]], [_ORDERS[1]]],
                samples=_N,
                shuffle=True,
                epochs=(1, 0, 2),
                afresh=[_ORDERS[2]],
            ),
        ),
        (
            "SHARD-4",
            "seeds",
            lambda rule: deal(rule, [[_ORDERS[0]]], samples=_N, shuffle=True, touched=["torch"]),
        ),
        (
            "SHARD-4",
            "draws",
            lambda rule: deal(
                rule,
                [[_ORDERS[0]]],
                samples=_N,
                shuffle=True,
                touched=["torch"],
                afresh=[_ORDERS[1]],
            ),
        ),
    ],
)
def test_a_samplers_cause_is_named(
    rule: str, kind: str | None, failure: Callable[[str], Failure | None]
) -> None:
    """A sampler's cause is named if every other cause is impossible or less likely than 1e-9."""
    assert kinds(failure(rule)) == ({kind} if kind else set())


def test_on_a_short_dataset_what_is_random_stays_open() -> None:
    """On a short dataset random causes stay open, because several of them explain the shards.

    Two ranks that share one of two indices may have drawn with replacement or shuffled separately.
    """
    failure = deal("SHARD-3", [[[1], [1]]], samples=2, shuffle=True)
    assert {"rank ignored", "with replacement", "shuffled differently"} <= kinds(failure)
    assert failure is not None
    assert failure.perhaps.count("; or ") == 2


def test_padding_may_repeat_an_index_in_one_shard() -> None:
    """Blocks that are filled up by the last index of a rank's own order are no draws for certain."""
    short = deal("SHARD-2", [[[0, 2], [2, 2]]], samples=3, shuffle=True)
    assert {"with replacement", "shuffled differently"} <= kinds(short)
    samples, half = 201, 101
    first, second = permuted(samples, 0)[:half], permuted(samples, 1)[half:]
    for tail, is_padding in (([second[-1]], True), ([second[-2], second[-2]], False)):
        blocks = [first, [*second, *tail][-half:]]
        found = kinds(deal("SHARD-2", [blocks], samples=samples, shuffle=True))
        assert found == ({"shuffled differently"} if is_padding else set())


def test_larger_cases_keep_what_a_smaller_one_is_about() -> None:
    """Larger cases keep a case's kinds of layers, ties, layouts, and the cap's relation to sizes.

    They have more ranks only if the scope allows more ranks.
    """
    case = TrainingCase(
        Model(1, (Layer("linear", layout="strided"), Layer("linear", tied=0))),
        world_size=2,
        bucket_cap=2,
    )
    larger = list(telling(case, Scope(3)))
    assert {
        candidate.world_size for candidate in larger if isinstance(candidate, TrainingCase)
    } == {2, 3}
    assert all(
        isinstance(candidate, TrainingCase)
        and candidate.model.layers[1].tied == 0
        and candidate.model.layers[0].layout == "strided"
        and candidate.values == "real"
        for candidate in larger
    )
    assert all(candidate.world_size == 2 for candidate in telling(case, Scope(2)))
    assert {candidate.world_size for candidate in telling(ShardCase(), Scope())} == {2, 3, 4}


SENT_TOGETHER = [Call("allreduce", "float32", 7, "SUM", site="ddp.py:3", launched=0.7, waited=0.8)]
SOME_SENT = [Call("allreduce", "float32", 3, "SUM", site="ddp.py:3", launched=0.7, waited=0.8)]
AMBIGUOUS = [
    Call("allreduce", "float32", 2, "SUM", site="ddp.py:3", launched=0.5),
    Call("allreduce", "float32", 2, "SUM", site="ddp.py:3", launched=0.7),
]


@pytest.mark.parametrize(
    ("calls", "name", "event"),
    [
        (
            None,
            WEIGHT,
            (
                "it travelled in reduction 2 of 2 of step 0 on rank 0, "
                "all_reduce (float32 x 4 SUM) at ddp.py:1, started "
                "600.0 ms into the backward and waited for after 700.0 ms"
            ),
        ),
        (
            None,
            SCALE,
            (
                "it travelled in reduction 1 of 2 of step 0 on rank 0, "
                "all_reduce (float32 x 3 SUM) at ddp.py:1"
            ),
        ),
        (SENT_TOGETHER, BIAS, "it travelled in the only reduction of step 0"),
        (
            AMBIGUOUS,
            WEIGHT,
            (
                "in step 0 rank 0 sent all_reduce (float32 x 2 SUM) at ddp.py:3, "
                "all_reduce (float32 x 2 SUM) at "
                "ddp.py:3; its float32 gradients have 7 elements"
            ),
        ),
        (SOME_SENT, WEIGHT, "none of the 1 reductions of step 0 on rank 0 carried it"),
        (SOME_SENT, SCALE, "in step 0 rank 0 sent all_reduce (float32 x 3 SUM) at ddp.py:3"),
        (
            [],
            WEIGHT,
            "no reduction of float32 gradients by rank 0 was observed in step 0's backward or after it",
        ),
    ],
)
def test_a_wrong_gradient_is_told_with_the_reduction_that_carried_it(
    calls: list[Call] | None, name: str, event: str
) -> None:
    """A wrong gradient is reported with its reduction, if every filling of buckets agrees on it.

    Otherwise the report lists what the rank sent.
    """
    evidence = everywhere(right(), "reduced", 0, name, lambda value: value + value.dtype.type(1))
    if calls is not None:
        # The group is observed, because another collective was sent before.
        sent = [[Call("broadcast", "float32", 8, "from 0"), *calls]]
        evidence = replace(
            evidence, ranks=tuple(replace(rank, sent=sent) for rank in evidence.ranks)
        )
    failure = judge(evidence)["GRAD-2"].failure
    assert failure is not None
    assert failure.event.startswith(event)


def test_a_gradient_that_was_never_reduced_travelled_in_no_reduction() -> None:
    """The sizes fit a reduction, but the values show that it carried another tensor."""
    evidence = right()
    evidence = on_ranks(evidence, "reduced", 0, WEIGHT, local(evidence, WEIGHT))
    failure = judge(evidence)["GRAD-1"].failure
    assert failure is not None
    assert failure.perhaps.startswith("it equals rank 1's own local gradient: never reduced")
    assert failure.event.startswith("by the sizes it should have travelled in reduction 2 of 2")


def test_larger_cases_tell_equal_numbers_apart() -> None:
    """Micro-steps and ranks are no longer as many, nor are the ranks that use a layer and W - 1."""
    two = TrainingCase(model=Model(1, (Layer("linear"), Layer("linear"))), world_size=2)
    accumulated = replace(two, accumulation=2, data=Data(samples=8))
    assert (4, 3) in {(c.world_size, c.accumulation) for c in _trained(accumulated)}
    unused = two.with_situation(UnusedLayers((Unused(0, rank=0),)))
    users = {c.world_size - len(_unused(c)) for c in _trained(unused) if c.world_size == 4}
    assert users == {2, 3}


def _trained(case: TrainingCase) -> list[TrainingCase]:
    return [each for each in telling(case, Scope()) if isinstance(each, TrainingCase)]


def _unused(case: TrainingCase) -> set[int | None]:
    found = case.get(UnusedLayers)
    return {each.rank for each in found.layers} if found is not None else set()
