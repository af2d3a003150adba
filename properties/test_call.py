"""CALL: a wrapper is called like its module.

The wrapper passes on every argument, every result, and the gradients of its inputs.
"""

from hypothesis import given

from ddp_invariants import Ranks, cases_of
from ddp_invariants.cases.case import TrainingCase


@given(case=cases_of("CALL-1"))
def test_call1_arguments_and_results_pass_through(case: TrainingCase, ranks: Ranks) -> None:
    """The module gets the arguments of the call, and the program gets the module's result."""
    ranks.check("CALL-1", case)


@given(case=cases_of("CALL-2"))
def test_call2_gradients_of_inputs_are_the_unwrapped_modules(
    case: TrainingCase, ranks: Ranks
) -> None:
    """A trained part before the wrapper gets the gradient that it gets before the bare module."""
    ranks.check("CALL-2", case)


@given(case=cases_of("CALL-3"))
def test_call3_steps_are_right_through_another_method(case: TrainingCase, ranks: Ranks) -> None:
    """Steps are right if forwards go through another method that the wrapper offers (CALL-3)."""
    ranks.check("CALL-3", case)


@given(case=cases_of("CALL-4"))
def test_call4_steps_with_a_closure_are_right(case: TrainingCase, ranks: Ranks) -> None:
    """A step calls its closure once, returns its loss, and moves as any step does (CALL-4)."""
    ranks.check("CALL-4", case)
