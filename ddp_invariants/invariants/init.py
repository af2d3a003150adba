"""INIT: all ranks start from the source rank's parameters and buffers.

Wrapping changes nothing else.
"""

from collections.abc import Callable, Sequence

from ddp_invariants.implementation.declarations import SHARDED
from ddp_invariants.invariants.compare import apart
from ddp_invariants.invariants.diagnosis import starts
from ddp_invariants.invariants.draws import ANY_WORLD, Draws
from ddp_invariants.invariants.exclusions import NO_BUFFERS, SEEDED, Exclusion
from ddp_invariants.invariants.rule import (
    LI,
    MovedAfter,
    NotAbout,
    Script,
    Tally,
    Unjudged,
    not_about,
)
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.evidence import ModuleTensor, Moment
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.own_buffers import OwnBuffers

_SOURCE = f"{LI}: all processes start from the same model state"

_COLUMNS = ("name", "dtype", "shape", "requires_grad", "tied to", "kind")
DIFFERED = "ranks differed before wrapping"
SOURCE_CHANGED = "wrapping changed a value on the source rank"
"""The fact that INIT-3 reports if a value changed, but nothing of the structure."""
OTHER_NAMES: dict[str, Callable[[set[str]], bool]] = {
    "a submodule called module": lambda names: any(name.startswith("module.") for name in names),
    "names equal with underscores for dots": lambda names: (
        len({name.replace(".", "_") for name in names}) < len(names)
    ),
    "names equal without dots": lambda names: (
        len({name.replace(".", "") for name in names}) < len(names)
    ),
    "names equal in lower case": lambda names: len({name.lower() for name in names}) < len(names),
    "a parameter of the whole module": lambda names: any("." not in name for name in names),
}
"""What INIT-3 notes of the names of parameters and buffers, each with its test.

It needs none of them: a run of few cases rarely meets all.
"""
_EQUAL = "the ranks were built with equal seeds, as the implementation declares (INIT-4)"
_OWN = "the program asks for no broadcasts of buffers, so the ranks may start from different ones"


def _like_the_source(
    view: EvidenceView, tally: Tally, rule: str, subject: str, before: Moment, after: Moment
) -> Failure | None:
    if view.case.saved_by is not None:
        raise NotAbout("the first forward starts from a loaded state")
    built, started = view.every_rank(before), view.every_rank(after)
    tally.meet(
        {
            DIFFERED: any(tensors != built[0] for tensors in built[1:]),
            "a group without rank 0": view.case.outside,
        }
    )
    for rank, tensors in enumerate(started):
        tally.compared += sum(tensors.layout.sizes)
        difference = apart(built[0], tensors, "rank 0 built")
        if difference is not None:
            place = (
                difference.place
                if subject == "parameters"
                else difference.place.replace("parameter", "buffer", 1)
            )
            failure = Failure(
                rule,
                f"{subject} differ from rank 0's when the first forward starts",
                f"rank {rank} of {len(started)}, step 0, {place}",
                difference.words,
            )
            return starts.of_start(view, failure, rank, difference.name, built, started)
    return None


