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
    from ddp_invariants import rules, strategies
    from ddp_invariants.case import Case
    from ddp_invariants.sessions.certification import Implementation, certify

__version__ = "0.1.0"

__all__ = ["Case", "Implementation", "__version__", "certify", "rules", "strategies"]

_HOMES = {
    "certify": "sessions.certification",
    "Implementation": "sessions.certification",
    "Case": "case",
}
"""The modules of public names that are no modules themselves."""


def __getattr__(name: str) -> Any:
    """A public name, imported now."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _HOMES:
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
