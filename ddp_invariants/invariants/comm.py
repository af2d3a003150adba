"""COMM: the collectives that the ranks issue, apart from the values they deliver."""

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.program import Perturbation
from ddp_invariants.invariants.buckets import buckets, nbytes, sums_in_parts, wrongly_filled
from ddp_invariants.invariants.draws import FEW_RANKS, Draws
from ddp_invariants.invariants.exclusions import UNBUCKETED, Exclusion, lacks
from ddp_invariants.invariants.observed import require_observed
from ddp_invariants.invariants.rule import (
    LI,
    OBSERVED_ONLY,
    SEVERAL_RUNS,
    NotAbout,
    Script,
    Tally,
    Unjudged,
    not_about,
)
from ddp_invariants.invariants.sequences import by_group, differs_so_far, mismatch
from ddp_invariants.invariants.timing import changed_timing, same_with_unchanged_timing
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.evidence import RankEvidence
from ddp_invariants.records.trace import Call
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.second import SAME, SecondWrapper

_SOURCE = (
    "the documentation of torch.distributed: collectives match across ranks, and results are "
    "available after wait()"
)

WITHHELD = (
    "allreduce",
    "reduce",
    "broadcast",
    "recv",
    "_allgather_base",
    "all_gather_single",
    "_reduce_scatter_base",
    "reduce_scatter_single",
)
"""Collectives whose result can be withheld; `ranks.groups` withholds them."""


def _require_plain_steps(view: EvidenceView) -> None:
    """Raise unless every step is a plain sequence of forwards and backwards.

    Each forward is followed by its backward, and nothing happens between steps.

    Raises:
        NotAbout: The case is not plain.
    """
    case = view.case
    not_about(
        {
            "gradients come in several parts, or are sent several times": case.passes != "alternate"
            or bool(case.penalty)
            or any(layer.checkpoint == "reentrant" for layer in case.model.layers),
            "some ranks run out of batches": bool(case.exhausted),
            "training continues from a state that another run saved": case.saved_by is not None,
            "sparse gradients are not sent in buckets": case.sparse,
            "an action between steps may change the buckets": bool(case.between_steps),
            "a second wrapper communicates as well": case.get(SecondWrapper) is not None,
            "ranks sum in parts of the group": any(
                sums_in_parts(rank, case.members) for rank in view.evidence.ranks
            ),
        }
    )


