"""CALL-1 and CALL-2 fail on handmade evidence of changed calls and changed input gradients."""

from dataclasses import replace

import numpy as np
import pytest
from handmade import CASE, Maker, right

from ddp_invariants.errors import CaseError
from ddp_invariants.invariants import judge
from ddp_invariants.records.evidence import ShapedCall, TrainingEvidence
from ddp_invariants.records.verdict import Finding
from ddp_invariants.situations.call_shape import CallShape

FORMS = CASE.with_situation(CallShape(("keyword",), ("dict",)))
TRAINED = CASE.with_situation(CallShape(("trained",)))
RIGHT = ShapedCall(0, "(x=a)", "(x=a)", "dict('y': b)", "dict('y': b)")


def called(*calls: ShapedCall) -> dict[str, Finding]:
    """Return the findings on evidence of which rank 1 has these calls."""
    evidence = right(FORMS)
    ranks = evidence.ranks[0], replace(evidence.ranks[1], shaped=list(calls))
    return judge(replace(evidence, ranks=ranks))


def with_gradients(wrapped: list[float] | None, twin: list[float]) -> TrainingEvidence:
    """Return evidence of which rank 1 has these gradients of the part before the wrapper."""
    evidence = right(TRAINED)
    values = None if wrapped is None else np.array(wrapped)
    noted = Maker().tensors({"wrapped": values, "twin": np.array(twin)})
    rank = replace(evidence.ranks[1], tensors={**evidence.ranks[1].tensors, ("front", 1): noted})
    return replace(evidence, ranks=(evidence.ranks[0], rank))


def test_right_calls_hold_and_are_counted() -> None:
    """A call that passes through unchanged meets the condition of CALL-1."""
    finding = called(RIGHT)["CALL-1"]
    assert finding.failure is None
    assert finding.compared == 1
    assert finding.met == {"a call of another form"}


@pytest.mark.parametrize(
    ("field", "fact"),
    [
        ("received", "the module does not get the arguments of the call"),
        ("got", "the wrapper does not return what the module returns"),
    ],
)
def test_call1_fires_on_a_changed_argument_or_result(field: str, fact: str) -> None:
    """The failure names the rank and the step, and quotes both sides."""
    failure = called(RIGHT, RIGHT._replace(**{"number": 2, field: "list(b)"}))["CALL-1"].failure  # type: ignore[arg-type]  # two fields' values
    assert failure is not None
    assert failure.fact == fact
    assert failure.where == "rank 1 of 2, step 2"
    assert failure.got.startswith("list(b), expected ")


def test_call1_is_not_judged_where_no_forward_of_the_module_ran() -> None:
    """A wrapper may compute with a copy of the module; then nothing is known of the arguments."""
    assert called(RIGHT._replace(received="", returned=""))["CALL-1"].unjudged
    assert called()["CALL-1"].unjudged


@pytest.mark.parametrize(
    ("wrapped", "words"),
    [
        ([0.5, 1.0], "got / expected = 1 / world size"),
        ([2.0, 4.0], "got / expected = world size"),
        ([1.0, 2.5], ""),
        (None, "the graph was cut before the module"),
    ],
)
def test_call2_fires_on_another_gradient_of_the_inputs(
    wrapped: list[float] | None, words: str
) -> None:
    """A gradient that is scaled or missing is named as such."""
    failure = judge(with_gradients(wrapped, [1.0, 2.0]))["CALL-2"].failure
    assert failure is not None
    assert failure.where == "rank 1 of 2, step 1"
    assert failure.perhaps.startswith(words)
    assert bool(failure.perhaps) is bool(words)


def test_call2_holds_on_equal_gradients_also_if_they_are_no_numbers() -> None:
    """The bits of a NaN are not compared."""
    for values in ([1.0, 2.0], [np.nan, 1.0]):
        finding = judge(with_gradients(values, values))["CALL-2"]
        assert finding.failure is None
        assert finding.compared == 1


def test_forms_without_any_that_is_not_plain_are_refused() -> None:
    """A call shape whose forms are all plain would be no situation."""
    with pytest.raises(CaseError, match="at least one form that is not plain"):
        CASE.with_situation(CallShape())
    with pytest.raises(CaseError, match=r"call_shape\.inputs is 'circle'"):
        CASE.with_situation(CallShape(("circle",)))  # type: ignore[arg-type]  # on purpose
    assert CallShape(("trained",)).without_forms(frozenset({"trained"})) is None
