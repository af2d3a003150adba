"""Property-based verification of data-parallel training.

Data flows in this order, and the modules are best read in it:

    strategies -> case -> ranks -> evidence -> oracle, invariants -> verdict -> trial, report

Importing this package imports neither torch nor Hypothesis. The controller (no torch) and the ranks
(no Hypothesis) load the same code. Public names are imported when they are first used.

pytest need not rewrite the package, and would warn where it is imported before (PYTEST_DONT_REWRITE).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp_invariants import rules
    from ddp_invariants.cases.case import Case
    from ddp_invariants.certification import Implementation, certify
    from ddp_invariants.search import strategies
    from ddp_invariants.search.drawing import cases_of
    from ddp_invariants.search.given import Ranks

__version__ = "0.1.0"

__all__ = [
    "Case",
    "Implementation",
    "Ranks",
    "__version__",
    "cases_of",
    "certify",
    "rules",
    "strategies",
]

_HOMES = {
    "Case": "cases.case",
    "Implementation": "certification",
    "Ranks": "search.given",
    "cases_of": "search.drawing",
    "certify": "certification",
}
"""The modules of public functions and classes."""
_MODULES = {"rules": "rules", "strategies": "search.strategies"}
"""The public modules."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    Raises:
        AttributeError: The name is not public.
    """
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
