"""COMM: the collectives that the ranks issue, apart from the values they deliver."""

from collections.abc import Iterable

from ddp_invariants.cases.formats import ITEM_SIZE, PARTS
from ddp_invariants.invariants.compare import parted
from ddp_invariants.invariants.draws import FEW_RANKS, Draws
from ddp_invariants.invariants.exclusions import UNBUCKETED, Exclusion, lacks
from ddp_invariants.invariants.rule import (
    LI,
    OBSERVED_ONLY,
    SEVERAL_RUNS,
    NotAbout,
    Script,
    Tally,
    Unjudged,
)
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.evidence import Layout, RankEvidence, TrainingEvidence
from ddp_invariants.records.trace import Call, collectives, difference, label
from ddp_invariants.records.verdict import Failure

_SOURCE = (
    "the documentation of torch.distributed: collectives match across ranks, and results are "
    "there after wait()"
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
"""Collectives whose result can be withheld; `ranks.group` withholds them."""
NOT_OBSERVED = (
    "not observed: the recording process group received no collective from torch.distributed"
)


def _require_observed(ranks: Iterable[RankEvidence]) -> None:
    """Raise unless the ranks' process groups observed a collective.

    Raises:
        NotAbout: The process groups are plain, and plain process groups record nothing.
        Unjudged: No collective went through them.
    """
    sent = [rank.sent for rank in ranks]
    if not any(sent):
        raise NotAbout("the process groups are plain ones, which record nothing")
    if not any(calls for groups in sent for calls in groups):
        raise Unjudged(NOT_OBSERVED)


def _groups(view: EvidenceView) -> dict[tuple[tuple[int, ...], int], dict[int, list[Call]]]:
    """Return the collectives of each process group by rank.

    A process group is identified by its members and its number among the groups with the same
    members.
    """
    outside, by_group = (
        view.case.outside,
        dict[tuple[tuple[int, ...], int], dict[int, list[Call]]](),
    )
    for rank, evidence in enumerate(view.evidence.ranks):
        made: dict[tuple[int, ...], int] = {}
        for number, calls in enumerate(evidence.sent):
            everyone = range(outside, outside + view.case.world_size)
            members = tuple(evidence.groups[number] if number < len(evidence.groups) else everyone)
            made[members] = made.get(members, 0) + 1
            by_group.setdefault((members, made[members]), {})[rank] = collectives(calls)
    return by_group


def _require_plain_steps(view: EvidenceView) -> None:
    """Raise unless every step is a plain sequence of forwards and backwards.

    Each forward is followed by its backward, and nothing happens between steps.

    Raises:
        NotAbout: The case is not plain.
    """
    case = view.case
    if (
        case.passes != "alternate"
        or case.penalty
        or any(layer.checkpoint == "reentrant" for layer in case.model.layers)
    ):
        raise NotAbout("gradients come in several parts, or are sent several times")
    if case.exhausted:
        raise NotAbout("some ranks run out of batches")
    if case.saved_by is not None:
        raise NotAbout("training continues from a state that another run saved")
    if case.sparse:
        raise NotAbout("sparse gradients are not sent in buckets")
    if case.between_steps:
        raise NotAbout("an action between steps may change the buckets")


@training.rule(
    "COMM-1",
    "All ranks issue the same sequence of collectives: kind, dtype, element count, reduce operation.",
    needs=("more than one rank",),
    source=_SOURCE,
    draws=Draws(crossed=True),
    observed_groups=True,
    script=Script(checks=("sent",), follows_unused=True, follows_scaler=True),
)
def same_sequence_on_all_ranks(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare the recorded collectives of each process group among its members.

    Communication that bypasses torch.distributed is not seen.
    """
    world_size, incident = view.case.world_size, view.incident
    if world_size == 1:
        raise NotAbout("one rank")
    if incident is not None and incident.calls:
        return _so_far(view, tally)
    if view.cut_short:
        raise Unjudged(view.cut_short)
    _require_observed(view.evidence.ranks)
    tally.met.add("more than one rank")
    for (members, _), calls in _groups(view).items():
        trained = [
            rank
            for rank in (member - view.case.outside for member in members)
            if 0 <= rank < world_size
        ]
        tally.compared += sum(map(len, calls.values()))
        for rank in trained[1:]:
            failure = _mismatch(
                calls.get(trained[0], []), calls.get(rank, []), trained[0], rank, world_size
            )
            if failure is not None:
                return failure
    return None


def _so_far(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare what each rank is known to have issued in a run that did not end.

    A call that differs is a failure; a missing call is not, since the rank may not have reached it.
    """
    incident, outside, world_size = view.incident, view.case.outside, view.case.world_size
    assert incident is not None
    known: dict[str, dict[int, list[Call]]] = {}
    for (members, occurrence), by_rank in _groups(view).items():
        known.setdefault(label(members, occurrence - 1), {}).update(by_rank)
    for number, issued in incident.calls.items():
        for group, calls in issued.by_group().items() if number >= outside else ():
            known.setdefault(group, {})[number - outside] = calls
    for by_rank in known.values():
        first, *rest = sorted(by_rank)
        for rank in rest:
            failure = _mismatch(
                collectives(by_rank[first]),
                collectives(by_rank[rank]),
                first,
                rank,
                world_size,
                so_far=True,
            )
            if failure is not None:
                tally.compared += 1
                return failure
    raise Unjudged(view.cut_short)


def _mismatch(
    first_calls: list[Call],
    calls: list[Call],
    first: int,
    rank: int,
    world_size: int,
    *,
    so_far: bool = False,
) -> Failure | None:
    parting = difference(first_calls, calls, so_far=so_far)
    if parting is None:
        return None
    places = [
        call.at if call is not None else "nothing more" for call in (parting.first, parting.second)
    ]
    counts = "" if so_far else f"; {len(calls)} calls in all, rank {first} {len(first_calls)}"
    notes = "\n".join(_side_by_side(first_calls, calls, parting.number, first, rank))
    return Failure(
        "COMM-1",
        "ranks issue different collectives",
        f"rank {rank} of {world_size}, call {parting.number}",
        f"{places[1]}, rank {first} issues {places[0]}{counts}",
        "",
        notes,
    )


def _side_by_side(
    first_calls: list[Call], calls: list[Call], number: int, first: int, rank: int
) -> Iterable[str]:
    """Yield two ranks' sequences around the first call that differs, side by side."""
    yield f"   call   {f'rank {first}':<52} rank {rank}"
    for index in range(max(0, number - 3), min(number + 2, max(len(first_calls), len(calls)))):
        left, right = (
            column[index].at if index < len(column) else "-" for column in (first_calls, calls)
        )
        yield f" {'>' if index == number - 1 else ' '} {index + 1:>4}   {left:<52} {right}"


def _raised(evidence: TrainingEvidence) -> list[tuple[str, str, int] | None]:
    """Return the error type and place that ended each rank's run.

    The message is left out: it may hold addresses and ports.
    """
    return [
        None if rank.raised is None else (rank.raised.type, rank.raised.phase, rank.raised.step)
        for rank in evidence.ranks
    ]


TIMING = "COMM-2"
"""The rule that compares two timings of a case: its failure is a race."""


@training.rule(
    "COMM-2",
    "No answer depends on luck: with results withheld until they are waited for, and with delays, the "
    "evidence is bitwise the same.",
    needs=("results withheld", "collectives delayed"),
    source=_SOURCE,
    draws=Draws(perturbed=("withheld", "late", "delays")),
    after="GPU-1",
    costs=2,
    observed_groups=True,
    repeats_undisturbed=lambda case: case.perturbation.kind != "none",
    script=SEVERAL_RUNS,
)
def same_whatever_the_timing(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the same case run without its perturbation."""
    plan = view.case.perturbation
    if (
        plan.kind == "none"
        or plan.on_device
        or view.case.poison is not None
        or view.case.world_size == 1
    ):
        raise NotAbout("the case does not change the timing of collectives")
    # The run without the perturbation also lacks the injected failure.
    if view.case.injected_failure is not None:
        raise NotAbout("the case injects a failure")
    failure = same_as_without(view, tally, "COMM-2")
    if failure is None:
        tally.met.add("results withheld" if plan.kind == "withheld" else "collectives delayed")
    return failure


def same_as_without(view: EvidenceView, tally: Tally, rule: str) -> Failure | None:
    """Compare all evidence bitwise with that of the same case without its perturbation.

    Raises:
        NotAbout: The case was not run a second time.
        Unjudged: One of the two runs was cut short, drew other random numbers, or sent nothing that
            was observed.
    """
    plan, plain = view.case.perturbation, view.evidence.unperturbed
    if plain is None:
        raise NotAbout("the case was not run again with unchanged timing")
    unperturbed = EvidenceView(plain, view.declared)
    if view.incident is not None or plain.incident is not None:
        raise Unjudged(view.cut_short or unperturbed.cut_short)
    _require_observed(view.evidence.ranks)
    _require_the_same_draws(view.evidence.ranks, plain.ranks)
    for rank, (perturbed, before) in enumerate(zip(view.evidence.ranks, plain.ranks, strict=True)):
        for (moment, step), tensors in before.tensors.items():
            changed = perturbed.tensors.get((moment, step))
            if changed is None:
                continue
            tally.compared += len(tensors.layout.slots)
            difference = parted(tensors, changed, "with unchanged timing")
            if difference is not None:
                return Failure(
                    rule,
                    "the result depends on timing",
                    f"rank {rank} of {len(plain.ranks)}, {moment} of step "
                    f"{step}, {difference.place}",
                    difference.words,
                    f"it changes when {plan.words}",
                )
    if _raised(view.evidence) != _raised(plain):
        return Failure(
            rule,
            "the implementation raises under one timing only",
            f"world size {len(plain.ranks)}",
            f"{view.cut_short or 'nothing raised'}; with unchanged timing: "
            f"{unperturbed.cut_short or 'nothing raised'}",
            f"it changes when {plan.words}",
        )
    if view.cut_short:
        tally.compared = 0
        raise Unjudged(view.cut_short)
    return None


def _require_the_same_draws(
    perturbed_W: tuple[RankEvidence, ...], plain_W: tuple[RankEvidence, ...]
) -> None:
    """Raise unless both runs drew the same random numbers; other draws would explain a difference.

    Raises:
        Unjudged: The runs drew other numbers. An exception was caught in one run alone, or threads
            draw from the same generator.
    """
    for perturbed, plain in zip(perturbed_W, plain_W, strict=True):
        for at, tensors in plain.tensors.items():
            if (
                at[0] == "drawn"
                and at in perturbed.tensors
                and perturbed.tensors[at].bits != tensors.bits
            ):
                raise Unjudged("the two runs drew different random numbers")


IN_FLIGHT = "COMM-3"
"""The rule that shows a missing wait every time, under one timing."""


@training.rule(
    "COMM-3",
    "Nothing is still in flight when a step's gradients are to be ready, and no buffer is written while "
    "its collective is in flight.",
    needs=("results withheld",),
    source=_SOURCE,
    draws=Draws(perturbed=("withheld",)),
    after="LIVE-1",
    observed_groups=True,
)
def nothing_is_left_in_flight(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases that withhold results until they are waited for.

    In such a case a missing wait shows under every timing.
    """
    if not view.case.perturbation.kind == "withheld":
        raise NotAbout("results are not withheld")
    if view.case.exhausted:
        raise NotAbout(
            "ranks ask in every step which ranks still have batches, and need not wait for the "
            "answer"
        )
    if view.case.world_size == 1:
        raise NotAbout("one rank")
    for rank, evidence in enumerate(view.evidence.ranks):
        calls = sum(call.kind in WITHHELD for call in evidence.calls)
        if not calls:
            if not view.cut_short:
                _require_observed([evidence])
            raise Unjudged(
                view.cut_short or "no collective was observed whose result could be withheld"
            )
        tally.compared += calls
        # Collectives sent before the first step need not be ready at a step's end, so a run with
        # only such collectives does not meet the situation.
        if any(
            call.kind in WITHHELD
            for starts, ends in evidence.marks
            for call in evidence.sent_between(starts, ends)
        ):
            tally.met.add("results withheld")
        for step, sent, state in evidence.in_flight:
            return Failure(
                "COMM-3",
                f"the result of a collective is {state}",
                f"rank {rank} of {len(view.evidence.ranks)}, step {step} of {view.case.steps}",
                sent.at,
                "a wait is missing"
                if state.startswith("not")
                else "a buffer is used before its wait",
            )
    return None


_REDUCTIONS = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
)


_PADDING = 32
"""A bucket may be padded to a multiple of this many elements, or of the world size if larger.

The number of reductions shows that buckets are filled correctly. This size check only finds an
excess that no padding explains.
"""


def reductions(evidence: RankEvidence, step: int) -> list[Call]:
    """Return the reductions of a step's gradients, in the order they were started.

    Reductions of integers are left out: they carry no gradients.
    """
    began, ended, _ = evidence.backwards[step]
    return [
        call
        for call in evidence.calls
        if call.kind in _REDUCTIONS
        and began <= call.launched <= ended
        and not call.dtype.startswith(("int", "uint", "bool"))
    ]


def reductions_per_step(evidence: TrainingEvidence) -> list[int]:
    """Return the number of reductions that the first rank started in each step's backward."""
    return [
        len(reductions(evidence.ranks[0], step)) for step in range(len(evidence.ranks[0].backwards))
    ]


def overlapping(evidence: TrainingEvidence) -> bool:
    """Return whether reductions started before the last gradient was computed.

    This must hold on every rank in each step with several reductions, and there must be such a
    step. The first step is left out, since the implementation may not have planned its buckets yet.
    The result is False if a separate thread communicates: the scheduler decides when that thread
    runs.
    """
    steps = [
        (rank, step, arrived)
        for rank in evidence.ranks
        for step, (_, _, arrived) in enumerate(rank.backwards)
        if step and len(reductions(rank, step)) > 1
    ]
    if any(call.aside for rank in evidence.ranks for call in rank.calls):
        return False
    return bool(steps) and all(
        bool(arrived) and reductions(rank, step)[0].launched < arrived[-1][1]
        for rank, step, arrived in steps
    )


def filled(sizes: Iterable[int], cap: int, *, reach: bool = False) -> int:
    """Return the number of buckets of a greedy filling with tensors in their order.

    Args:
        sizes: Bytes of each tensor.
        cap: Largest number of bytes of a bucket, unless it holds one tensor.
        reach: Close a bucket only when it has reached the cap, instead of before it would exceed
            the cap.
    """
    buckets, used, opened = 0, 0, False
    for size in sizes:
        if not opened or (not reach and used + size > cap):
            buckets, used, opened = buckets + 1, 0, True
        used += size
        opened = not (reach and used >= cap)
    return buckets


def orders(layout: Layout, evidence: RankEvidence, step: int) -> list[list[str]]:
    """Return the orders in which buckets may have been filled.

    These are the registration order, its reverse, and the orders in which gradients became ready in
    this step, the step before and the first step.
    """
    names = [slot.name for slot in layout.slots if slot.dtype is not None]
    came = [
        [name for name, _ in evidence.backwards[number].computed]
        for number in {0, max(step - 1, 0), step}
    ]
    return [names, names[::-1], *(order for order in came if sorted(order) == sorted(names))]


@training.rule(
    "COMM-4",
    "No bucket exceeds the capacity unless it holds one parameter, and a step takes as many reductions "
    "as a greedy filling makes.",
    needs=("one bucket", "several buckets"),
    source=f"{LI}: gradient bucketing",
    level="capability",
    draws=Draws(world_sizes=FEW_RANKS, least_steps=2, capped=True),
    excluded=(
        Exclusion(
            "fills no buckets to a capacity",
            lambda claims: not claims.has("bucket_cap") or not claims.has("bucketing"),
        ),
        UNBUCKETED,
    ),
    after="PARAM-3",
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
        _require_observed([evidence])
        for step in range(len(evidence.backwards)):
            failure = _wrongly_filled(view, tally, rank, step, cap)
            if failure is not None:
                return failure
    if not tally.compared:
        raise NotAbout("gradients have several dtypes, or are sent in another dtype")
    return None


def _wrongly_filled(
    view: EvidenceView, tally: Tally, rank: int, step: int, cap: int
) -> Failure | None:
    evidence, layout, reach = (
        view.evidence.ranks[rank],
        view.layout(step),
        view.declared.buckets == "reach",
    )
    sent = reductions(evidence, step)
    # Complex gradients travel as they are or as their parts: torch.distributed converts them.
    if len(layout.dtypes) > 1 or {_of_parts(call.dtype) for call in sent} != set(
        map(_of_parts, layout.dtypes)
    ):
        return None
    item = ITEM_SIZE[next(iter(layout.dtypes))]
    if evidence.driven.get("bucket capacity") == "elements":
        # The driver passed a number of elements: as many as float32 has in `cap` bytes.
        cap = cap * item // ITEM_SIZE["float32"]
    sizes = {slot.name: slot.elements * item for slot in layout.slots if slot.dtype is not None}
    largest = max(sizes.values())
    # An implementation may leave out a tensor without elements.
    counts = [
        filled(
            [sizes[name] for name in order if name in sizes and (sizes[name] or empty)],
            cap,
            reach=reach,
        )
        for order in orders(layout, evidence, step)
        for empty in (True, False)
    ]
    # The first step may run before the implementation has planned its buckets.
    least, most = 1 if step == 0 else min(counts), max(counts)
    tally.compared += 1
    tally.met |= {"one bucket"} if most == 1 else {"several buckets"} if least > 1 else set()
    where = f"rank {rank} of {view.case.world_size}, step {step}"
    if not least <= len(sent) <= most:
        expected = str(least) if least == most else f"{least} to {most}"
        return Failure(
            "COMM-4",
            "buckets are not filled to their capacity",
            where,
            f"{len(sent)} reductions, expected {expected}: gradients of "
            f"{', '.join(map(str, sizes.values()))} bytes under a capacity of {cap}",
        )
    # If a bucket is filled until it reaches the capacity, its last tensor may exceed the capacity.
    allowed = max(cap + (largest if reach else 0), largest)
    spare = len(sizes) + max(view.case.world_size, _PADDING) - 1
    over = next((call for call in sent if step and _nbytes(call) - spare * item > allowed), None)
    return over and Failure(
        "COMM-4",
        "a bucket exceeds its capacity",
        where,
        f"{over.at}: {_nbytes(over)} bytes under a "
        f"capacity of {cap}, the largest gradient having {largest}",
    )


def _nbytes(call: Call) -> int:
    """Return the bytes of the recorded tensor; 0 if there is none."""
    return call.elements * ITEM_SIZE.get(call.dtype, 0)


def _of_parts(dtype: str) -> str:
    """Return a real dtype as it is, and for a complex dtype that of its parts."""
    return PARTS.get(dtype, dtype)


@training.rule(
    "COMM-5",
    "With at least two buckets the first reduction starts before the last gradient is computed.",
    needs=("two buckets",),
    source=f"{LI}: overlapping computation with communication",
    level="capability",
    draws=Draws(
        world_sizes=FEW_RANKS, least_steps=2, capped=True, every_kind=True, perturbed=("none",)
    ),
    excluded=(lacks("does not communicate during backward", "overlap"), UNBUCKETED),
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
    if view.case.world_size == 1 or view.case.perturbation.kind not in ("none", "withheld"):
        raise NotAbout("one rank" if view.case.world_size == 1 else "collectives are delayed")
    if view.case.unused:
        raise NotAbout(
            "some parameters are unused: their buckets are complete only when backward ends"
        )
    if view.case.autocast:
        raise NotAbout(
            "a layer's gradients pass through autocast's casts: a bias of the first bucket may "
            "be computed last"
        )
    _require_plain_steps(view)
    view.every_rank("reduced", 0)
    for rank, evidence in enumerate(view.evidence.ranks):
        _require_observed([evidence])
        for step, (began, _, arrived) in enumerate(evidence.backwards):
            sent = reductions(evidence, step)
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
    kind, size, rest = call.kind, float(_nbytes(call)), world_size - 1
    if kind.startswith("allreduce"):
        return 2 * rest / world_size * size
    if kind in ("_allgather_base", "all_gather_single", "broadcast", "reduce"):
        return rest / world_size * size
    if kind in ("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter", "allgather"):
        return rest * size
    return 0.0 if kind in ("recv", "recv_anysource", "barrier", "monitored_barrier") else size


@training.rule(
    "COMM-6",
    "Bytes sent per step and rank, in units of what a ring all-reduce of the gradients sends; observed, "
    "never judged.",
    needs=("more than one rank",),
    source=(
        "Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of "
        "workstations"
    ),
    level="observed",
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
