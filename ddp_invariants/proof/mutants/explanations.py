"""The mutants that no case can distinguish from the original, or that the contract allows.

`survivors.toml` has an argument for each.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

SHIPPED = Path(__file__).parent / "survivors.toml"


@cache
def explained() -> Mapping[str, Mapping[str, str]]:
    """Return the arguments by target and by the name of the mutant.

    A key may also be the qualified name of a class or function. Its argument says why no case
    executes some of its statements.
    """
    tables: Mapping[str, Mapping[str, str]] = tomllib.loads(SHIPPED.read_text(encoding="utf-8"))
    return tables
