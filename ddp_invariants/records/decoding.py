"""The evidence of ranks, decoded from the frames that they send."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.errors import EvidenceError
from ddp_invariants.records.evidence import (
    Backward,
    Defect,
    Incident,
    Layout,
    ModuleEvents,
    ModuleTensor,
    ProgramDraw,
    RaisedError,
    RankEvidence,
    ShapedCall,
    Slot,
    Tensors,
    TrainingEvidence,
)
from ddp_invariants.records.trace import ENDLESS, Call, LastCalls


def together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the answers of a sampler's ranks, as if one process had asked for all shards.

    Args:
        parts: By rank, of `ranks.shards.shards`.
    """
    shared = {"refused": {}, "warned": parts[0]["warned"]}
    raised = [part.get("raised") for part in parts]
    first = next(filter(None, raised), None)
    if first is not None:
        alone = first["phase"] in ("construction", "iteration")
        words = ["" if each is None else f"{each['type']}: {each['message']}" for each in raised]
        return {**shared, "raised": first, "raising": words if alone else []}
    by_rank = {
        name: None if parts[0][name] is None else [part[name][0] for part in parts]
        for name in (
            "lengths",
            "again",
            "afresh",
            "reseeded",
            "batches",
            "promised",
            "worked",
            "resumed",
        )
    }
    return {
        **shared,
        **by_rank,
        "orders": None,
        "elsewhere": None,
        "equal_seeds": None,
        "equal_epochs": None,
        "asked": [],
        "shards": [
            [part["shards"][epoch][0] for part in parts] for epoch in range(len(parts[0]["shards"]))
        ],
        "touched": sorted({name for part in parts for name in part["touched"]}),
    }


@contextmanager
def _reading() -> Iterator[None]:
    """Name the answer as unreadable if it cannot be read; another program may have written it.

    Raises:
        EvidenceError: It cannot be read.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise EvidenceError(
            f"a rank sent an unreadable answer: {type(error).__name__}: {error}"
        ) from error


@_reading()
def rank_evidence(
    header: dict[str, Any], blob: bytes | memoryview, known: dict[tuple[Slot, ...], Layout]
) -> RankEvidence:
    """Decode a rank's frame.

    Args:
        header: Its plain part.
        blob: Its bits.
        known: Layouts of this case so far; new ones are added.

    Raises:
        EvidenceError: It is malformed.
    """
    layouts = [_layout(rows, known) for rows in header["layouts"]]
    tensors = {}
    for moment, step, layout_number, start, size in header["records"]:
        layout = layouts[layout_number]
        if layout.nbytes != size or start + size > len(blob):
            raise EvidenceError(
                f"the record of {moment!r} at step {step} has {size} bytes; its "
                f"layout needs {layout.nbytes}"
            )
        # As bytes, which are compared much faster than memoryviews.
        tensors[moment, step] = Tensors(layout, bytes(blob[start : start + size]))
    facts = header["facts"]
    return RankEvidence(
        tensors,
        [ModuleTensor(*row) for row in facts.get("structure_before", [])],
        [ModuleTensor(*row) for row in facts.get("structure_after", [])],
        None if facts.get("raised") is None else RaisedError(**facts["raised"]),
        [[Call(*row) for row in group] for group in header["sent"]],
        header["groups"],
        header["changed"],
        [Defect(step, Call(*row), defect) for step, row, defect in facts.get("in_flight", [])],
        facts.get("marks", []),
        facts.get("quiet", []),
        [
            Backward(began, ended, [(name, at) for name, at in computed])
            for began, ended, computed in facts.get("backwards", [])
        ],
        facts.get("surfaced"),
        header["left"],
        facts.get("held", []),
        facts.get("driven", {}),
        facts.get("saved", []),
        facts.get("scales", []),
        [(int(calls), bool(returned)) for calls, returned in facts.get("closures", [])],
        facts.get("warned", []),
        [(int(number), bool(alike)) for number, alike in facts.get("replayed", [])],
        [ProgramDraw(*row) for row in facts.get("program_draws", [])],
        [ProgramDraw(*row) for row in facts.get("shared_draws", [])],
        [ShapedCall(*row) for row in facts.get("shaped", [])],
        [ModuleEvents(*row) for row in facts.get("uses", [])],
        int(facts.get("slowed", 0)),
        header.get("cost", []),
        _flights(header.get("flights")),
        rank_evidence(facts["beside"], blob, known) if "beside" in facts else None,
    )


def _layout(rows: list[Any], known: dict[tuple[Slot, ...], Layout]) -> Layout:
    slots = tuple([Slot(name, dtype, tuple(shape or ())) for name, dtype, shape in rows])
    return known.setdefault(slots, Layout(slots))


def _flights(rows: list[list[int]] | None) -> list[tuple[int, int]] | None:
    return None if rows is None else [(start, end) for start, end in rows]


def _stuck(words: str, *, late: bool) -> str:
    """Say why a simulated rank did not end."""
    if late and words == ENDLESS:
        return f"runs {ENDLESS}"
    where = f"waits for {words or 'its turn'}"
    return where if late else f"{where}, and no rank can run"


@_reading()
def simulated_evidence(
    case: TrainingCase, header: dict[str, Any], blob: memoryview
) -> TrainingEvidence:
    """Decode the frame of a process that ran all ranks of a case.

    Raises:
        EvidenceError: It is malformed.
    """
    layouts: dict[tuple[Slot, ...], Layout] = {}
    ranks, start = [], 0
    for answered, size in zip(header["ranks"], header["sizes"], strict=True):
        bits, start = blob[start : start + size], start + size
        if answered is None:
            ranks.append(RankEvidence({}))
        else:
            whole = {**answered, "changed": header["changed"], "cost": header.get("cost", [])}
            ranks.append(rank_evidence(whole, bits, layouts))
    stuck = {int(rank): words for rank, words in header["stuck"].items()}
    incident = None
    if stuck:
        incident = Incident(
            "hung",
            {rank: _stuck(words, late=header["late"]) for rank, words in stuck.items()},
            {int(rank): stack for rank, stack in header["stacks"].items()},
            0.0,
            {
                int(rank): LastCalls(
                    calls[0], calls[1], tuple((n, g, Call(*c)) for n, g, c in calls[2])
                )
                for rank, calls in header["calls"].items()
                if calls is not None
            },
            costly=header["late"],
        )
    return TrainingEvidence(case, tuple(ranks[rank] for rank in case.members), incident)
