"""The catalogue of planted faults and controls, read from the docstrings of `faults/`.

The controller imports no torch, but the planted implementations need torch. The record of a fault
is therefore its docstring, which is read without importing the module. `faults/__init__.py` fixes
the form of these docstrings, and this module checks it.
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
from ddp_invariants.invariants.rule import invariant_of

PACKAGE = "ddp_invariants.faults"
_FOLDER = Path(__file__).parents[1] / "faults"
_CONTROL = re.compile(r"Right: (?P<description>.+)\.")
_FAULT = re.compile(
    r"(?P<description>.+) \((?P<source>(?:[^()]|\([^()]*\))+)\)\. "
    r"(?P<rule>[A-Z]+-\d+)(?:: (?P<cause>[^;]+))?"
    r"(?:; or (?P<other_rule>[A-Z]+-\d+): (?P<other_cause>[^;]+))?\."
)
_ISSUE = re.compile(r"(?:(?P<owner>[\w.-]+)/)?(?P<repository>[\w.-]+)#(?P<number>\d+)")


@dataclass(frozen=True)
class CatalogueEntry:
    """One implementation of the catalogue.

    Attributes:
        module: The module of `faults/` that contains the implementation.
        style: The style of that module: the first line of its docstring.
        name: The name of the class or function.
        description: For a fault, what is wrong; for a control, what it is.
        source: The place where the fault really happened; empty for a control.
        rule: The rule that must notice the fault; empty for a control, on which no rule may fail.
        cause: Words of the cause that must be named; empty if the evidence shows none.
        is_sampler: True for a sampler, False for a DDP.
        other_rule, other_cause: A second rule and cause, for a fault that shows in two unrelated
            ways.
    """

    module: str
    style: str
    name: str
    description: str
    source: str = ""
    rule: str = ""
    cause: str = ""
    is_sampler: bool = False
    other_rule: str = ""
    other_cause: str = ""

    @property
    def target(self) -> str:
        """Return the name that `--ddp` or `--sampler` takes."""
        return f"{PACKAGE}.{self.module}:{self.name}" if self.module != "shipped" else self.name

    @property
    def is_fault(self) -> bool:
        """True for a fault, False for a control."""
        return bool(self.rule)

    @property
    def needs_device(self) -> bool:
        """True if the fault shows only on a device, which queues its work."""
        return invariant_of(self.rule) == "GPU"

    @property
    def under_test(self) -> tuple[Ddp, Sampler]:
        """Return this implementation, with the reference as the other part."""
        return (Ddp(), Sampler(self.target)) if self.is_sampler else (Ddp(self.target), Sampler())

    @property
    def link(self) -> str:
        """Return the address of the first issue that the source names; empty if it names none."""
        issue = _ISSUE.search(self.source)
        if issue is None:
            return ""
        return (
            f"https://github.com/{issue['owner'] or issue['repository']}/{issue['repository']}"
            f"/issues/{issue['number']}"
        )


SHIPPED = tuple(
    CatalogueEntry(
        "shipped",
        "implementations with a short name",
        name,
        f"the {part} of {name}",
        is_sampler=is_sampler,
    )
    for name in ("reference", "torch")
    for part, is_sampler in (("DDP", False), ("sampler", True))
)
"""The controls that are not planted."""


def select(names: Iterable[str]) -> list[CatalogueEntry]:
    """Return the entries that have one of the names; all entries if there is no name.

    A name is that of an entry, of a module or of a rule that must notice the fault.

    Raises:
        CatalogueError: A name is none of these.
    """
    entries, names = all_entries(), list(names)
    known = [(entry.name, entry.module, entry.rule) for entry in entries]
    for name in names:
        if not any(name in about for about in known):
            close = difflib.get_close_matches(name, {word for about in known for word in about}, 1)
            raise CatalogueError(
                f"--only {name}: the catalogue has no fault, control, module or rule of that "
                "name" + (f"; did you mean {close[0]}?" if close else "")
            )
    return [
        entry
        for entry, about in zip(entries, known, strict=True)
        if not names or set(names).intersection(about)
    ]


@cache
def all_entries() -> tuple[CatalogueEntry, ...]:
    """Return all entries, by module and then in the order of the source.

    The controls that are not planted come last.

    Raises:
        CatalogueError: A docstring has another form, or names a rule that does not exist.
    """
    modules = [path for path in sorted(_FOLDER.glob("*.py")) if not path.stem.startswith("_")]
    return (*(entry for path in modules for entry in _of_module(path)), *SHIPPED)


def _of_module(path: Path) -> list[CatalogueEntry]:
    module = ast.parse(path.read_text(encoding="utf-8"))
    style = (ast.get_docstring(module) or "").partition("\n")[0].rstrip(".")
    entries = [
        _entry(path, node, style)
        for node in module.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]
    # A control names no rule: the faults of its module show if it is a sampler.
    of_samplers = any(invariant_of(entry.rule) == "SHARD" for entry in entries)
    return [replace(entry, is_sampler=of_samplers) for entry in entries]


def _entry(path: Path, node: ast.ClassDef | ast.FunctionDef, style: str) -> CatalogueEntry:
    text = " ".join((ast.get_docstring(node) or "").split())
    control, fault = _CONTROL.fullmatch(text), _FAULT.fullmatch(text)
    if control is not None:
        return CatalogueEntry(path.stem, style, node.name, control["description"])
    if fault is None:
        raise CatalogueError(
            f"{path.name}:{node.name}: its docstring is {text!r}, expected 'Right: what it is.' or "
            "'What is wrong (where it happened). RULE: words of the cause.'"
        )
    if fault["rule"] not in ALL_RULES:
        raise CatalogueError(f"{path.name}:{node.name}: no rule is called {fault['rule']}")
    return CatalogueEntry(
        path.stem,
        style,
        node.name,
        fault["description"],
        fault["source"],
        fault["rule"],
        fault["cause"] or "",
        other_rule=fault["other_rule"] or "",
        other_cause=fault["other_cause"] or "",
    )
