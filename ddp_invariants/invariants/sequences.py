"""The comparison of the ranks' sequences of collectives."""

from collections.abc import Iterable

from ddp_invariants.invariants.rule import (
    Tally,
    Unjudged,
)
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.trace import Call, collectives, difference, label
from ddp_invariants.records.verdict import Failure


def by_group(view: EvidenceView) -> dict[tuple[tuple[int, ...], int], dict[int, list[Call]]]:
    """Return the collectives of each process group by rank.

    A process group is identified by its members and its number among the groups with the same
    members.
    """
    by_group = dict[tuple[tuple[int, ...], int], dict[int, list[Call]]]()
    for rank, evidence in enumerate(view.evidence.ranks):
        made: dict[tuple[int, ...], int] = {}
        for number, calls in enumerate(evidence.sent):
            known = number < len(evidence.groups)
            members = tuple(evidence.groups[number] if known else view.case.members)
            made[members] = made.get(members, 0) + 1
            by_group.setdefault((members, made[members]), {})[rank] = collectives(calls)
    return by_group


def differs_so_far(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare what each rank is known to have issued in a run that was cut short.

    A call that differs is a failure; a missing call is not, since the rank may not have reached it.
    """
    trained, world_size = view.case.members, view.case.world_size
    waiting = {} if view.incident is None else view.incident.calls
    known: dict[str, dict[int, list[Call]]] = {}
    for (members, occurrence), by_rank in by_group(view).items():
        known.setdefault(label(members, occurrence - 1), {}).update(by_rank)
    for number, issued in waiting.items():
        for group, calls in issued.by_group().items() if number in trained else ():
            known.setdefault(group, {})[trained.index(number)] = calls
    for by_rank in known.values():
        first, *rest = sorted(by_rank)
        for rank in rest:
            failure = mismatch(
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


def mismatch(
    first_calls: list[Call],
    calls: list[Call],
    first: int,
    rank: int,
    world_size: int,
    *,
    so_far: bool = False,
) -> Failure | None:
    """Return a failure that names the first call in which two ranks' sequences differ."""
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
