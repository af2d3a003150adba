"""Adapters for libraries that want their own optimizer, backward or state: `--ddp accelerate`.

A rank imports the library when it loads the adapter. `benchmarks/third_parties.py` judges them
with the installed libraries.
"""

import contextlib
import importlib
from typing import Any


def preload(*modules: str) -> None:
    """Import a library's modules if the library is installed.

    An import may set environment variables and replace names in torch. A rank ends after a case that
    changed such state, so an import within a case would end the ranks of every case.
    """
    with contextlib.suppress(ImportError):
        for module in modules:
            importlib.import_module(module)


def layers_of(module: Any) -> list[Any]:
    """Return the items of each `ModuleList` in a module, which a sharded model may wrap one by one."""
    lists = [each for each in module.modules() if type(each).__name__ == "ModuleList"]
    return [layer for each in lists for layer in each]
