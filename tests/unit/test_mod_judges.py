"""MOD rules fail on handmade evidence of a module that its wrapper changes as a module."""

from dataclasses import replace
from typing import get_args

import pytest
from handmade import CASE, right

from ddp_invariants.errors import CaseError
from ddp_invariants.invariants import judge
from ddp_invariants.records.evidence import ModuleEvents
from ddp_invariants.records.verdict import Finding
from ddp_invariants.situations.module_use import COPIED_GRADIENTS, WRAPPER_COPIES, ModuleUse, Use
from ddp_invariants.situations.own_buffers import OwnBuffers

USED = CASE.with_situation(ModuleUse(("names", "modes", "hooks", "copies", "states")))
EVENTS = ["before the forward", "after the forward"]


def used(*events: ModuleEvents) -> dict[str, Finding]:
    """Return the findings on evidence of which rank 1 has these events."""
    evidence = right(USED)
    ranks = evidence.ranks[0], replace(evidence.ranks[1], uses=list(events))
    return judge(replace(evidence, ranks=ranks))


@pytest.mark.parametrize(
    ("use", "rule"),
    [
        ("hooks", "MOD-1"),
        ("names", "MOD-2"),
        ("modes", "MOD-2"),
        ("copies", "MOD-3"),
        ("states", "MOD-4"),
    ],
)
def test_a_rule_compares_the_events_of_its_uses(use: str, rule: str) -> None:
    """Equal events hold, and the first that differs is named; other rules are not about them."""
    findings = used(ModuleEvents(use, 1, EVENTS, EVENTS))
    assert findings[rule].failure is None
    assert findings[rule].compared == 1
    assert len(findings[rule].met) == 1
    for got, words in (
        (EVENTS[:1], "event 1: nothing more; expected: after the forward (1 of 2 events)"),
        (EVENTS * 2, "event 2: before the forward; expected: nothing more (4 of 2 events)"),
        (EVENTS[::-1], "event 0: after the forward; expected: before the forward (2 of 2 events)"),
    ):
        failure = used(ModuleEvents(use, 1, got, EVENTS))[rule].failure
        assert failure is not None
        assert failure.where == "rank 1 of 2, step 1"
        assert failure.got == words
    assert {name for name in ("MOD-1", "MOD-2", "MOD-3", "MOD-4") if findings[name].compared} == {
        rule
    }


def test_copies_of_the_wrapper_must_hold_equal_gradients() -> None:
    """A copy that trains alone is named; gradients of some ranks alone are not judged."""
    evidence = right(CASE.with_situation(ModuleUse(("wrapper copies",))))
    trained = ModuleEvents("wrapper copies", 1, EVENTS, EVENTS)
    for values, differ, compared in (
        (("1", "1"), False, 4),
        (("1", "2"), True, 4),
        (("1",), False, 0),
        ((), False, 2),
    ):
        copies = [[ModuleEvents(COPIED_GRADIENTS, 1, [value], [])] for value in values] + [[], []]
        ranks = tuple(
            replace(rank, uses=[trained, *copies[number]])
            for number, rank in enumerate(evidence.ranks)
        )
        finding = judge(replace(evidence, ranks=ranks))["MOD-3"]
        assert (finding.failure is not None) == differ
        assert finding.compared == compared
        assert finding.met == ({WRAPPER_COPIES} if compared else frozenset())
        reason = "only some ranks recorded the gradients of a copy"
        assert finding.unjudged == ("" if compared else reason)
        if finding.failure is not None:
            assert finding.failure.where == "rank 1 of 2, step 1"
            assert finding.failure.got == "event 0: 2; expected: 1 (1 of 1 events)"


def test_a_use_that_left_no_events_is_not_judged() -> None:
    """A run that ends before the use proves nothing."""
    assert used()["MOD-1"].unjudged == "no use of the module was recorded"
    assert not judge(right())["MOD-1"].about


def test_a_use_that_can_happen_is_kept_where_another_cannot() -> None:
    """A single step takes no copies; an optimizer that loads a state takes no groups."""
    use = ModuleUse(get_args(Use))
    single = use.fitted(replace(CASE, steps=1)).get(ModuleUse)
    assert single == ModuleUse(("names", "modes", "hooks", "groups"))
    assert ModuleUse(("copies", "groups")).fitted(replace(CASE, steps=1)).get(ModuleUse) == (
        ModuleUse(("groups",))
    )
    assert use.fitted(CASE).get(ModuleUse) == use
    outside = use.fitted(replace(CASE, outside=1)).get(ModuleUse)
    assert outside == ModuleUse(("names", "modes", "hooks", "groups", "states"))
    own = use.fitted(CASE.with_situation(OwnBuffers())).get(ModuleUse)
    assert own == ModuleUse(("names", "modes", "hooks", "copies", "wrapper copies", "groups"))


def test_uses_out_of_order_or_without_a_place_are_refused() -> None:
    """One case has one form."""
    for uses in ((), ("modes", "names"), ("names", "names")):
        with pytest.raises(CaseError, match="module_use is"):
            CASE.with_situation(ModuleUse(uses))
    with pytest.raises(CaseError, match="no copies and no 'states' in a single step"):
        replace(CASE, steps=1, situations=(ModuleUse(("copies",)),))
    for copies in ("copies", "wrapper copies"):
        with pytest.raises(CaseError, match="no process group can be copied"):
            replace(CASE, outside=1, situations=(ModuleUse((copies,)),))
