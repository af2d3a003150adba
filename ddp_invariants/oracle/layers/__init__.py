"""The kinds of layers in balls: one module each.

Importing this package imports all its modules, which register their classes.
"""

from importlib import import_module
from pkgutil import iter_modules

from ddp_invariants.oracle.layer import ORACLES

__all__ = ["ORACLES"]

for _module in sorted(iter_modules(__path__), key=lambda module: module.name):
    import_module(f"{__name__}.{_module.name}")
