"""The changes of a source that make its mutants.

The operators are the package's own. The operators of cosmic-ray and mutmut work on syntax trees of
parso and libcst, and come with runners of test suites. Here an overlay of one module is enough, so
that 200 lines over `ast` replace two dependencies.

A mutant is named by the definition it lies in, its operator, and its text before and after. Its
name therefore survives edits elsewhere in the file.
"""

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Path = tuple[tuple[str, int], ...]
"""The way from a module to a node: the names of fields, each with an index, or -1 for no list."""
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_LONGEST = 100
_MARKED = "_statement_is_executed"
_NOT_BEHAVIOUR = ("logger", "logging", "warnings")
"""Names of objects whose calls only inform a user."""
_ANNOTATIONS = ("annotation", "returns", "type_params", "type_comment")


class Change(NamedTuple):
    """A change of one node.

    Attributes:
        nodes: The nodes that replace it; several only for a statement.
        before: The changed part of the source, in one line; empty for the whole node.
        after: The same part after the change; empty likewise.
    """

    nodes: Sequence[ast.AST]
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Mutant:
    """One change of a module.

    Attributes:
        operator: The kind of change, a key of `OPERATORS`.
        name: Its name, which no other mutant of the definition has.
        line: Its first line in the file, from 1.
        column: Its first column, from 1.
        before: The changed part of the source.
        after: The same part after the change.
        statement: The place of the changed statement in the file, by which a marker names it.
        path: The way to the changed node.
        nodes: The nodes that replace it.
    """

    operator: str
    name: str
    line: int
    column: int
    before: str
    after: str
    statement: str
    path: Path
    nodes: Sequence[ast.AST]

    @property
    def definition(self) -> str:
        """The qualified name of the class or function that contains the change."""
        return self.name.partition(": ")[0]


_ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
_OPPOSITE: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_BESIDE: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """Return a copy of a node with other fields; the rest of the tree is shared."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _arithmetic(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _ARITHMETIC:
        yield Change([_with(node, op=_ARITHMETIC[type(node.op)]())])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield Change([node.operand])


def _compared(node: ast.AST, others: Mapping[type[ast.cmpop], type[ast.cmpop]]) -> Iterator[Change]:
    """Yield a comparison with each of its operators replaced."""
    if isinstance(node, ast.Compare):
        for number, operator in enumerate(node.ops):
            if type(operator) in others:
                ops = [*node.ops]
                ops[number] = others[type(operator)]()
                yield Change([_with(node, ops=ops)])


def _comparison(node: ast.AST) -> Iterator[Change]:
    yield from _compared(node, _OPPOSITE)


def _boundary(node: ast.AST) -> Iterator[Change]:
    """Yield comparisons, slices and ranges that are off by one."""
    yield from _compared(node, _BESIDE)
    if isinstance(node, ast.Slice):
        for name in ("lower", "upper"):
            bound = getattr(node, name)
            if bound is not None and not isinstance(bound, ast.Constant):
                yield Change([_with(node, **{name: _one_more(bound)})])
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        for number, bound in enumerate(node.args[:2]):
            if not isinstance(bound, ast.Constant):
                changed = [*node.args]
                changed[number] = _one_more(bound)
                yield Change([_with(node, args=changed)])


def _one_more(bound: ast.expr) -> ast.expr:
    return ast.BinOp(bound, ast.Add(), ast.Constant(1))


def _statement(node: ast.AST) -> Iterator[Change]:
    drops = (
        ast.Assign | ast.AugAssign | ast.Return | ast.Raise | ast.Delete | ast.Break | ast.Continue
    )
    if (
        isinstance(node, drops)
        or (isinstance(node, ast.AnnAssign) and node.value is not None)
        or (isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant))
    ):
        yield Change([ast.Pass()])


def _argument(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg is not None:
                rest = [kept for kept in node.keywords if kept is not keyword]
                yield Change([_with(node, keywords=rest)])


def _constant(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield Change([ast.Constant(not node.value)])
        elif isinstance(node.value, int | float):
            yield Change([ast.Constant(node.value + 1)])


def _branch(node: ast.AST) -> Iterator[Change]:
    """Yield conditions with their branches swapped."""
    if isinstance(node, ast.If) and node.orelse and _plain(node.test):
        text = _text(node)
        yield Change([_with(node, body=node.orelse, orelse=node.body)], text, "branches swapped")
    elif isinstance(node, ast.IfExp) and _plain(node.test):
        yield Change([_with(node, body=node.orelse, orelse=node.body)])


def _negation(node: ast.AST) -> Iterator[Change]:
    """Yield the negation of conditions that no other operator negates."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield Change([node.operand])
    elif isinstance(node, ast.While) or (isinstance(node, ast.If) and not node.orelse):
        if _plain(node.test):
            yield Change([_with(node, test=_not(node.test))])
    elif isinstance(node, ast.comprehension):
        for number, test in enumerate(node.ifs):
            if _plain(test):
                ifs = [*node.ifs]
                ifs[number] = _not(test)
                yield Change([_with(node, ifs=ifs)])