@training.rule(
    "INIT-1",
    "When the first forward starts, every parameter on every rank has the values that rank 0 "
    "built.",
    needs=(DIFFERED, "a group without rank 0"),
    source=_SOURCE,
    excluded=(SEEDED,),
    after="INIT-3",
    script=Script(checks=("start", "started_parameters"), follows_scaler=True),
    level="core",
)
def parameters_are_the_sources(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare bitwise with rank 0; the ranks were built differently on purpose."""
    if view.case.init == "equal":
        raise NotAbout(_EQUAL)
    return _like_the_source(view, tally, "INIT-1", "parameters", "built", "forward")


@training.rule(
    "INIT-2",
    "When the first forward starts, every buffer (float, integer or bool) on every rank has the "
    "values that rank 0 built.",
    needs=(DIFFERED,),
    source=_SOURCE,
    applies="capability",
    draws=Draws(buffers=True, evaluations=True),
    excluded=(SEEDED, NO_BUFFERS),
    after="INIT-1",
    script=Script(checks=("start", "started_buffers"), follows_scaler=True),
)
def buffers_are_the_sources(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare bitwise with rank 0; the ranks were built differently on purpose."""
    failure = view.case.injected_failure
    not_about(
        {
            _EQUAL: view.case.init == "equal",
            _OWN: view.case.get(OwnBuffers) is not None,
            "the first forward fails on purpose, and may have changed buffers": failure is not None
            and failure.step == 0,
        }
    )
    return _like_the_source(view, tally, "INIT-2", "buffers", "built buffers", "forward buffers")


@training.rule(
    "INIT-3",
    "Wrapping changes no name, shape, dtype, requires_grad flag or tying, and no value on rank 0.",
    needs=("tied parameter", "frozen parameter"),
    source=_SOURCE,
    draws=Draws(world_sizes=ANY_WORLD, every_kind=True, named=True, evaluations=True),
    after="COMM-2",
    moved_after=MovedAfter("INIT-4", lambda failure: failure.fact == SOURCE_CHANGED),
    script=Script(checks=("structure",), follows_scaler=True),
    level="core",
)
def wrapping_changes_nothing_else(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare the structure on every rank, and the bits on the source rank."""
    sharded = view.declared.zero == SHARDED
    if not sharded:
        view.every_rank("wrapped")
    ranks = view.evidence.ranks
    if not all(rank.structure_after for rank in ranks):
        raise Unjudged(view.cut_short or "a rank recorded no structure")
    for number, rank in enumerate(ranks):
        before, after = rank.structure_before, rank.structure_after
        # Shapes are those of shards, and a lost tie shows in a forward.
        if sharded:
            before, after = (
                [row._replace(dtype="", shape=[], first_name="") for row in rows]
                for rows in (before, after)
            )
        # A wrapper may list flat tensors instead of those that are trained.
        trained = {row.name for row in before if row.kind == "parameter" and row.requires_grad}
        if view.declared.partition == "flat" and not trained & {row.name for row in after}:
            common = {row.name for row in before} & {row.name for row in after}
            before, after = (
                [row for row in rows if row.kind == "buffer" or row.name in common]
                for rows in (before, after)
            )
        # A wrapper may register tensors again in another order.
        if {row.name for row in before} == {row.name for row in after}:
            before, after = (_by_name(rows) for rows in (before, after))
        tally.compared += len(before)
        rows = rank.structure_before
        own_names = {row.name for row in rows}
        tally.meet(
            {
                "tied parameter": any(row.name != row.first_name for row in rows),
                "frozen parameter": any(
                    not row.requires_grad and row.kind == "parameter" for row in rows
                ),
                **{condition: is_met(own_names) for condition, is_met in OTHER_NAMES.items()},
            }
        )
        if before == after:
            continue
        names = [row.name for row in before], [row.name for row in after]
        if names[0] != names[1]:
            return Failure(
                "INIT-3",
                "wrapping changed the names of parameters or buffers",
                f"rank {number} of {len(ranks)}",
                f"{names[1]}, expected {names[0]}",
            )
        was, became = next((b, a) for b, a in zip(before, after, strict=True) if b != a)
        changes = [
            f"{label} {a!r}, expected {b!r}"
            for label, b, a in zip(_COLUMNS, was, became, strict=True)
            if a != b
        ]
        return Failure(
            "INIT-3",
            f"wrapping changed a {was.kind}'s structure",
            f"rank {number} of {len(ranks)}, {was.kind} {was.name!r}",
            "; ".join(changes),
        )
    return None if sharded else _changed_value(view)


def _by_name(rows: Sequence[ModuleTensor]) -> list[ModuleTensor]:
    """Return rows in the order of their names, each with the first name of its tensor by that order."""
    names = sorted(rows, key=lambda row: row.name, reverse=True)
    first = {row.first_name: row.name for row in names}
    return [
        row._replace(first_name=row.first_name and first[row.first_name]) for row in names[::-1]
    ]


def _changed_value(view: EvidenceView) -> Failure | None:
    """Return a failure if wrapping changes a value on the source rank."""
    source = view.evidence.ranks[0]
    for before_moment, after_moment in (
        ("built", "wrapped"),
        ("built buffers", "wrapped buffers"),
    ):
        built, wrapped = (
            source.at(before_moment),  # type: ignore[arg-type]  # a moment
            source.at(after_moment),  # type: ignore[arg-type]  # a moment
        )
        if built is None or wrapped is None:
            raise Unjudged(view.cut_short or f"rank 0 recorded no {before_moment} values")
        difference = apart(built, wrapped, "rank 0 built")
        if difference is not None:
            return Failure(
                "INIT-3", SOURCE_CHANGED, f"rank 0, {difference.place}", difference.words
            )
    return None


@training.rule(
    "INIT-4",
    "If equal seeds replace the broadcast, all ranks start from identical parameters and buffers.",
    source="a practice of some implementations: equal seeds instead of a broadcast",
    applies="declared",
    excluded=(
        Exclusion(
            "broadcasts parameters at the start (see INIT-1)",
            lambda claims: claims.declared.init != "seed",
        ),
    ),
    after="INIT-2",
    script=Script(checks=("start",), follows_scaler=True),
    level="core",
)
def equal_seeds_start_identical(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge only implementations that declare init = seed."""
    if view.case.init != "equal":
        raise NotAbout("the implementation does not declare init = seed, so it must synchronise")
    return _like_the_source(
        view, tally, "INIT-4", "parameters", "built", "forward"
    ) or _like_the_source(view, tally, "INIT-4", "buffers", "built buffers", "forward buffers")
