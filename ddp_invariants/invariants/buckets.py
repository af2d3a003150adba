"""The buckets in which gradients are reduced: their number, their order and their sizes."""

from collections.abc import Collection, Iterable

from ddp_invariants.cases.formats import ITEM_SIZE, PARTS, ROUNDOFF
from ddp_invariants.invariants.rule import (
    Tally,
)
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import Layout, RankEvidence, TrainingEvidence
from ddp_invariants.records.trace import Call
from ddp_invariants.records.verdict import Failure

_REDUCTIONS = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
)


_OF_GRADIENTS = ("SUM", "AVG", "PREMUL_SUM")
"""The operations that make a mean or a sum of gradients."""
_PADDING = 32
"""A bucket may be padded to a multiple of this many elements, or of the world size if larger.

The number of reductions shows that buckets are filled correctly. This size check only finds an
excess that no padding explains.
"""


def reductions(evidence: RankEvidence, step: int) -> list[Call]:
    """Return a step's reductions that may carry gradients, in the order they were started.

    Reductions of integers are left out. A wrong implementation may reduce gradients by any
    operation.
    """
    began, ended, _ = evidence.backwards[step]
    return [
        call
        for call in evidence.calls
        if began <= call.launched <= ended and _may_carry_gradients(call)
    ]


def _may_carry_gradients(call: Call) -> bool:
    return call.kind in _REDUCTIONS and not call.dtype.startswith(("int", "uint", "bool"))


def buckets(evidence: RankEvidence, step: int) -> list[Call]:
    """Return a step's reductions that carry gradients: sums and averages, but no sum of flags.

    A reduction holds flags if it has as many elements as there are gradients, and if the other
    reductions have exactly the elements of the gradients. Padded buckets may imitate that: a judge
    accuses nobody whose sums are right with the flags counted. Likewise reductions hold buffers if
    they have the buffers' elements.
    """
    sums = [call for call in reductions(evidence, step) if call.operation in _OF_GRADIENTS]
    gradients = evidence.at("reduced", step)
    sizes = [slot.numbers for slot in gradients.layout.slots if slot.dtype] if gradients else []
    flags = [call for call in sums if call.elements == len(sizes)]
    rest = [call for call in sums if len(flags) != 1 or call is not flags[0]]
    if _numbers(rest) == sum(sizes):
        return rest
    held = evidence.at("left buffers", step)
    buffers = [slot.numbers for slot in held.layout.slots if slot.dtype in ROUNDOFF] if held else []
    for travelling in (buffers, [sum(buffers)]) if buffers else ():
        others = _without(sums, travelling)
        # Each gradient may travel with a flag.
        if _numbers(others) in (sum(sizes), sum(sizes) + len(sizes)):
            return others
    return sums


def _numbers(calls: Iterable[Call]) -> int:
    """Return the real numbers in reductions; complex gradients travel as they are or as parts."""
    return sum(call.elements * (1 + (call.dtype in PARTS)) for call in calls)


def _without(calls: list[Call], sizes: list[int]) -> list[Call]:
    """Return some reductions without one of each size, the last ones first."""
    left, kept = [*sizes], list[Call]()
    for call in reversed(calls):
        if call.elements in left:
            left.remove(call.elements)
        else:
            kept.append(call)
    return kept[::-1]


def sums_in_parts(evidence: RankEvidence, members: Collection[int]) -> bool:
    """Return whether a rank sums floating-point numbers over a part of the ranks."""
    return any(
        _may_carry_gradients(call)
        for group, calls in zip(evidence.groups, evidence.sent, strict=False)
        if {*group} != {*members}
        for call in calls
    )


def reductions_per_step(evidence: TrainingEvidence) -> list[int]:
    """Return the number of buckets that the first rank sent in each step's backward."""
    return [
        len(buckets(evidence.ranks[0], step)) for step in range(len(evidence.ranks[0].backwards))
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
        if step and len(buckets(rank, step)) > 1
    ]
    if any(call.aside for rank in evidence.ranks for call in rank.calls):
        return False
    return bool(steps) and all(
        bool(arrived) and buckets(rank, step)[0].launched < arrived[-1][1]
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


def wrongly_filled(
    view: EvidenceView, tally: Tally, rank: int, step: int, cap: int
) -> Failure | None:
    """Return a failure if a rank's reductions in a step do not fit the bucket capacity."""
    evidence, layout, reach = (
        view.evidence.ranks[rank],
        view.layout(step),
        view.declared.buckets == "reach",
    )
    sums = [call for call in reductions(evidence, step) if call.operation in _OF_GRADIENTS]
    sent = buckets(evidence, step)
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
    tally.meet({"one bucket": most == 1, "several buckets": most != 1 and least > 1})
    where = f"rank {rank} of {view.case.world_size}, step {step}"
    if not any(least <= len(calls) <= most for calls in (sent, sums)):
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
    over = next((call for call in sent if step and nbytes(call) - spare * item > allowed), None)
    return over and Failure(
        "COMM-4",
        "a bucket exceeds its capacity",
        where,
        f"{over.at}: {nbytes(over)} bytes under a "
        f"capacity of {cap}, the largest gradient having {largest}",
    )


def nbytes(call: Call) -> int:
    """Return the bytes of the recorded tensor; 0 if there is none."""
    return call.elements * ITEM_SIZE.get(call.dtype, 0)


def _of_parts(dtype: str) -> str:
    """Return a real dtype as it is, and for a complex dtype that of its parts."""
    return PARTS.get(dtype, dtype)