def _plain(test: ast.expr) -> bool:
    """Return whether no other operator negates a condition."""
    compares = isinstance(test, ast.Compare) and len(test.ops) == 1
    return not compares and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))


def _not(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _logic(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BoolOp):
        yield Change([_with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())])


def _decorator(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, Definition):
        for decorator in node.decorator_list:
            rest = [kept for kept in node.decorator_list if kept is not decorator]
            text = f"@{ast.unparse(decorator)}"
            yield Change([_with(node, decorator_list=rest)], text, "no decorator")


def _finally(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Try) and node.finalbody:
        inner = [_with(node, finalbody=[])] if node.handlers else [*node.body, *node.orelse]
        yield Change([*inner, *node.finalbody], "try ... finally", "no finally")


OPERATORS: Mapping[str, Callable[[ast.AST], Iterator[Change]]] = {
    "arithmetic": _arithmetic,
    "comparison": _comparison,
    "boundary": _boundary,
    "statement": _statement,
    "argument": _argument,
    "constant": _constant,
    "branch": _branch,
    "negation": _negation,
    "logic": _logic,
    "decorator": _decorator,
    "finally": _finally,
}
"""All operators: each yields the changes of one node."""


def mutants(tree: ast.Module, attribute: str = "") -> list[Mutant]:
    """Return the mutants of a module, in the order of the source.

    Messages, logging, assertions and annotations are left alone: they are no behaviour.

    Args:
        tree: The module.
        attribute: The qualified name of a class or function to which the mutants are restricted;
            empty for the whole module.

    Raises:
        ValueError: The module defines no such class or function.
    """
    path, root = _found(tree, attribute.split(".")) if attribute else ((), tree)
    names, changed = Counter[str](), list[Mutant]()
    for way, home, statement, node in _nodes(root, path, attribute):
        for operator, changes in OPERATORS.items():
            for change in changes(node):
                before = change.before or _text(node)
                after = change.after or _text(change.nodes[0])
                name = f"{home}: {operator}: {before} -> {after}".removeprefix(": ")
                names[name] += 1
                if names[name] > 1:
                    name = f"{name} #{names[name]}"
                line, column = _position(node)
                text = (name, line, column, before, after, statement)
                changed.append(Mutant(operator, *text, way, change.nodes))
    return sorted(changed, key=lambda mutant: (mutant.line, mutant.column))


