"""Cases that last: what a drawn case keeps, and what it gets."""

from dataclasses import replace

import pytest

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Perturbation, Unused
from ddp_invariants.search.lasting import LONG, LONG_STEPS, STEPS, lasting
from ddp_invariants.situations.capability import BASE, GENTLE
from ddp_invariants.situations.clipping import Clipping
from ddp_invariants.situations.perturbation import Perturbed
from ddp_invariants.situations.unused import UnusedLayers

UNUSED = BASE.with_situation(UnusedLayers((Unused(2, rank=1, step=1),)))


@pytest.mark.parametrize("number", range(4))
def test_a_case_lasts_and_keeps_its_situations(number: int) -> None:
    """Only the steps change, and the learning rate if it was large."""
    case = GENTLE.with_situation(Clipping(1.0))
    assert lasting(case, number) == replace(case, steps=STEPS[number])


def test_an_odd_number_uses_a_layer_late() -> None:
    """No rank uses the layer before the last step but one."""
    found = lasting(UNUSED, 1).get(UnusedLayers)
    assert found is not None
    assert found.layers == tuple(Unused(2, step=step) for step in range(STEPS[1] - 2))
    assert lasting(UNUSED, 2).situations == UNUSED.situations


@pytest.mark.parametrize("case", [UNUSED, BASE])
def test_twenty_steps_end_with_an_unused_layer(case: TrainingCase) -> None:
    """The last rank passes it by first, and then all ranks do."""
    longer = lasting(case, LONG)
    found = longer.get(UnusedLayers)
    assert longer.steps == LONG_STEPS == 20
    assert found is not None
    layer = found.layers[0].layer
    assert layer == (2 if case is UNUSED else 3)
    assert found.layers == (Unused(layer, rank=1, step=18), Unused(layer, step=19))


def test_twenty_steps_use_a_layer_that_cannot_be_passed_by() -> None:
    """No layer of the model is as wide as its input."""
    case = replace(BASE, model=Model(2, (Layer("linear", 3), Layer("linear", 1))))
    assert lasting(case, LONG).situations == case.situations
    assert lasting(case, LONG).steps == LONG_STEPS


def test_integers_become_fractions() -> None:
    """After more steps integers would no longer be exact, and a high rate would diverge."""
    longer = lasting(BASE, 2)
    assert (longer.values, longer.optimizer.log2_lr) == ("real", -9)


@pytest.mark.parametrize(
    "case",
    [
        replace(BASE, rounds=2),
        replace(BASE, steps=9),
        replace(BASE, model=Model(4, (Layer("terms", 40),))),
        BASE.with_situation(Perturbed(Perturbation("delays", milliseconds=20))),
    ],
)
def test_a_long_or_slow_case_stays_as_it_is(case: object) -> None:
    """A case that is repeated, large, delayed, or has as many steps, gets no more."""
    assert lasting(case, 2) is case  # type: ignore[arg-type]  # both are training cases
