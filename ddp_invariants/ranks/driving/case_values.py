"""Arguments of a sampler that stand for values of the case, such as `num_workers=WORLD_SIZE`.

[Note: values of the case] A text stands for a value of the case if it names one of `NAMES`. It may
calculate with whole numbers and `+`, `-`, `*` and `//`, as in `BATCH_SIZE*WORLD_SIZE`. A calculation
whose names are all in upper case, but unknown, is an error and no text, since a misspelt name would
reach the sampler as text. No other code of the text runs.
"""

import ast
import difflib
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp_invariants.errors import LoadError
from ddp_invariants.ranks.driving.values import value_of

NAMES: dict[str, str] = {
    "RANK": "rank",
    "WORLD_SIZE": "world_size",
    "SAMPLES": "samples",
    "BATCH_SIZE": "batch_size",
    "SEED": "seed",
    "EPOCH": "epoch",
    "SHUFFLE": "shuffle",
    "DROP_LAST": "drop_last",
}
"""The value that each name stands for."""
SPELLED: dict[str, str] = {
    "rank": "rank",
    "world_size": "world_size",
    "samples": "SAMPLES",
    "batch_size": "BATCH_SIZE",
    "seed": "SEED",
    "epoch": "epoch",
    "shuffle": "SHUFFLE",
    "drop_last": "DROP_LAST",
}
"""The name of each value in an exported script, in the function that makes a sampler."""
_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_POSITIVE = ("WORLD_SIZE", "BATCH_SIZE")
"""The names whose values are above 0 in each case."""
_TRUTHS = ("SHUFFLE", "DROP_LAST")
"""The names whose values are true or false."""
_APART = ("SEED", "EPOCH")
"""The names whose values must stay different in a calculation, since the rules compare them."""


@dataclass(frozen=True)
class CaseValue:
    """A value of the case, or a calculation with such values.

    Attributes:
        text: The calculation, such as `BATCH_SIZE * WORLD_SIZE`.
        expression: The same, parsed and checked.
    """

    text: str
    expression: ast.expr = field(compare=False, repr=False)

    @property
    def names(self) -> frozenset[str]:
        """The values that it depends on, such as `batch_size` and `world_size`."""
        return frozenset(
            NAMES[node.id] for node in ast.walk(self.expression) if isinstance(node, ast.Name)
        )

    @property
    def plain(self) -> str:
        """The value that it is, without a calculation; empty for a calculation."""
        return NAMES[self.expression.id] if isinstance(self.expression, ast.Name) else ""

    @property
    def spelled(self) -> str:
        """Its source text in an exported script."""
        return ast.unparse(_Spelled().visit(ast.parse(self.text, mode="eval")))

    def of(self, values: Mapping[str, int]) -> int:
        """Calculate it from the values of a case."""
        return _calculated(self.expression, values)


def case_value_of(text: str) -> Any:
    """Return the `CaseValue` that a text stands for, or else the value of any other text.

    Raises:
        LoadError: It is meant for a value of the case, and is none; or it is another text, which
            `value_of` refuses.
    """
    expression = _meant(text)
    if expression is None:
        return value_of(text)
    _check(expression)
    for name in _APART:
        if _holds(expression, name) and not _keeps_apart(expression, name):
            raise LoadError(
                f"{ast.unparse(expression)} may be equal for two values of {name}; add to {name}, "
                f"subtract, or multiply it by a number above 0, {', '.join(_POSITIVE)} or SAMPLES"
            )
    return CaseValue(ast.unparse(expression), expression)


def _meant(text: str) -> ast.expr | None:
    """Return the expression of a text that is meant for a value of the case; None for another."""
    try:
        expression = ast.parse(text.strip(), mode="eval").body
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    nodes = [*ast.walk(expression)]
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    parts = (ast.Name, ast.Constant, ast.BinOp, ast.operator, ast.expr_context)
    in_upper_case = bool(names) and all(name.isupper() for name in names)
    calculates = in_upper_case and all(isinstance(node, parts) for node in nodes)
    return expression if calculates or any(name in NAMES for name in names) else None


def _check(node: ast.AST) -> None:
    """Insist on a calculation with values of the case.

    Raises:
        LoadError: It is another expression, or it may divide by zero.
    """
    match node:
        case ast.Name():
            if node.id not in NAMES:
                close = difflib.get_close_matches(node.id, NAMES, 1)
                hint = f"did you mean {close[0]}?" if close else f"a case has {', '.join(NAMES)}"
                raise LoadError(f"a case has no value {node.id}; {hint}")
        case ast.Constant() if type(node.value) is int:
            pass
        case ast.BinOp() if type(node.op) in _OPERATORS:
            for side in (node.left, node.right):
                _check(side)
                if isinstance(side, ast.Name) and side.id in _TRUTHS:
                    raise LoadError(f"{side.id} is true or false, so nothing calculates with it")
            if isinstance(node.op, ast.FloorDiv) and not _is_positive(node.right):
                raise LoadError(
                    f"{ast.unparse(node.right)} may be 0; divide by a number above 0, "
                    f"{' or '.join(_POSITIVE)}"
                )
        case _:
            raise LoadError(
                "a calculation has names of values of the case, numbers such as 2, and "
                f"+, -, * or //, so it cannot have {ast.unparse(node)}"
            )


def _holds(node: ast.expr, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))


def _keeps_apart(node: ast.expr, name: str) -> bool:
    """Return whether an expression that holds a name has another value for each value of it."""
    if not isinstance(node, ast.BinOp):
        return True
    held = [_holds(side, name) for side in (node.left, node.right)]
    inner, other = (node.left, node.right) if held[0] else (node.right, node.left)
    # Without samples, no rule compares their order.
    scaled = isinstance(node.op, ast.Mult) and _is_positive(other, (*_POSITIVE, "SAMPLES"))
    moved = isinstance(node.op, ast.Add | ast.Sub)
    return (scaled or moved) and not all(held) and _keeps_apart(inner, name)


def _is_positive(node: ast.expr, positive: Collection[str] = _POSITIVE) -> bool:
    """Return whether an expression is above 0 if the values of some names are."""
    match node:
        case ast.Name():
            return node.id in positive
        case ast.Constant(value=int() as number):
            return number > 0
        case ast.BinOp(op=ast.Mult()):
            return _is_positive(node.left, positive) and _is_positive(node.right, positive)
    return False


def _calculated(node: ast.expr, values: Mapping[str, int]) -> int:
    match node:
        case ast.Name():
            return values[NAMES[node.id]]
        case ast.Constant(value=int() as number):
            return number
        case ast.BinOp():
            left, right = _calculated(node.left, values), _calculated(node.right, values)
            calculated: int = _OPERATORS[type(node.op)](left, right)
            return calculated
    raise TypeError(f"{ast.unparse(node)} was not checked")


class _Spelled(ast.NodeTransformer):
    """The same expression with the names of an exported script."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the name of the same value in a script."""
        return ast.Name(SPELLED[NAMES[node.id]], node.ctx)
