"""The former name of `situations.injected_failure`, which `search.runner` still imports."""

from ddp_invariants.situations.injected_failure import FailureInjection as Failing

__all__ = ["Failing"]
