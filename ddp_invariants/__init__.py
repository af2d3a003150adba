"""Property-based verification of data-parallel training.

The way the data goes, and the order to read the modules in:

    strategies -> case -> ranks -> evidence -> oracle, invariants -> verdict -> trial, report

Importing this package imports neither torch nor Hypothesis: the same code is
loaded by the controller (no torch) and by the ranks (no Hypothesis). What it
offers to others is imported when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp_invariants import rules
    from ddp_invariants.cases.case import Case
    from ddp_invariants.certification import Implementation, certify
    from ddp_invariants.search import strategies

__version__ = "0.1.0"

__all__ = ["Case", "Implementation", "__version__", "certify", "rules", "strategies"]

_HOMES = {"Case": "cases.case", "Implementation": "certification", "certify": "certification"}
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
