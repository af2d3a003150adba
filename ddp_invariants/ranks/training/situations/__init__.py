"""The situations a case may contain, as a rank meets them: one module each.

Importing this package imports all its modules, which register their classes.
"""

from importlib import import_module
from pkgutil import iter_modules

from ddp_invariants.ranks.training.situation import situations_of

__all__ = ["situations_of"]

for _module in sorted(iter_modules(__path__), key=lambda module: module.name):
    import_module(f"{__name__}.{_module.name}")
