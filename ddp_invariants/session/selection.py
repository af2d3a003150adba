"""The properties that a keyword expression (-k) selects, known before any rank is started."""

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

# pytest reads the expression with it; the public interface reads one only while it collects tests,
# after the hosts were started.
from _pytest.mark import _parse_expression

from ddp_invariants.discovery.probe import SIDES, sides_of
from ddp_invariants.discovery.result import Side
from ddp_invariants.errors import NamingError
from ddp_invariants.report.rulebook import PROPERTIES, near
from ddp_invariants.session.ending import rule_of

_WORDS = {"and", "or", "not"}


def check(config: pytest.Config) -> None:
    """Refuse a keyword expression that selects none of the packaged properties.

    Raises:
        NamingError: It selects none, or cannot be read.
    """
    expression = config.option.keyword.strip()
    properties = list(_properties(config))
    if not expression or not properties:
        return
    try:
        parsed = _parse_expression(expression, f"-k {expression}")
    except pytest.UsageError as error:
        raise NamingError(f"the expression is wrong: {error}") from None
    if any(parsed.evaluate(names) for names in properties):
        return
    unknown = _unknown(expression, properties)
    close = dict.fromkeys(rule.replace("-", "").lower() for word in unknown for rule in near(word))
    instead = (
        f"did you mean {' or '.join(close)}?" if close else "`ddp-invariants rules` lists the rules"
    )
    raise NamingError(f"-k {expression}: no property has such a name; {instead}")


def sides(config: pytest.Config) -> Collection[Side]:
    """Return the sides of the implementation that the selected properties judge.

    These are both sides if a test may be selected that is not packaged.
    """
    expression, properties = config.option.keyword.strip() or "test_", [*_properties(config)]
    try:
        selected = _parse_expression(expression, "-k")
    except pytest.UsageError:
        return SIDES
    if _unknown(expression, properties):  # It may be a marker or another keyword of pytest.
        return SIDES
    names = [each[0] for each in properties if selected.evaluate(each)]
    return sides_of(map(rule_of, names)) or SIDES


def _unknown(expression: str, properties: Sequence["_Names"]) -> list[str]:
    """Return the words of an expression that are in no property's names."""
    return [
        word
        for word in re.findall(r"[^\s()]+", expression)
        if word not in _WORDS and not any(names(word) for names in properties)
    ]


class _Names(tuple[str, ...]):
    """The names of a property, which an expression's word selects if one of them contains it."""

    __slots__ = ()

    def __call__(self, word: str, /, **_: object) -> bool:
        return any(word.lower() in name for name in self)


def _properties(config: pytest.Config) -> Iterator[_Names]:
    """Yield the names of each property.

    Nothing is yielded if the session also runs tests that are not packaged: their names are not known.
    """
    here, packaged = config.invocation_params.dir, PROPERTIES.resolve()
    paths = [(here / arg.split("::")[0]).resolve() for arg in config.args]
    if any("::" in arg for arg in config.args) or not all(
        packaged in (path, *path.parents) for path in paths
    ):
        return
    for path in paths:
        for file in [path] if path.is_file() else sorted(path.glob("test_*.py")):
            for function in _functions(file):
                yield _Names((function, file.name, packaged.name))


@cache
def _functions(file: Path) -> tuple[str, ...]:
    """Return the names of a file's properties."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return tuple(
        node.name.lower()
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )
