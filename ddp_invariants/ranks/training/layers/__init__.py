"""The kinds of layers as torch modules: one module each.

Importing this package imports all its modules, which register how their layers are built.
"""

from importlib import import_module
from pkgutil import iter_modules

from ddp_invariants.ranks.training.layer import built

__all__ = ["built"]

for _module in sorted(iter_modules(__path__), key=lambda module: module.name):
    import_module(f"{__name__}.{_module.name}")
