"""Every situation is counted, needed by a planted fault, and on the page of what is tried."""

from typing import Any

import pytest
from tried import TRIED, differing, needing, sample, tried_page, words

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.shrink import without_kinds
from ddp_invariants.search.coverage import Drawn
from ddp_invariants.situations import SITUATIONS
from ddp_invariants.situations.asking import WAYS

UNNEEDED = {
    "Turns": "a recorded case also fails over gloo, where a case with turns is the same as without",
}
"""The situations without a recorded case of a planted fault that contains them, with the reasons."""


def test_the_page_of_what_is_tried_is_what_the_code_says() -> None:
    """Words, ranges and faults are those of the code, and shares differ by chance alone.

    `python tests/helpers/tried.py` writes the page.
    """
    page, made = TRIED.read_text(encoding="utf-8"), tried_page()
    assert words(page) == words(made)
    assert not differing(page, made)


def test_shares_that_differ_by_more_than_chance_are_listed() -> None:
    """A share that halves is listed by its value; one that wavers is not."""
    page = "- *drawn*: 40.0 % (poison nan 9.0 %; poison none 60.0 %)\n"
    assert not differing(page, page.replace("40.0", "41.0").replace("9.0", "8.0"))
    assert differing(page, page.replace("40.0", "20.0")) == [": 40.0 % and 20.0 %"]
    assert differing(page, page.replace("poison nan 9.0 %; ", "")) == ["poison nan: 9.0 % and 0 %"]
    assert words(page) == words("- *drawn*: 7.0 % (poison inf 7.0 %)\n")


@pytest.mark.parametrize("kind", SITUATIONS, ids=lambda kind: kind.__name__)
def test_every_situation_is_counted(kind: Any) -> None:
    """A coverage table shows whether cases were in the situation."""
    drawn = (case for case in sample(TrainingCase).cases if case.get(kind) is not None)
    cases = [without_kinds(case, "loss_only") for case in drawn]  # Such layers need a penalty.
    assert any(_counted(case) != _counted(case.without(kind)) for case in cases)


def _counted(case: TrainingCase) -> dict[str, Any]:
    drawn = Drawn()
    drawn.add(case)
    return drawn.dimensions


@pytest.mark.parametrize("kind", [*SITUATIONS, *WAYS], ids=lambda kind: kind.__name__)
def test_every_situation_is_needed_by_a_planted_fault(kind: Any) -> None:
    """The recorded smallest case of a fault contains the situation, or a reason says why not."""
    assert bool(needing(kind)) != (kind.__name__ in UNNEEDED), UNNEEDED.get(kind.__name__)
