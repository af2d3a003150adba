"""One module of a library, imported without the packages around it.

The `__init__` files of some libraries import everything they have, and so need dozens of
distributions of which a sampler uses none.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


def load(name: str, *packages: str) -> Any:
    """Import a module; the packages that hold it, and some others, stay empty.

    Args:
        name: The module.
        packages: Further packages whose `__init__` must not run.
    """
    parts = name.split(".")[:-1]
    holding = [".".join(parts[: number + 1]) for number in range(len(parts))]
    for package in (*holding, *packages):
        if package not in sys.modules:
            spec = importlib.util.find_spec(package)
            if spec is None or spec.submodule_search_locations is None:
                raise ModuleNotFoundError(f"there is no package {package}")
            sys.modules[package] = empty = ModuleType(package)
            empty.__path__ = list(spec.submodule_search_locations)
    return importlib.import_module(name)
