"""CALL: a wrapper is called like its module.

The wrapper passes on every argument, every result, and the gradients of its inputs.
"""

from ddp_invariants.search.trial import Trial


def test_call1_arguments_and_results_pass_through(trial: Trial) -> None:
    """The module gets the arguments of the call, and the program gets the module's result."""
    trial.certify("CALL-1")


def test_call2_gradients_of_inputs_are_the_unwrapped_modules(trial: Trial) -> None:
    """A trained part before the wrapper gets the gradient that it gets before the bare module."""
    trial.certify("CALL-2")


def test_call3_steps_are_right_through_another_method(trial: Trial) -> None:
    """Steps are right if forwards go through another method that the wrapper offers (CALL-3)."""
    trial.certify("CALL-3")
