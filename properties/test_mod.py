"""MOD: a wrapped module is still a module.

Its hooks, names, modes and copies are those of the unwrapped module.
"""

from ddp_invariants.search.trial import Trial


def test_mod1_hooks_fire_as_without_the_wrapper(trial: Trial) -> None:
    """Forward and backward hooks of the module and its children see the same events."""
    trial.certify("MOD-1")


def test_mod2_names_and_modes_are_the_modules(trial: Trial) -> None:
    """The wrapper lists the module's names, and passes train(), eval() and apply() on."""
    trial.certify("MOD-2")


def test_mod3_a_deep_copy_is_independent(trial: Trial) -> None:
    """Altering and training a deep copy of the module changes nothing in the module."""
    trial.certify("MOD-3")
