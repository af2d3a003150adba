"""CALL: a wrapper is called like the module, and passes on what enters and what leaves it."""

import numpy as np

from ddp_invariants.invariants import param
from ddp_invariants.invariants.draws import ANY_WORLD, Draws
from ddp_invariants.invariants.exclusions import BY_ITSELF, lacks
from ddp_invariants.invariants.rule import NotAbout, Script, Tally, Unjudged
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.evidence import ShapedCall
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.call_shape import FORMS, TRAINED, TRAINS, CallShape
from ddp_invariants.situations.closure import CLOSURE, Closure
from ddp_invariants.situations.other_method import OTHER_METHOD, OtherMethod

FORM = "a call of another form"
_SCRIPT = Script(beyond=CallShape.beyond_scripts)


@training.rule(
    "CALL-1",
    "A forward of the wrapper passes its arguments on to the module, and returns what the module "
    "returns: the same structure, types and bits.",
    needs=(FORM,),
    source="torch.nn.Module: a module that wraps another takes its place in a program; "
    "torch's documentation of DistributedDataParallel, forward",
    applies="capability",
    draws=Draws(world_sizes=ANY_WORLD, least_steps=2, call_shapes=("all",), evaluations=True),
    excluded=(BY_ITSELF, lacks("takes and returns single tensors only", *FORMS)),
    after="RNG-1",
    costs=2,
    script=_SCRIPT,
)
def calls_pass_through(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare arguments outside and inside the wrapper, and results inside and outside.

    A forward is judged even if a later forward raises.
    """
    shape = view.case.get(CallShape)
    if shape is None:
        raise NotAbout("every forward takes a tensor and returns a tensor")
    for rank, evidence in enumerate(view.evidence.ranks):
        for call in evidence.shaped:
            if not call.received:
                continue
            tally.compared += 1
            tally.meet({FORM: set(shape.forms(call.number)) - TRAINS - {"plain"}})
            where = f"rank {rank} of {view.case.world_size}, {view.at(call.number)}"
            failure = _changed(call, where)
            if failure is not None:
                return failure
    if not tally.compared:
        raise Unjudged(view.cut_short or "no forward called the module's own forward")
    return None


def _changed(call: ShapedCall, where: str) -> Failure | None:
    """Return the failure of a call whose arguments or result changed on their way."""
    if call.sent != call.received:
        fact = "the module does not get the arguments of the call"
        return Failure("CALL-1", fact, where, f"{call.received}, expected {call.sent}")
    if call.returned != call.got:
        fact = "the wrapper does not return what the module returns"
        return Failure("CALL-1", fact, where, f"{call.got}, expected {call.returned}")
    return None


@training.rule(
    "CALL-2",
    "A gradient that leaves the wrapper through its inputs is the unwrapped module's: the wrapper "
    "neither scales it, nor reduces it over the ranks, nor drops it.",
    needs=(TRAINED,),
    source="Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, section 3.2: the wrapper "
    "averages the gradients of the parameters of its module, and of no others",
    applies="capability",
    draws=Draws(world_sizes=ANY_WORLD, call_shapes=("trained", "trained_dict")),
    excluded=(
        BY_ITSELF,
        lacks("supports no inputs that a trained parameter made", "input_gradients"),
    ),
    after="LOSS-3",
    costs=2,
    script=_SCRIPT,
)
def input_gradients_are_the_modules(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare the gradient of a parameter before the wrapper with that before the twin.

    Both follow from the same operations in the same order, so their bits are equal. NaNs are equal
    to one another.
    """
    shape = view.case.get(CallShape)
    if shape is None or not shape.trains_inputs:
        raise NotAbout("no trained parameter lies before the wrapper")
    for rank, evidence in enumerate(view.evidence.ranks):
        for step in range(view.case.steps):
            tensors = evidence.at("front", step)
            if tensors is None:
                continue
            gradients = tensors.by_name
            expected = gradients.get("twin")
            if expected is None:
                continue
            tally.compared += 1
            tally.met.add(TRAINED)
            got = gradients.get("wrapped")
            if got is None or not np.array_equal(got, expected, equal_nan=True):
                return Failure(
                    "CALL-2",
                    "a gradient of the inputs is not that of the unwrapped module",
                    f"rank {rank} of {view.case.world_size}, step {step}",
                    _told(got, expected),
                    _perhaps(got, expected, view.case.world_size),
                )
    if not tally.compared:
        raise Unjudged(view.cut_short or "no gradient of the inputs was recorded")
    return None


@training.rule(
    "CALL-3",
    "Steps are right if the program's forwards go through another method of the module, provided "
    "that the wrapper offers the methods of its module.",
    needs=(OTHER_METHOD,),
    source="no document: a wrapper that offers its module's methods invites calls of them; torch's "
    "DistributedDataParallel does not offer them",
    applies="capability",
    draws=Draws(least_steps=2, other_methods=True),
    of_reduced=("values",),
    excluded=(BY_ITSELF, lacks("offers no other method of the module", "other_methods")),
    after="CALL-2",
    needs_all=True,
    costs=2,
    script=Script(beyond=OtherMethod.beyond_scripts),
)
def other_methods_train_as_forward(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases with forwards through another method: every step must be right."""
    if view.case.get(OtherMethod) is None:
        raise NotAbout("every forward calls the wrapper")
    failure = param.every_step(view, tally)
    if failure is not None:
        return failure.told_by("CALL-3", f"with {OTHER_METHOD}")
    if view.cut_short:
        raise Unjudged(view.cut_short)
    tally.met.add(OTHER_METHOD)
    return None


@training.rule(
    "CALL-4",
    "A step that is given a closure calls it once, returns its loss, and moves the parameters by the "
    "gradients that the closure computed, synchronised.",
    needs=(CLOSURE,),
    source="the documentation of torch.optim.Optimizer.step: the closure computes the loss again "
    "and returns it",
    applies="capability",
    draws=Draws(world_sizes=ANY_WORLD, least_steps=2, closures=True),
    of_reduced=("values",),
    excluded=(BY_ITSELF, lacks("takes no closure", "closure")),
    after="CALL-3",
    needs_all=True,
    costs=2,
    script=Script(beyond=Closure.beyond_scripts),
)
def steps_with_a_closure_are_right(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases whose steps get a closure: how it was called, and every step's values."""
    if view.case.get(Closure) is None:
        raise NotAbout("no step gets a closure")
    for rank, evidence in enumerate(view.evidence.ranks):
        for step, (calls, returned) in enumerate(evidence.closures):
            tally.compared += 1
            where = f"rank {rank} of {view.case.world_size}, step {step}"
            if calls != 1:
                fact = "a step does not call its closure once"
                return Failure("CALL-4", fact, where, f"{calls} calls, expected 1")
            if not returned:
                fact = "a step does not return the loss of its closure"
                return Failure("CALL-4", fact, where, "another result, expected the loss")
    failure = param.every_step(view, tally)
    if failure is not None:
        return failure.told_by("CALL-4", "if a closure computes the gradients")
    if view.cut_short:
        raise Unjudged(view.cut_short)
    for rank, evidence in enumerate(view.evidence.ranks):
        if len(evidence.closures) < view.case.steps_of(rank):
            raise Unjudged(f"rank {rank} did not note the closures of all steps")
    tally.met.add(CLOSURE)
    return None


def _told(got: object, expected: object) -> str:
    """Return both gradients in words."""
    return f"{got if got is None else np.asarray(got)}, expected {np.asarray(expected)}"


def _perhaps(got: np.typing.NDArray[np.float64] | None, expected: object, ranks: int) -> str:
    """Return the probable cause: a gradient that is missing, or scaled by the world size."""
    if got is None:
        return "the graph was cut before the module"
    for factor, words in ((1 / ranks, "1 / world size"), (ranks, "world size")):
        if ranks > 1 and np.array_equal(got, np.asarray(expected) * factor):
            return f"got / expected = {words}: scaled like a gradient to be averaged"
    return ""
