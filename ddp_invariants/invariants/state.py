"""STATE: training that is saved and loaded continues as if it had not been interrupted."""

from itertools import pairwise

from ddp_invariants.invariants import param
from ddp_invariants.invariants.compare import apart
from ddp_invariants.invariants.draws import Draws
from ddp_invariants.invariants.exclusions import lacks
from ddp_invariants.invariants.rule import NotAbout, Tally, Unjudged
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.evidence import Moment
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.own_buffers import OwnBuffers

_SOURCE = (
    "the documentation of torch.nn.Module and torch.optim.Optimizer: state_dict and load_state_dict"
)

RELOADED, STATEFUL = "saved and loaded", "the optimizer's state"
_KEPT: tuple[tuple[str, Moment, Moment], ...] = (
    ("a parameter", "updated", "restored"),
    ("a buffer", "left buffers", "restored buffers"),
    ("the optimizer's state", "state", "restored state"),
)
"""The saved tensors: name, moment recorded before saving, moment recorded after loading."""


@training.rule(
    "STATE-1",
    "A new wrapper and a new optimizer that load a saved state hold it bitwise, and training "
    "continues from there. The state has the module's names, or these names with one prefix.",
    needs=(RELOADED, STATEFUL),
    source=_SOURCE,
    applies="capability",
    draws=Draws(
        between_steps=("reload", "learning rate", "decay", "save"),
        prefixed=True,
        named=True,
        stateful=True,
        grouped=True,
    ),
    excluded=(lacks("saves no state", "state"),),
    after="PARAM-4",
)
def loaded_state_is_the_saved_state(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare parameters, buffers and the optimizer's state of cases that save and load.

    PARAM-3 judges the later steps. If another number of ranks loads the state, this rule judges its
    names only; STATE-2 judges the rest.
    """
    if view.case.saved_by is not None:
        return _of_names(view, tally)
    steps = sorted(
        {
            action.step
            for action in view.case.between_steps
            if action.kind == "reload" and action.step > 0
        }
    )
    if not steps:
        raise NotAbout("the case saves nothing")
    for step in steps:
        failure = (
            _of_names(view, tally)
            or _of_values(view, tally, step)
            or _of_the_start(view, tally, "STATE-1", step)
        )
        if failure is not None:
            return failure
        tally.met.add(RELOADED)
    return None


def _of_names(view: EvidenceView, tally: Tally) -> Failure | None:
    names = {row.name for row in view.evidence.ranks[0].structure_before}
    names -= view.case.model.unsaved
    if not names:
        raise Unjudged(view.cut_short or "rank 0 recorded no structure")
    first = min(names)
    for rank, evidence in enumerate(view.evidence.ranks):
        for saved in evidence.saved:
            tally.compared += len(saved)
            # Accept any prefix for the module, and any additional entries of the wrapper.
            prefixes = [name[: -len(first)] for name in saved if name.endswith(first)]
            if not any(
                names <= {name.removeprefix(prefix) for name in saved if name.startswith(prefix)}
                and not _repeats(prefix)
                for prefix in prefixes
            ):
                return Failure(
                    "STATE-1",
                    "a saved state has other names than the module's",
                    f"rank {rank} of {view.case.world_size}",
                    f"{saved[:4]}, expected names such as {first!r} or 'module.{first}', one "
                    "prefix for every parameter and buffer",
                )
    return None


def _repeats(prefix: str) -> bool:
    """Return whether a prefix contains the same name twice in a row."""
    parts = prefix.split(".")
    return any(part == following != "" for part, following in pairwise(parts))


def _of_values(view: EvidenceView, tally: Tally, step: int) -> Failure | None:
    """Compare the loaded values with those that the previous step left."""
    view.every_rank("restored", step)
    forwards = any(action.step == step and action.evaluates for action in view.case.between_steps)
    # A load may broadcast the first rank's buffers, as the next forward would.
    broadcast = view.case.get(OwnBuffers) is None
    for kind, left, loaded in _KEPT:
        # An extra forward moves or broadcasts the buffers before they are saved.
        if left == "left buffers" and forwards:
            continue
        before, after = view.noted(left, step - 1), view.noted(loaded, step)
        # The implementation has no such tensors, or keeps its optimizer's state private.
        if before is None or after is None:
            continue
        for rank in range(view.case.world_size):
            tally.meet({STATEFUL: left == "state" and before[rank].layout.slots})
            tally.compared += sum(before[rank].layout.sizes)
            difference = apart(
                before[rank], after[rank], "it was saved as", view.case.model.unsaved
            )
            if difference is not None and broadcast and left == "left buffers":
                difference = apart(
                    before[0], after[rank], "rank 0 saved it as", view.case.model.unsaved
                )
            if difference is not None:
                return Failure(
                    "STATE-1",
                    f"{kind} changes between saving and loading",
                    f"rank {rank} of "
                    f"{view.case.world_size}, before step {step}, {difference.place}",
                    difference.words,
                )
    return None


_OF_THE_OPTIMIZER = ("reload", "learning rate", "decay", "save")
"""The actions between steps that leave parameters as they are."""


def _of_the_start(view: EvidenceView, tally: Tally, rule: str, step: int) -> Failure | None:
    """Compare the parameters from which a step's forward starts with those that were loaded."""
    actions = {action.kind for action in view.case.between_steps if action.step == step}
    if not actions <= {*_OF_THE_OPTIMIZER}:
        return None
    loaded, started = view.every_rank("restored", step), view.noted("forward", step)
    if started is None:
        return None
    for rank, (before, after) in enumerate(zip(loaded, started, strict=True)):
        tally.compared += sum(after.layout.sizes)
        difference = apart(before, after, "it was loaded as")
        if difference is not None:
            return Failure(
                rule,
                "a parameter changes between loading and the next forward",
                f"rank {rank} of {view.case.world_size}, step {step}, {difference.place}",
                difference.words,
            )
    return None


FEWER, MORE = "fewer ranks saved", "more ranks saved"
_LOADED: tuple[tuple[str, Moment, Moment], ...] = (
    ("a parameter", "saved", "restored"),
    ("the optimizer's state", "saved state", "restored state"),
)
"""The tensors that another number of ranks loads; buffers may differ by rank."""


@training.rule(
    "STATE-2",
    "Another number of ranks loads a saved state bitwise, and continues training from there.",
    needs=(FEWER, MORE, STATEFUL),
    source=_SOURCE,
    applies="capability",
    draws=Draws(resized=True, prefixed=True, stateful=True),
    of_reduced=("agreement", "values"),
    excluded=(lacks("cannot load a state that another number of ranks saved", "resized"),),
    after="STATE-1",
    costs=4,
)
def another_number_of_ranks_goes_on(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare loaded values with saved values, and judge every later step.

    Only cases that load the state of another run are judged.
    """
    case = view.case
    if case.saved_by is None:
        raise NotAbout("training does not start from a saved state")
    if _of_names(view, Tally()) is not None:
        raise Unjudged("a saved state has other names than the module's (STATE-1)")
    failure = _of_loaded_values(view, tally) or _of_the_start(view, tally, "STATE-2", 0)
    if failure is not None:
        return failure
    failure = param.every_step(view, tally)
    if failure is not None:
        loaded = f"after {case.saved_by} ranks saved and {case.world_size} loaded the state"
        return failure.told_by("STATE-2", loaded)
    if not view.loads_unknown_state:  # The updates are not judged then.
        tally.meet({FEWER: case.saved_by < case.world_size, MORE: case.saved_by > case.world_size})
    return None


def _of_loaded_values(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare the loaded values with those that the saving ranks held, as far as recorded."""
    loaded_by = {
        moment: view.every_rank(moment)
        for _, _, moment in _LOADED
        if view.noted(moment) is not None
    }
    view.every_rank("restored")
    for kind, left, loaded in _LOADED:
        held = next(
            (tensors for rank in view.evidence.ranks if (tensors := rank.at(left)) is not None),
            None,
        )
        if held is None or loaded not in loaded_by:
            continue
        for rank, tensors in enumerate(loaded_by[loaded]):
            tally.meet({STATEFUL: left == "saved state" and held.layout.slots})
            tally.compared += sum(held.layout.sizes)
            difference = apart(held, tensors, "it was saved as")
            if difference is not None:
                return Failure(
                    "STATE-2",
                    f"{kind} changes when another number of ranks loads it",
                    f"rank {rank} of {view.case.world_size}, {difference.place}",
                    difference.words,
                )
    return None
