"""The allowed values of a case's fields, and the error for any other value.

Standard library only: the rank side imports this module under any interpreter.
"""

from typing import Any, ClassVar

from ddp_invariants.errors import CaseError


def require(condition: object, field: str, got: object, expected: str) -> None:
    """Raise unless a condition on a field holds.

    Raises:
        CaseError: The condition does not hold.
    """
    if not condition:
        raise CaseError(f"{field} is {got!r}, expected {expected}")


def one_of(field: str, got: object, choices: Any) -> None:
    """Raise CaseError unless the value is one of a `Literal`'s values."""
    allowed: tuple[object, ...] = choices.__args__  # `get_args` would take several times as long.
    if got not in allowed:  # Every case checks some hundred fields, and hardly ever needs words.
        require(False, field, got, "one of " + ", ".join(map(repr, allowed)))  # noqa: FBT003 - it fails


def between(field: str, got: int, low: int, high: int) -> None:
    """Raise CaseError unless the value lies in a range, both ends included."""
    if not low <= got <= high:
        require(False, field, got, f"an integer from {low} to {high}")  # noqa: FBT003 - it fails


class Strict:
    """Base of the data classes that are read from files: no unknown field, no conversion."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}
