"""The process that finds the source of an implementation.

    python -m ddp_invariants.proof.mutants.location SIDE NAME

It imports the implementation, which the controller never does, and prints a line of JSON: the file,
the package of its module and the qualified name of the class or function.
"""

import inspect
import json
import sys
from typing import cast

from ddp_invariants.errors import LoadError
from ddp_invariants.ranks.driving.imports import Side, resolve


def main(side: Side, name: str) -> str:
    """Return the line of JSON.

    Raises:
        LoadError: The implementation cannot be imported, or has no source of its own.
    """
    thing = resolve(name, side)
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    attribute = getattr(thing, "__qualname__", "")
    if not attribute or "<" in attribute or not getattr(module, "__file__", "") or module is None:
        raise LoadError(f"{name} is no class or function with a source of its own")
    located = {
        "file": inspect.getsourcefile(module),
        "package": module.__package__ or "",
        "attribute": attribute,
    }
    return json.dumps(located)


if __name__ == "__main__":
    try:
        sys.stdout.write(f"\n{main(cast('Side', sys.argv[1]), sys.argv[2])}\n")
    except LoadError as error:
        sys.exit(str(error))
