"""MOD: a wrapped module is still a module.

Its hooks, names, modes and copies are those of the unwrapped module.
"""

from hypothesis import given

from ddp_invariants import Ranks, cases_of
from ddp_invariants.cases.case import TrainingCase


@given(case=cases_of("MOD-1"))
def test_mod1_hooks_fire_as_without_the_wrapper(case: TrainingCase, ranks: Ranks) -> None:
    """Forward and backward hooks of the module and its children see the same events."""
    ranks.check("MOD-1", case)


@given(case=cases_of("MOD-2"))
def test_mod2_names_and_modes_are_the_modules(case: TrainingCase, ranks: Ranks) -> None:
    """The wrapper lists the module's names, and passes train(), eval() and apply() on."""
    ranks.check("MOD-2", case)


@given(case=cases_of("MOD-3"))
def test_mod3_a_deep_copy_is_independent(case: TrainingCase, ranks: Ranks) -> None:
    """Altering and training a deep copy of the module changes nothing in the module."""
    ranks.check("MOD-3", case)


@given(case=cases_of("MOD-4"))
def test_mod4_a_loaded_state_is_the_state_that_is_saved(case: TrainingCase, ranks: Ranks) -> None:
    """Zeros are loaded into the wrapper, and then its own state; it saves what was loaded."""
    ranks.check("MOD-4", case)