@training.rule(
    "COMM-1",
    "All ranks issue the same sequence of collectives: kind, dtype, element count, reduce operation.",
    needs=("more than one rank",),
    source=_SOURCE,
    draws=Draws(crossed=True),
    observed_groups=True,
    script=Script(checks=("sent",), follows_unused=True, follows_scaler=True),
    level="core",
)
def same_sequence_on_all_ranks(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare the recorded collectives of each process group among its members.

    Communication that bypasses torch.distributed is not seen.
    """
    world_size = view.case.world_size
    if world_size == 1:
        raise NotAbout("one rank")
    if view.stopped:
        raise Unjudged(view.stopped)
    if view.cut_short:
        return differs_so_far(view, tally)
    require_observed(view.evidence.ranks)
    tally.met.add("more than one rank")
    for (members, _), calls in by_group(view).items():
        trained = [rank for rank, member in enumerate(view.case.members) if member in members]
        tally.compared += sum(map(len, calls.values()))
        for rank in trained[1:]:
            failure = mismatch(
                calls.get(trained[0], []), calls.get(rank, []), trained[0], rank, world_size
            )
            if failure is not None:
                return failure
    return None


TIMING = "COMM-2"
"""The rule that compares two timings of a case: its failure is a race."""


@training.rule(
    "COMM-2",
    "No result depends on timing: with delays, and with results withheld until the program waits "
    "for them, the evidence is bitwise the same.",
    needs=("results withheld", "collectives delayed"),
    source=_SOURCE,
    draws=Draws(perturbed=("withheld", "late", "delays")),
    after="LIVE-8",
    needs_all=True,
    costs=2,
    observed_groups=True,
    repeats_undisturbed=lambda case: bool(changed_timing(case)),
    explored=True,
    script=SEVERAL_RUNS,
    level="core",
)
def same_whatever_the_timing(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with a run of the same case without delays, without withheld results, and in plain order."""
    plan = view.case.perturbation
    if (
        not changed_timing(view.case)
        or plan.on_device
        or view.case.poison is not None
        or view.case.world_size == 1
    ):
        raise NotAbout("the case does not change the timing of collectives")
    # The run without the perturbation also lacks the injected failure.
    if view.case.injected_failure is not None:
        raise NotAbout("the case injects a failure")
    failure = same_with_unchanged_timing(view, tally, "COMM-2")
    if failure is None and plan.kind != "none":
        tally.meet(
            {
                "results withheld": plan.kind == "withheld"
                and any(map(_withholds_in_a_step, view.evidence.ranks)),
                "collectives delayed": plan.kind != "withheld",
            }
        )
    return failure


def _withholds_in_a_step(evidence: RankEvidence) -> bool:
    """Return whether a rank issued a collective within a step whose result can be withheld.

    Collectives sent before the first step need not be ready at a step's end.
    """
    return any(
        call.kind in WITHHELD
        for starts, ends in evidence.marks
        for call in evidence.sent_between(starts, ends)
    )


IN_FLIGHT = "COMM-3"
"""The rule that shows a missing wait every time, under one timing."""


@training.rule(
    "COMM-3",
    "No collective is in flight when a step's gradients must be ready, and no buffer is written "
    "while its collective is in flight.",
    needs=("results withheld",),
    source=_SOURCE,
    draws=Draws(perturbed=("withheld",)),
    after="LIVE-1",
    observed_groups=True,
    level="core",
)
def nothing_is_left_in_flight(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases that withhold results until they are waited for.

    In such a case a missing wait shows under every timing.
    """
    not_about(
        {
            "results are not withheld": view.case.perturbation.kind != "withheld",
            "ranks ask in every step which ranks still have batches, and need not wait for the "
            "answer": bool(view.case.exhausted),
            "one rank": view.case.world_size == 1,
        }
    )
    for rank, evidence in enumerate(view.evidence.ranks):
        for step, sent, state in evidence.in_flight:
            return Failure(
                "COMM-3",
                f"the result of a collective is {state}",
                f"rank {rank} of {len(view.evidence.ranks)}, step {step} of {view.case.steps}",
                sent.at,
                _missing_wait(view.case)
                if state.startswith("not")
                else "a buffer is used before its wait",
            )
        calls = sum(call.kind in WITHHELD for call in evidence.calls)
        if not calls:
            if not view.cut_short:
                require_observed([evidence])
            raise Unjudged(
                view.cut_short or "no collective was observed whose result could be withheld"
            )
        tally.compared += calls
        tally.meet({"results withheld": _withholds_in_a_step(evidence)})
    return None


def _missing_wait(case: TrainingCase) -> str:
    """Return the cause of a collective that is in flight too long."""
    second = case.get(SecondWrapper)
    if second is None or second.use not in SAME:
        return "a wait is missing"
    return "a wait is missing, perhaps for what the module's earlier wrapper still sends"


@training.rule(
    "COMM-4",
    "No bucket exceeds the capacity unless it holds one parameter, and a step has as many "
    "reductions as greedy filling makes.",
    needs=("one bucket", "several buckets"),
    source=f"{LI}: gradient bucketing",
    applies="capability",
    draws=Draws(world_sizes=FEW_RANKS, least_steps=2, capped=True),
    excluded=(
        Exclusion(
            "does not fill buckets to a capacity",
            lambda claims: not claims.has("bucket_cap") or not claims.has("bucketing"),
        ),
        UNBUCKETED,
    ),
    after="PARAM-7",
    observed_groups=True,
    rests_on_probes=True,
    script=OBSERVED_ONLY,
)
def buckets_are_filled_to_the_cap(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge by the number of reductions; a flag beside each gradient and padding are allowed.

    Only cases whose gradients all have one dtype, and travel in it, are judged. How gradients of
    several dtypes share buckets is not specified.
    """
    cap, world_size = view.case.bucket_cap, view.case.world_size
    if cap is None or world_size == 1:
        raise NotAbout("no bucket capacity" if cap is None else "one rank")
    if view.case.unused:
        raise NotAbout("some parameters are unused, and may not be sent")
    _require_plain_steps(view)
    view.every_rank("reduced", 0)
    for rank, evidence in enumerate(view.evidence.ranks):
        require_observed([evidence])
        for step in range(len(evidence.backwards)):
            failure = wrongly_filled(view, tally, rank, step, cap)
            if failure is not None:
                return failure
    if not tally.compared:
        raise NotAbout("gradients have several dtypes, or are sent in another dtype")
    return None


def _delayed(plan: Perturbation) -> str:
    """Return what a perturbation delays, as the reason not to judge a case."""
    return "a stream is delayed" if plan.on_device else "collectives are delayed"


@training.rule(
    "COMM-5",
    "With at least two buckets the first reduction starts before the last gradient is computed.",
    needs=("two buckets",),
    source=f"{LI}: overlapping computation with communication",
    applies="capability",
    draws=Draws(
        world_sizes=FEW_RANKS, least_steps=2, capped=True, every_kind=True, perturbed=("none",)
    ),
    excluded=(
        lacks("shows no communication during backward, or is called after it", "overlap"),
        UNBUCKETED,
    ),
    after="COMM-4",
    observed_groups=True,
    rests_on_probes=True,
    script=OBSERVED_ONLY,
)
def reduction_overlaps_backward(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases whose gradients all have one dtype.

    Buckets of several dtypes interleave, and the first bucket may wait for the last gradient. The
    first step is left out, since the implementation may not have planned its buckets yet.
    """
    plan = view.case.perturbation
    not_about(
        {
            "one rank": view.case.world_size == 1,
            _delayed(plan): plan.kind not in ("none", "withheld"),
            "some parameters are unused: their buckets are complete only when backward ends": bool(
                view.case.unused
            ),
            "a layer's gradients pass through autocast's casts: a bias of the first bucket may "
            "be computed last": view.case.autocast,
            "a rank computes gradients in another order: that of the first bucket may be its last "
            "one": view.case.crossed is not None,
            "the model's own parameter comes first in its list, and its gradient does not come last": (
                view.case.model.rooted not in (None, 0)
            ),
        }
    )
    _require_plain_steps(view)
    view.every_rank("reduced", 0)
    for rank, evidence in enumerate(view.evidence.ranks):
        require_observed([evidence])
        for step, (began, _, arrived) in enumerate(evidence.backwards):
            sent = buckets(evidence, step)
            if not step or len(sent) < 2 or not arrived or len(view.layout(step).dtypes) > 1:
                continue
            if any(call.aside for call in sent):
                raise NotAbout("a separate thread communicates, and the scheduler decides when")
            tally.compared += 1
            tally.met.add("two buckets")
            name, last = arrived[-1]
            first = sent[0]
            if first.launched > last:
                return Failure(
                    "COMM-5",
                    "communication waits for the whole backward",
                    f"rank {rank} of {view.case.world_size}, step {step}",
                    f"the first of {len(sent)} reductions, {first.at}, starts after "
                    f"{(first.launched - began) * 1e3:.2f} ms of the backward, the last "
                    f"gradient, of {name!r}, is computed after {(last - began) * 1e3:.2f} ms",
                )
    if not tally.compared:
        raise NotAbout(
            "fewer than two buckets after the first step, or gradients of several dtypes"
        )
    return None


def _bytes_sent(call: Call, world_size: int) -> float:
    """Return the bytes a rank sends for a collective, under the algorithms that send least.

    Source: Patarasuk and Yuan 2009. The recorded elements are those of the first tensor. For an
    all-gather into one tensor this is the whole result, and for a reduce-scatter it is the piece.
    If tensors lie in a list, it is the rank's own piece.
    """
    kind, size, rest = call.kind, float(nbytes(call)), world_size - 1
    if kind.startswith("allreduce"):
        return 2 * rest / world_size * size
    if kind in ("_allgather_base", "all_gather_single", "broadcast", "reduce"):
        return rest / world_size * size
    if kind in ("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter", "allgather"):
        return rest * size
    return 0.0 if kind in ("recv", "recv_anysource", "barrier", "monitored_barrier") else size


@training.rule(
    "COMM-6",
    "The bytes sent per step and rank, in units of the bytes that a ring all-reduce of the "
    "gradients sends; observed, never judged.",
    needs=("more than one rank",),
    source=(
        "Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of "
        "workstations"
    ),
    applies="observed",
    observed_groups=True,
    script=OBSERVED_ONLY,
)
def bytes_per_step(view: EvidenceView, tally: Tally) -> Failure | None:
    """Observe the bytes that the recorded collectives send at best.

    One unit is 2 (W - 1) / W times the gradients' bytes.
    """
    world_size = view.case.world_size
    if world_size == 1:
        raise NotAbout("one rank")
    if view.case.get(SecondWrapper) is not None:
        raise NotAbout("a second wrapper communicates as well")
    tally.met.add("more than one rank")
    for evidence in view.evidence.ranks:
        for step, (starts, ends) in enumerate(evidence.marks):
            gradient = view.layout(step).nbytes
            calls = evidence.sent_between(starts, ends)
            if gradient:
                tally.compared += len(calls)
                sent = sum(_bytes_sent(call, world_size) for call in calls)
                tally.observed.append(sent / (2 * (world_size - 1) / world_size * gradient))
    return None
