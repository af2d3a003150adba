"""The mutants that behave as the original does, each with an argument, from `survivors.toml`."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

SHIPPED = Path(__file__).parent / "survivors.toml"


@cache
def explained() -> Mapping[str, Mapping[str, str]]:
    """Return the arguments by target and by the name of the mutant."""
    tables: Mapping[str, Mapping[str, str]] = tomllib.loads(SHIPPED.read_text(encoding="utf-8"))
    return tables
