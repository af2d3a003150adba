"""The reduction that carried a gradient: the event in the trace that a wrong gradient points to."""

from collections.abc import Iterator

from ddp_invariants.cases.formats import PARTS
from ddp_invariants.invariants.buckets import orders, reductions
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import Layout, RankEvidence
from ddp_invariants.records.trace import Call
from ddp_invariants.situations.second import SecondWrapper

_TRAVELLED, _SHOULD_HAVE = "it travelled in", "by the sizes it should have travelled in"


def of_gradient(
    view: EvidenceView, step: int, rank: int, name: str, *, reduced: bool = True
) -> str:
    """Return the reduction of a parameter's gradient in a step, in words; empty if unobserved.

    A reduction is named only if every bucket filling that fits the sent data names the same one.

    Args:
        view: The evidence.
        step: The step.
        rank: The rank.
        name: The parameter.
        reduced: False if the gradient's values show that it was in no reduction.
    """
    evidence = view.evidence.ranks[rank]
    if step >= len(evidence.backwards) or not any(evidence.sent):
        return ""
    if view.case.get(SecondWrapper) is not None:
        return ""  # Nothing tells whose gradients a reduction carried.
    layout, sent = view.layout(step), reductions(evidence, step)
    own = next((slot.dtype for slot in layout.slots if slot.name == name), None)
    dtype = _sent_in(own, sent)
    sizes = _sizes(layout, sent, dtype)
    carried = [call for call in sent if call.dtype == dtype]
    if not carried:
        # It may reduce through a group of its own that nobody observes.
        return (
            f"no reduction of {own} gradients by rank {rank} was observed in step {step}'s backward "
            "or after it"
        )
    fillings = [
        tuple(map(tuple, buckets))
        for order in orders(layout, evidence, step)
        for flags in (0, 1)
        for buckets in _filled(
            [parameter for parameter in order if parameter in sizes], sizes, carried, flags
        )
    ]
    places = {
        next((number for number, bucket in enumerate(buckets) if name in bucket), None)
        for buckets in fillings
    }
    if len(places) == 1:
        words = _words(evidence, step, rank, places.pop(), carried)
        return words if reduced else words.replace(_TRAVELLED, _SHOULD_HAVE, 1)
    if not places and _is_left_out(name, sizes, carried):
        return f"none of the {len(carried)} reductions of step {step} on rank {rank} carried it"
    listed = ", ".join(call.at for call in carried[:3]) + (" …" if len(carried) > 3 else "")
    return (
        f"in step {step} rank {rank} sent {listed}; its {dtype} gradients have "
        f"{sum(sizes.values())} elements"
    ) + (", complex ones as their parts" if dtype != own else "")


def _sent_in(dtype: str | None, sent: list[Call]) -> str | None:
    """Return the dtype in which gradients of a dtype travel.

    Complex gradients travel in the dtype of their parts, unless one is sent as it is.
    """
    return (
        dtype
        if dtype is None or any(call.dtype == dtype for call in sent)
        else PARTS.get(dtype, dtype)
    )


def _sizes(layout: Layout, sent: list[Call], dtype: str | None) -> dict[str, int]:
    """Return the number of elements of each gradient that travels in a dtype."""
    return {
        slot.name: slot.elements if slot.dtype == dtype else slot.numbers
        for slot in layout.slots
        if slot.dtype is not None and _sent_in(slot.dtype, sent) == dtype
    }


def _filled(
    order: list[str], sizes: dict[str, int], carried: list[Call], flags: int
) -> Iterator[list[list[str]]]:
    """Yield the parameters that each reduction carried, if buckets are filled in an order.

    Each parameter takes `flags` additional elements. Nothing is yielded if the sizes do not match,
    or if a parameter is left over: nothing then tells which parameters were sent.
    """
    buckets: list[list[str]] = []
    rest = list(order)
    for call in carried:
        bucket: list[str] = []
        left = call.elements
        while rest and left >= sizes[rest[0]] + flags and left:
            left -= sizes[rest[0]] + flags
            bucket.append(rest.pop(0))
        if left:
            return
        buckets.append(bucket)
    if not any(sizes[name] + flags for name in rest):
        yield buckets


def _is_left_out(name: str, sizes: dict[str, int], carried: list[Call]) -> bool:
    """Return whether a parameter is among those not sent, whichever others were not sent.

    The elements that were not sent are counted. They must be a sum of sizes with this parameter, and
    none without it.
    """
    sent = sum(call.elements for call in carried)
    certain = []
    for flags in (0, 1):
        left = sum(sizes.values()) + flags * len(sizes) - sent
        sums = {0}
        for other, size in sizes.items():
            if other != name:
                sums |= {total + size + flags for total in sums if total + size + flags <= left}
        if left in sums or left - sizes.get(name, left + 1) - flags in sums:
            certain.append(left not in sums)
    return bool(certain) and all(certain)


def _words(
    evidence: RankEvidence, step: int, rank: int, number: int | None, carried: list[Call]
) -> str:
    if number is None:  # It has no elements.
        return f"none of the {len(carried)} reductions of step {step} on rank {rank} carried it"
    call, began = carried[number], evidence.backwards[step].began
    place = (
        "the only reduction" if len(carried) == 1 else f"reduction {number + 1} of {len(carried)}"
    )
    waited = (
        "never waited for"
        if call.waited is None
        else f"waited for after {(call.waited - began) * 1e3:.1f} ms"
    )
    return (
        f"{_TRAVELLED} {place} of step {step} on rank {rank}, {call.at}, started "
        f"{(call.launched - began) * 1e3:.1f} ms into the backward and {waited}"
    )


def carried_by(view: EvidenceView, step: int, rank: int) -> list[tuple[Call, list[str]]]:
    """Return the reductions of a step with the names of the gradients each carried.

    A list of names is empty if no bucket filling fits the sent data.
    """
    evidence = view.evidence.ranks[rank]
    if step >= len(evidence.backwards) or not any(evidence.sent):
        return []
    layout, sent = view.layout(step), reductions(evidence, step)
    carried: dict[int, list[str]] = {}
    for dtype in {call.dtype for call in sent}:
        sizes = _sizes(layout, sent, dtype)
        numbers = [number for number, call in enumerate(sent) if call.dtype == dtype]
        fillings = (
            buckets
            for order in orders(layout, evidence, step)
            for flags in (0, 1)
            for buckets in _filled(
                [parameter for parameter in order if parameter in sizes],
                sizes,
                [sent[n] for n in numbers],
                flags,
            )
        )
        carried.update(zip(numbers, next(fillings, []), strict=False))
    return [(call, carried.get(number, [])) for number, call in enumerate(sent)]
