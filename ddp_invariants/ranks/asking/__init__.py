"""The other ways to ask a sampler, on a rank. Each module has the name of its situation.

Importing this package imports all its modules, which register their functions.
"""

from importlib import import_module
from pkgutil import iter_modules

from ddp_invariants.ranks.asking.way import answers

__all__ = ["answers"]

for _module in sorted(iter_modules(__path__), key=lambda module: module.name):
    import_module(f"{__name__}.{_module.name}")
