"""What the fields of a case may hold, and how one that does not is refused.

Standard library only: the rank side imports this module under any interpreter.
"""

from typing import get_args

from ddp_invariants.errors import CaseError


def require(condition: object, field: str, got: object, expected: str) -> None:
    """Insist on something of a field.

    Raises:
        CaseError: It is not so.
    """
    if not condition:
        raise CaseError(f"{field} is {got!r}, expected {expected}")


def one_of(field: str, got: object, choices: object) -> None:
    """Insist on one of a `Literal`'s values. Raises CaseError."""
    allowed = get_args(choices)
    require(got in allowed, field, got, "one of " + ", ".join(map(repr, allowed)))


def between(field: str, got: int, low: int, high: int) -> None:
    """Insist on a range, both ends included. Raises CaseError."""
    require(low <= got <= high, field, got, f"an integer from {low} to {high}")


STRICT = {"extra": "forbid", "strict": True}
"""How a case file is read (pydantic's configuration; plain data, so that nothing is imported here)."""
