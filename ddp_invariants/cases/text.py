"""A case as text: its JSON form, its id, and a line that describes it.

Standard library only: the rank side imports this module under any interpreter.
"""

import hashlib
import json
from dataclasses import fields
from typing import TYPE_CHECKING

from ddp_invariants.cases.words import brief

if TYPE_CHECKING:
    from ddp_invariants.cases.case import Case


def to_json(case: "Case") -> str:
    """Return the JSON form of a case: a single line, fields in the order of declaration."""
    return json.dumps(case, default=vars)


def case_id(case: "Case", implementation: str = "") -> str:
    """Return six hexadecimal digits that name a case and the implementation that showed it."""
    return hashlib.blake2b(f"{implementation}\n{to_json(case)}".encode(), digest_size=3).hexdigest()


def describe(case: "Case") -> str:
    """Return the case in one line: what differs from the defaults, after the world size."""
    parts = [f"world_size={case.world_size}"]
    for field in fields(case):
        value = getattr(case, field.name)
        if field.name in ("kind", "world_size") or value == field.default:
            continue
        if field.name == "situations":
            parts += [situation.words for situation in value]
            continue
        parts.append(f"{field.name}={brief(value)}")
    return " ".join(parts)
