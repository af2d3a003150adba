"""The catalogue of planted faults and controls, read from the docstrings of `faults/` without importing anything.

The controller imports no torch, and what is planted needs it: the record of a fault is therefore
its docstring, whose form is fixed (`faults/__init__.py`) and checked here.
"""

import ast
import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ddp_invariants.errors import CatalogueError
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import ALL_RULES

PACKAGE = "ddp_invariants.faults"
_FOLDER = Path(__file__).parents[1] / "faults"
_CONTROL = re.compile(r"Right: (?P<what>.+)\.")
_FAULT = re.compile(
    r"(?P<what>.+) \((?P<where>(?:[^()]|\([^()]*\))+)\)\. (?P<rule>[A-Z]+-\d+)(?:: (?P<cause>[^;]+))?"
    r"(?:; or (?P<other_rule>[A-Z]+-\d+): (?P<other_cause>[^;]+))?\."
)
_ISSUE = re.compile(r"(?:(?P<owner>[\w.-]+)/)?(?P<repository>[\w.-]+)#(?P<number>\d+)")


@dataclass(frozen=True)
class Planted:
    """One implementation of the catalogue.

    Attributes:
        host: The module of `faults/` it is in.
        style: What that holds: the first line of its docstring.
        name: Of the class or function.
        what: What is wrong with it, or what it is.
        where: Where that really happened; empty for a control.
        rule: The rule that must notice; empty for a control, which none may accuse.
        cause: Words of the cause that must be named; empty where the evidence shows none.
        is_sampler: Whether it is a sampler.
        other_rule, other_cause: The same, where it shows in two ways that have nothing to do with
            one another.
    """

    host: str
    style: str
    name: str
    what: str
    where: str = ""
    rule: str = ""
    cause: str = ""
    is_sampler: bool = False
    other_rule: str = ""
    other_cause: str = ""

    @property
    def target(self) -> str:
        """As `--ddp` or `--sampler` takes it."""
        return f"{PACKAGE}.{self.host}:{self.name}" if self.host != "shipped" else self.name

    @property
    def is_fault(self) -> bool:
        """Whether something is wrong with it; a control else."""
        return bool(self.rule)

    @property
    def needs_device(self) -> bool:
        """Whether it is wrong on a device alone, which queues what is computed."""
        return self.rule.startswith("GPU")

    @property
    def on_trial(self) -> tuple[Ddp, Sampler]:
        """Itself, and the reference for what it is not."""
        return (Ddp(), Sampler(self.target)) if self.is_sampler else (Ddp(self.target), Sampler())

    @property
    def link(self) -> str:
        """The first issue its source names, as an address; empty where it names none."""
        found = _ISSUE.search(self.where)
        if found is None:
            return ""
        return f"https://github.com/{found['owner'] or found['repository']}/{found['repository']}/issues/{found['number']}"


SHIPPED = tuple(
    Planted(
        "shipped",
        "what is judged by a short name",
        name,
        f"the {what} of {name}",
        is_sampler=is_sampler,
    )
    for name in ("reference", "torch")
    for what, is_sampler in (("DDP", False), ("sampler", True))
)
"""Controls that are not planted."""


def chosen(names: Iterable[str]) -> list[Planted]:
    """The entries that are called so, or lie in a module called so, or break a rule called so; all without a name.

    Raises:
        CatalogueError: A name is none of these.
    """
    entries, names = planted(), list(names)
    known = [(one.name, one.host, one.rule) for one in entries]
    for name in names:
        if not any(name in about for about in known):
            close = difflib.get_close_matches(name, {word for about in known for word in about}, 1)
            raise CatalogueError(
                f"--only {name}: no fault or control, no module and no rule of the catalogue is called so"
                + (f"; did you mean {close[0]}?" if close else "")
            )
    return [
        one
        for one, about in zip(entries, known, strict=True)
        if not names or set(names).intersection(about)
    ]


@cache
def planted() -> tuple[Planted, ...]:
    """All of it, by module and then in the order of the source; last the controls that are not planted.

    Raises:
        CatalogueError: A docstring has another form, or names a rule that does not exist.
    """
    modules = [path for path in sorted(_FOLDER.glob("*.py")) if not path.stem.startswith("_")]
    return (*(one for path in modules for one in _of_module(path)), *SHIPPED)


def _of_module(path: Path) -> list[Planted]:
    module = ast.parse(path.read_text(encoding="utf-8"))
    style = (ast.get_docstring(module) or "").partition("\n")[0].rstrip(".")
    entries = [
        _entry(path, node, style)
        for node in module.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]
    # What is right says nothing of rules: it is what the faults beside it are.
    of_samplers = any(one.rule.startswith("SHARD") for one in entries)
    return [replace(one, is_sampler=of_samplers) for one in entries]


def _entry(path: Path, node: ast.ClassDef | ast.FunctionDef, style: str) -> Planted:
    text = " ".join((ast.get_docstring(node) or "").split())
    control, fault = _CONTROL.fullmatch(text), _FAULT.fullmatch(text)
    if control is not None:
        return Planted(path.stem, style, node.name, control["what"])
    if fault is None:
        raise CatalogueError(
            f"{path.name}:{node.name}: its docstring is {text!r}, expected 'Right: what it is.' or 'What is "
            "wrong (where it happened). RULE: words of the cause.'"
        )
    if fault["rule"] not in ALL_RULES:
        raise CatalogueError(f"{path.name}:{node.name}: no rule is called {fault['rule']}")
    return Planted(
        path.stem,
        style,
        node.name,
        fault["what"],
        fault["where"],
        fault["rule"],
        fault["cause"] or "",
        other_rule=fault["other_rule"] or "",
        other_cause=fault["other_cause"] or "",
    )
