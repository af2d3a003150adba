"""The values of arguments that a user gives as text: literals, named objects, calls, or text.

[Note: values] A text that Python reads as a dotted name or as a call of one stands for that object.
So it is an error if there is no such object. Calls take literals, dotted names and such calls, so no
other code of the text runs. Any other text that is no literal stands for itself.
"""

import ast
import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ddp_invariants.errors import LoadError
from ddp_invariants.implementation.spec import Arguments
from ddp_invariants.ranks.driving.imports import resolve

_IN_A_FILE = re.compile(r".+\.py:[A-Za-z_][\w.]*")


def values_of(
    given: Arguments,
    parameters: Mapping[str, inspect.Parameter],
    option: str,
    parse: Callable[[str], Any] | None = None,
) -> dict[str, Any]:
    """Parse arguments given as text; see [Note: values].

    Args:
        given: The arguments.
        parameters: The parameters of the callable that takes them.
        option: The option that names the callable, for an error.
        parse: The function that parses each text; None for `value_of`.

    Raises:
        LoadError: The callable does not take one of them, or a text names what does not exist.
    """
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    values = {}
    for name, text in given:
        if name not in parameters and not takes_any:
            close = difflib.get_close_matches(name, list(parameters), 1)
            hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(parameters)}"
            raise LoadError(f"{option}: it takes no argument {name!r}; {hint}")
        try:
            values[name] = (parse or value_of)(text)
        except LoadError as error:
            raise LoadError(
                f"{option}: {name}={text}: {error}; if text is meant, quote it: {name}={text!r}"
            ) from error
    return values


def value_of(text: str) -> Any:
    """Return the value that a text stands for.

    Raises:
        LoadError: It names an object that does not exist, or a call that fails.
    """
    if _IN_A_FILE.fullmatch(text):
        return resolve(text, "ddp")
    node = _named(text)
    if node is not None:
        return _evaluated(node)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def spelled(text: str) -> str:
    """Return the Python source of an argument given as text, for a script that imports importlib."""
    if _IN_A_FILE.fullmatch(text):
        return f"load({text!r})"
    node = _named(text)
    if node is None:
        return repr(value_of(text))
    return ast.unparse(ast.fix_missing_locations(_Imported().visit(node)))


def _named(text: str) -> ast.expr | None:
    """Return the expression of a text that is a dotted name or a call of one; None for another."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    name = _dotted(node.func if isinstance(node, ast.Call) else node)
    return node if "." in name or (name and isinstance(node, ast.Call)) else None


def _dotted(node: ast.expr) -> str:
    """Return a name, dotted or not, as text; empty if an expression is none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _evaluated(node: ast.expr) -> Any:
    """Return the value of a literal, a dotted name, or a call of one with such arguments."""
    if isinstance(node, ast.Call):
        function = _object(_dotted(node.func))
        arguments = [_evaluated(argument) for argument in node.args]
        named = {str(keyword.arg): _evaluated(keyword.value) for keyword in node.keywords}
        return _called(function, arguments, named, ast.unparse(node))
    name = _dotted(node)
    if name:
        return _object(name)
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise LoadError(
            f"{ast.unparse(node)} is no literal, no dotted name such as torch.float32, and no call"
        ) from error


def _called(
    function: Callable[..., Any], arguments: list[Any], named: dict[str, Any], text: str
) -> Any:
    try:
        return function(*arguments, **named)
    except Exception as error:
        raise LoadError(f"{text} raised {type(error).__name__}: {error}") from error


def _object(name: str) -> Any:
    """Return the object that a dotted name stands for, importing the modules in front of it.

    Raises:
        LoadError: There is none.
    """
    module, rest = _module(name)
    thing: Any = importlib.import_module(module)
    for part in rest:
        if not hasattr(thing, part):
            raise LoadError(_missing(thing, part))
        thing = getattr(thing, part)
    return thing


def _module(name: str) -> tuple[str, list[str]]:
    """Return the longest module in front of a dotted name, and the attributes behind it.

    Raises:
        LoadError: The first part is no module, or a module does not import.
    """
    first, *rest = name.split(".")
    module = _imported(first)
    while rest:
        if not hasattr(module, rest[0]):
            try:
                module = _imported(f"{module.__name__}.{rest[0]}")
            except LoadError as error:
                if not isinstance(error.__cause__, ModuleNotFoundError):
                    raise
                raise LoadError(_missing(module, rest[0])) from error
        elif inspect.ismodule(getattr(module, rest[0])):
            module = getattr(module, rest[0])
        else:
            break
        del rest[0]
    return module.__name__, rest


def _imported(name: str) -> ModuleType:
    """Import a module.

    Raises:
        LoadError: There is none, or its import fails.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise LoadError(f"there is no module {error.name!r}") from error
    except Exception as error:
        raise LoadError(f"importing {name} raised {type(error).__name__}: {error}") from error


def _missing(thing: Any, name: str) -> str:
    """Return in words that an object lacks an attribute, with a close name if there is one."""
    close = difflib.get_close_matches(name, dir(thing), 1)
    where = getattr(thing, "__name__", type(thing).__name__)
    return f"{where} has no {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")


class _Imported(ast.NodeTransformer):
    """The same expression with each dotted name imported where it stands."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Return the import of a dotted name; one of torch itself is imported anyway."""
        module, rest = _module(_dotted(node))
        if module == "torch":
            return node
        return ast.parse(
            ".".join([f"importlib.import_module({module!r})", *rest]), mode="eval"
        ).body
