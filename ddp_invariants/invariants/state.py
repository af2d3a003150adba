"""STATE: what is saved and loaded again goes on as if nothing had happened."""

from dataclasses import replace
from itertools import pairwise

from ddp_invariants.invariants import param
from ddp_invariants.invariants.compare import parted
from ddp_invariants.invariants.rule import NotAbout, Tally, Unjudged
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.evidence import Moment
from ddp_invariants.records.verdict import Failure

_FORWARDS = ("evaluation", "evaluation with gradients", "forward only")
RELOADED, STATEFUL = "saved and loaded", "optimizer with state"
_KEPT: tuple[tuple[str, Moment, Moment], ...] = (
    ("a parameter", "updated", "restored"),
    ("a buffer", "left buffers", "restored buffers"),
    ("the optimizer's state", "state", "restored state"),
)
"""What is kept: when it was noted before it was saved, and after it was loaded."""


@training.rule(
    "STATE-1",
    "What is trained, saved and loaded into a wrapper made anew, with its optimizer, is bitwise what was "
    "saved, under the module's names or those with one prefix, and training goes on from there.",
    (RELOADED, STATEFUL),
)
def what_is_loaded_is_what_was_saved(view: EvidenceView, tally: Tally) -> Failure | None:
    """On cases that save and load: parameters, buffers and the optimizer's state. The steps after it PARAM-3 judges.

    Of a state that another number of ranks loads, its names; the rest of it is STATE-2's.
    """
    if view.case.saved_by is not None:
        return _of_names(view, tally)
    steps = sorted(
        {one.step for one in view.case.between_steps if one.kind == "reload" and one.step > 0}
    )
    if not steps:
        raise NotAbout("nothing is saved")
    for step in steps:
        failure = _of_names(view, tally) or _of_values(view, tally, step)
        if failure is not None:
            return failure
        tally.met.add(RELOADED)
    return None


def _of_names(view: EvidenceView, tally: Tally) -> Failure | None:
    names = {row[0] for row in view.evidence.ranks[0].structure_before}
    first = min(names)
    for rank, evidence in enumerate(view.evidence.ranks):
        for saved in evidence.saved:
            tally.compared += len(saved)
            # Whatever the wrapper's name for the module, and whatever it keeps beside it.
            prefix = next((name[: -len(first)] for name in saved if name.endswith(first)), None)
            missing = sorted(names - {name.removeprefix(prefix or "") for name in saved})
            if prefix is None or missing or _repeats(prefix):
                return Failure(
                    "STATE-1",
                    "a saved state has other names than the module's",
                    f"rank {rank} of {view.case.world_size}",
                    f"{saved[:4]}, expected such as {first!r} or 'module.{first}', "
                    "one prefix for every parameter and buffer",
                )
    return None


def _repeats(prefix: str) -> bool:
    """Whether a prefix holds a name twice in a row."""
    parts = prefix.split(".")
    return any(one == other != "" for one, other in pairwise(parts))


def _of_values(view: EvidenceView, tally: Tally, step: int) -> Failure | None:
    """Whether what was loaded before a step is what the step before left."""
    view.every_rank("restored", step)
    forwards = any(one.step == step and one.kind in _FORWARDS for one in view.case.between_steps)
    for what, left, loaded in _KEPT:
        if (
            left == "left buffers" and forwards
        ):  # Which move them, or broadcast them, before they are saved.
            continue
        before, after = view.noted(left, step - 1), view.noted(loaded, step)
        if (
            before is None or after is None
        ):  # It has none, or the optimizer's state is its own affair.
            continue
        for rank in range(view.case.world_size):
            tally.met |= {STATEFUL} if left == "state" and before[rank].layout.slots else set()
            tally.compared += sum(before[rank].layout.sizes)
            difference = parted(before[rank], after[rank], "it was")
            if difference is not None:
                return Failure(
                    "STATE-1",
                    f"{what} that was saved and loaded is another",
                    f"rank {rank} of "
                    f"{view.case.world_size}, before step {step}, {difference.place}",
                    difference.words,
                )
    return None


FEWER, MORE = "fewer ranks saved", "more ranks saved"
_LOADED: tuple[tuple[str, Moment, Moment], ...] = (
    ("a parameter", "saved", "restored"),
    ("the optimizer's state", "saved state", "restored state"),
)
"""What is loaded by ranks of another number; buffers may have been each rank's own."""


@training.rule(
    "STATE-2",
    "What ranks of one number have trained and saved, those of another load bitwise, and go on from "
    "there as training does.",
    (FEWER, MORE, STATEFUL),
    costs=4,
)
def another_number_of_ranks_goes_on(view: EvidenceView, tally: Tally) -> Failure | None:
    """On cases that start from what others saved: what is loaded, and every step after it."""
    case = view.case
    if case.saved_by is None:
        raise NotAbout("it starts from nothing that was saved")
    if _of_names(view, Tally()) is not None:
        raise Unjudged("a saved state has other names than the module's (STATE-1)")
    failure = _of_what_others_saved(view, tally)
    if failure is not None:
        return failure
    failure = param.every_step(view, tally)
    if failure is not None:
        return replace(
            failure,
            rule="STATE-2",
            fact=f"after {case.saved_by} ranks saved and {case.world_size} loaded it, "
            f"{failure.fact}",
        )
    tally.met |= (
        {FEWER}
        if case.saved_by < case.world_size
        else {MORE}
        if case.saved_by > case.world_size
        else set()
    )
    return None


def _of_what_others_saved(view: EvidenceView, tally: Tally) -> Failure | None:
    """Whether what was loaded is what those that trained before held, as far as a rank was one of them."""
    loaded_by = {
        moment: view.every_rank(moment)
        for _, _, moment in _LOADED
        if view.noted(moment) is not None
    }
    view.every_rank("restored")
    for what, left, loaded in _LOADED:
        held = next(
            (tensors for rank in view.evidence.ranks if (tensors := rank.at(left)) is not None),
            None,
        )
        if held is None or loaded not in loaded_by:
            continue
        for rank, tensors in enumerate(loaded_by[loaded]):
            tally.met |= {STATEFUL} if left == "saved state" and held.layout.slots else set()
            tally.compared += sum(held.layout.sizes)
            difference = parted(held, tensors, "it was")
            if difference is not None:
                return Failure(
                    "STATE-2",
                    f"{what} that other ranks saved is another when it is loaded",
                    f"rank {rank} of {view.case.world_size}, {difference.place}",
                    difference.words,
                )
    return None
