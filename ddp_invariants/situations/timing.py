"""The former name of `situations.perturbation`, which `search` still imports."""

from ddp_invariants.situations.perturbation import Perturbed as Disturbed

__all__ = ["Disturbed"]
