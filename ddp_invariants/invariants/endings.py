"""The failure of a run that did not end: where each rank is, in words."""

import re
from collections.abc import Mapping

from ddp_invariants.records.evidence import Incident, RankEvidence
from ddp_invariants.records.verdict import Failure

_LOOP = re.compile(r"ranks/training/(run|resume|stepper|passes|trained|plain)\.py")
"""The modules of the suite's own training loop. Other modules of that folder run inside the model."""
_OF_ONE_RANK = re.compile(r"\b0x[0-9a-f]+\b|^thread \d+ .*\n?", re.MULTILINE)
"""What differs between ranks that do the same: addresses, and the states of native threads."""


def _of_the_implementation(text: str) -> str:
    """Return a rank's output without the stack frames below the suite's own training loop.

    These frames are the same every time.
    """
    kept, below = [], False
    for line in text.splitlines():
        below = below and line.startswith("  File")
        if not below:
            kept.append(line)
        below = below or _LOOP.search(line) is not None
    return "\n".join(kept)


def no_end(
    incident: Incident | None,
    world_size: int,
    perhaps: str,
    ranks: tuple[RankEvidence, ...] = (),
    members: tuple[int, ...] = (),
) -> Failure | None:
    """Return the failure of a run in which a rank hung or died; None if there was no incident."""
    if incident is None:
        return None
    printed = {rank: text for rank, text in incident.stacks.items() if text}
    notes = "\n".join(
        f"{_ranks(alike)} printed:\n{_of_the_implementation(printed[alike[0]])}"
        for alike in _alike({rank: _OF_ONE_RANK.sub("", text) for rank, text in printed.items()})
    )
    verb = "hung" if incident.kind == "hung" else "died"
    another = " while another raised" if perhaps else ""
    places = [
        whereabouts(incident, first)
        + (f" ({_ranks(others)} likewise)" if (others := tuple(alike)) else "")
        for first, *alike in _alike(
            {rank: _whereabouts(incident, rank) for rank in sorted(incident.ranks)}
        )
    ]
    places += [
        (
            f"rank {members[number]} went on to the "
            f"end{f' after {len(rank.calls)} collectives' if rank.sent else ''}"
        )
        for number, rank in enumerate(ranks)
        if rank.tensors and rank.raised is None
    ]
    # After a death the other ranks should get an error, so that error is not a cause.
    if verb == "died" and perhaps:
        places, perhaps = [*places, perhaps], ""
    return Failure(
        "LIVE-1",
        f"a rank {verb}{another}",
        f"world size {world_size}, after {incident.seconds:.1f} s"
        + (f": {incident.seen}" if incident.seen else ""),
        "; ".join(places),
        perhaps,
        notes,
        overload=incident.overload if verb == "hung" else "",
    )


def _alike(texts: Mapping[int, str]) -> list[tuple[int, ...]]:
    """Return the ranks of each text, in the order of the first of them."""
    ranks: dict[str, tuple[int, ...]] = {}
    for rank, text in texts.items():
        ranks[text] = (*ranks.get(text, ()), rank)
    return list(ranks.values())


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def whereabouts(incident: Incident, rank: int) -> str:
    """Return the place of a rank that gave no answer, from its issued calls and its stack."""
    return f"rank {rank} {_whereabouts(incident, rank)}"


def _whereabouts(incident: Incident, rank: int) -> str:
    how, calls = incident.ranks[rank], incident.calls.get(rank)
    if rank in incident.statuses:
        return how + (f" after {calls.issued} collectives" if calls is not None else "")
    place = _place(incident.stacks.get(rank, ""))
    at = (
        f"{'and ' if calls is not None else ''}is at {place}"
        if place
        else f"{'and ' if calls is not None else ''}{how}"
    )
    if calls is None:
        return at
    waiting, last = calls.call(calls.waiting), calls.call(calls.issued)
    if waiting is not None:
        return f"waits in {waiting.described(calls.waiting)} at {waiting.site}"
    return (
        f"issued {calls.issued} "
        f"collectives{f', the last {last.described(calls.issued)} at {last.site},' if last else ''} "
        f"{at}"
    )


_FRAME = re.compile(r'  File "(?P<path>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')


def _place(stacks: str) -> str:
    """Return the innermost line of the implementation in the thread that runs the case.

    The result is empty if the stacks do not show such a line.
    """
    for thread in re.split(r"\n(?=(?:Current thread|Thread) 0x)", stacks):
        frames = [frame for frame in map(_FRAME.match, thread.splitlines()) if frame is not None]
        if not any(_LOOP.search(frame["path"]) for frame in frames):
            continue
        for frame in frames:
            path = frame["path"]
            internal = (
                "/torch/" in path
                or "ddp_invariants/ranks/" in path
                or ("/lib/python" in path and "-packages" not in path)
            )
            if not internal:
                return f"{path.rpartition('/')[2]}:{frame['line']}"
    return ""