def mutated(tree: ast.Module, mutant: Mutant) -> ast.Module:
    """Return a module with one mutant's change, and a call of the marker before its statement.

    The marker, a function named `_statement_is_executed`, belongs to the overlay.
    """
    changed = copy.deepcopy(tree)
    node: ast.AST = changed
    place: tuple[list[ast.stmt], int] | None = None
    for field, index in mutant.path[:-1]:
        children = getattr(node, field)
        node = children if index < 0 else children[index]
        if index >= 0 and isinstance(node, ast.stmt):
            place = (children, index)
    field, index = mutant.path[-1]
    if index < 0:
        setattr(node, field, mutant.nodes[0])
    else:
        children = getattr(node, field)
        statement = isinstance(children[index], ast.stmt)
        children[index : index + 1] = mutant.nodes
        if statement:
            place = (children, index)
    if place is not None:
        block, index = place
        block.insert(index, _marker(mutant.statement))
    return ast.fix_missing_locations(changed)


def marked(tree: ast.Module) -> ast.Module:
    """Return a module with a call of the marker before each of its statements, and no change."""
    changed = copy.deepcopy(tree)
    for node in [*ast.walk(changed)]:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                block[:] = [each for statement in block for each in _with_marker(statement)]
    return ast.fix_missing_locations(changed)


def _with_marker(statement: ast.stmt) -> list[ast.stmt]:
    """Return a statement with a marker before it, unless it must be the first of its block."""
    return [statement] if comes_first(statement) else [_marker(_place(statement)), statement]


def comes_first(statement: ast.stmt) -> bool:
    """Return whether a statement may be a docstring or a future import, which must come first."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _marker(statement: str) -> ast.stmt:
    return ast.parse(f"{_MARKED}({statement!r})").body[0]


def _place(statement: ast.stmt) -> str:
    return f"{statement.lineno}-{statement.col_offset}"


def _found(tree: ast.Module, names: Sequence[str]) -> tuple[Path, ast.AST]:
    """Return a definition of a module and the way to it."""
    path: Path = ()
    node: ast.AST = tree
    for name in names:
        for way, inner in _definitions(node, path):
            if inner.name == name:
                path, node = way, inner
                break
        else:
            raise ValueError(f"it defines no {'.'.join(names)}")
    return path, node


def _definitions(node: ast.AST, path: Path) -> Iterator[tuple[Path, Definition]]:
    """Yield the definitions directly below a node, also those that depend on a condition."""
    for way, child in _children(node, path):
        if isinstance(child, Definition):
            yield way, child
        elif isinstance(child, ast.If | ast.Try):
            yield from _definitions(child, way)


def _children(node: ast.AST, path: Path) -> Iterator[tuple[Path, ast.AST]]:
    for name, value in ast.iter_fields(node):
        if name in _ANNOTATIONS:
            continue
        if isinstance(value, ast.AST):
            yield (*path, (name, -1)), value
        elif isinstance(value, list):
            for number, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield (*path, (name, number)), child


def _nodes(
    node: ast.AST, path: Path, home: str, statement: str = ""
) -> Iterator[tuple[Path, str, str, ast.AST]]:
    """Yield the nodes whose changes are behaviour, each with its definition and its statement."""
    if _is_message(node):
        return
    if isinstance(node, ast.stmt):
        statement = _place(node)
    if path:
        yield path, home, statement, node
    if isinstance(node, ast.Raise):
        return  # Only dropped: its words are a message.
    for way, child in _children(node, path):
        inside = child.name if isinstance(child, Definition) else ""
        where = ".".join(part for part in (home, inside) if part)
        yield from _nodes(child, way, where, statement)


def _is_message(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        node = node.value
    if isinstance(node, ast.Call):
        called: ast.expr = node.func
        while isinstance(called, ast.Attribute):
            called = called.value
        return isinstance(called, ast.Name) and called.id in _NOT_BEHAVIOUR
    return isinstance(node, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom)


def _text(node: ast.AST) -> str:
    """Return the first line of a node's source, cut if it is long."""
    line = ast.unparse(node).strip().partition("\n")[0]
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _position(node: ast.AST) -> tuple[int, int]:
    """Return the line and the column where a node begins, both from 1."""
    inner = next(each for each in ast.walk(node) if hasattr(each, "lineno"))
    return inner.lineno, inner.col_offset + 1  # type: ignore[attr-defined]  # asked for above
