"""The catalogue of planted faults and controls, read from the docstrings of `faults/` without importing anything.

The controller imports no torch, and what is planted needs it: the record of a fault is therefore its docstring, whose form
is fixed (`faults/__init__.py`) and checked here.
"""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddp_invariants.implementation import Ddp, Sampler
from ddp_invariants.invariants import ALL_RULES

PACKAGE = "ddp_invariants.faults"
_FOLDER = Path(__file__).with_name("faults")
_HOST = re.compile(r"(Host|Sampler): (?P<style>[^.]+)\.")
_CONTROL = re.compile(r"Right: (?P<what>.+)\.")
_FAULT = re.compile(r"(?P<what>.+) \((?P<where>(?:[^()]|\([^()]*\))+)\)\. (?P<rule>[A-Z]+-\d+)(?:: (?P<cause>.+))?\.")
_ISSUE = re.compile(r"(?:(?P<owner>[\w.-]+)/)?(?P<repository>[\w.-]+)#(?P<number>\d+)")


class CatalogueError(ValueError):
    """A docstring of `faults/` is not of the form that makes it a record: the message names it and the form."""


@dataclass(frozen=True)
class Planted:
    """One implementation of the catalogue.

    Attributes:
        host: The module of `faults/` it is in.
        style: What that holds, in a few words.
        name: Of the class or function.
        what: What is wrong with it, or what it is.
        where: Where that really happened; empty for a control.
        rule: The rule that must notice; empty for a control, which none may accuse.
        cause: Words of the cause that must be named; empty where the evidence shows none.
        is_sampler: Whether it is a sampler.
    """

    host: str
    style: str
    name: str
    what: str
    where: str = ""
    rule: str = ""
    cause: str = ""
    is_sampler: bool = False

    @property
    def target(self) -> str:
        """As `--ddp` or `--sampler` takes it."""
        return f"{PACKAGE}.{self.host}:{self.name}"

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


@cache
def planted() -> tuple[Planted, ...]:
    """All of it, by module and then in the order of the source.

    Raises:
        CatalogueError: A docstring has another form, or names a rule that does not exist.
    """
    return tuple(one for path in sorted(_FOLDER.glob("*.py")) if path.stem != "__init__" for one in _of_module(path))


def _of_module(path: Path) -> list[Planted]:
    module = ast.parse(path.read_text(encoding="utf-8"))
    host = _HOST.match(ast.get_docstring(module) or "")
    if host is None:
        raise CatalogueError(f"{path.name}: its docstring starts with neither 'Host: style.' nor 'Sampler: style.'")
    return [_entry(path, node, host["style"], is_sampler=host[1] == "Sampler") for node in module.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")]


def _entry(path: Path, node: ast.ClassDef | ast.FunctionDef, style: str, *, is_sampler: bool) -> Planted:
    text = " ".join((ast.get_docstring(node) or "").split())
    control, fault = _CONTROL.fullmatch(text), _FAULT.fullmatch(text)
    if control is not None:
        return Planted(path.stem, style, node.name, control["what"], is_sampler=is_sampler)
    if fault is None:
        raise CatalogueError(f"{path.name}:{node.name}: its docstring is {text!r}, expected 'Right: what it is.' or 'What is "
                             "wrong (where it happened). RULE: words of the cause.'")
    if fault["rule"] not in ALL_RULES or (fault["rule"].startswith("SHARD") != is_sampler and fault["rule"] != "LIVE-1"):
        raise CatalogueError(f"{path.name}:{node.name}: no rule about such as it is called {fault['rule']}")
    return Planted(path.stem, style, node.name, fault["what"], fault["where"], fault["rule"], fault["cause"] or "", is_sampler)
