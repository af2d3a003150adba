"""The effects of situations on a rank. Each module has the name of its situation.

Only `draws` belongs to no situation, but to layers that draw random numbers, and `wrapper_copies`
is a part of `module_use`.

Importing this package imports all its modules, which register their classes.
"""

from importlib import import_module
from pkgutil import iter_modules

from ddp_invariants.ranks.training.effect import effects_of

__all__ = ["effects_of"]

for _module in sorted(iter_modules(__path__), key=lambda module: module.name):
    import_module(f"{__name__}.{_module.name}")
