"""Catalogues of wrong and right implementations: the package's own, and those of others.

The controller imports no torch, but the implementations need torch. The record of an implementation
is therefore its docstring, which is read without importing the module. `faults/__init__.py` fixes
the form of these docstrings in the package's own catalogue.
"""

import ast
import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ddp_invariants.errors import CatalogueError
from ddp_invariants.implementation.spec import Arguments, Ddp, Sampler
from ddp_invariants.invariants.rule import invariant_of
from ddp_invariants.proof.docstrings import Part, Record, liberally, strictly
from ddp_invariants.proof.parts import Definition, part_of

PACKAGE = "ddp_invariants.faults"
_FOLDER = Path(__file__).parents[1] / "faults"
_ISSUE = re.compile(r"(?:(?P<owner>[\w.-]+)/)?(?P<repository>[\w.-]+)#(?P<number>\d+)")


@dataclass(frozen=True)
class CatalogueEntry:
    """One implementation of a catalogue.

    Attributes:
        module: The module that contains the implementation: its path in the catalogue without
            `.py`.
        style: The style of that module: the first line of its docstring.
        name: The name of the class or function.
        description: For a fault, what is wrong; for a control, what it is.
        source: The place where the fault really happened; empty for a control.
        rules: The rules of which one must notice the fault; none for a control, on which no rule
            may fail.
        causes: Words of causes, of which one must be named; none if the evidence shows no cause.
        part: The part of training that it is. An optimizer is tried with the reference's wrapper.
        trigger: The situation in which the fault shows, if the record names it.
        docstring: The whole record.
        file: The path of the module's file; empty for the package's own catalogue. For a composed
            implementation, the name that `--ddp` or `--sampler` takes.
        arguments: The arguments of a composed implementation.
        fault: Further arguments, which make it wrong.
        kin: The arguments of the right implementation that is probed, since it can do the same;
            none if the entry's own are.
        base: The right implementation of the same file that a fault is derived from; empty if there
            is none.
    """

    module: str
    style: str
    name: str
    description: str
    source: str = ""
    rules: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    part: Part = "ddp"
    trigger: str = ""
    docstring: str = ""
    file: str = ""
    arguments: Arguments = ()
    fault: Arguments = ()
    kin: Arguments = ()
    base: str = ""

    @property
    def target(self) -> str:
        """Return the name that `--ddp`, `--sampler` or `--opt` takes."""
        if self.file:
            return self.file if self.arguments else f"{self.file}:{self.name}"
        return f"{PACKAGE}.{self.module}:{self.name}" if self.module != "shipped" else self.name

    @property
    def rule(self) -> str:
        """The first of the rules; empty for a control."""
        return self.rules[0] if self.rules else ""

    @property
    def is_sampler(self) -> bool:
        """True for a sampler, which the rules about samplers judge; False for a DDP or an optimizer."""
        return self.part == "sampler"

    @property
    def is_fault(self) -> bool:
        """True for a fault, False for a control."""
        return bool(self.rules)

    @property
    def states_causes(self) -> bool:
        """True if a missing cause means that none may be named.

        It does in the package's own catalogue. Others may leave the cause out.
        """
        return bool(self.causes) or not self.file

    @property
    def identity(self) -> tuple[Any, ...]:
        """Return what tells the entry from all others of its catalogue."""
        return self.target, self.part, self.arguments, self.fault

    @property
    def executed(self) -> tuple[str, ...]:
        """Return the places of the marked statements that ranks have executed.

        An entry of a catalogue has no marked statements.
        """
        return ()

    @property
    def needs_device(self) -> bool:
        """True if the fault shows only on a device, which queues its work."""
        return invariant_of(self.rule) == "GPU"

    @property
    def under_test(self) -> tuple[Ddp, Sampler]:
        """Return this implementation, with the reference as the other part."""
        arguments = (*self.arguments, *self.fault)
        if self.part == "sampler":
            return Ddp(), Sampler(self.target, arguments)
        if self.part == "optimizer":
            return Ddp(optimizer=self.target, optimizer_arguments=arguments), Sampler()
        return Ddp(self.target, arguments), Sampler()

    @property
    def probed(self) -> tuple[Ddp, Sampler]:
        """Return the implementations whose capabilities decide what cases may contain.

        A composed fault is tried on all that its host, or the host's kin, offers.
        """
        return replace(self, arguments=self.kin or self.arguments, fault=()).under_test

    @property
    def derived_from(self) -> tuple[Ddp, Sampler] | None:
        """The right implementation that a fault is derived from; None if there is none."""
        return replace(self, name=self.base).under_test if self.base else None

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


_SHIPPED: tuple[tuple[str, Part], ...] = (("DDP", "ddp"), ("sampler", "sampler"))
SHIPPED = tuple(
    CatalogueEntry(
        "shipped",
        "implementations with a short name",
        name,
        f"the {words} of {name}",
        part=part,
    )
    for name in ("reference", "torch")
    for words, part in _SHIPPED
)
"""The controls that are not planted."""


@dataclass(frozen=True)
class Catalogue:
    """A catalogue, as far as it could be read.

    Attributes:
        entries: Its implementations.
        unread: A sentence for each file and each implementation that could not be read.
    """

    entries: tuple[CatalogueEntry, ...]
    unread: tuple[str, ...] = ()

    def select(self, names: Iterable[str]) -> list[CatalogueEntry]:
        """Return the entries that have one of the names; all entries if there is no name.

        A name is that of an entry, of a module or of a rule that must notice the fault.

        Raises:
            CatalogueError: A name is none of these.
        """
        names = list(names)
        known = [
            (entry.name, entry.module, Path(entry.module).name, *entry.rules)
            for entry in self.entries
        ]
        for name in names:
            if not any(name in about for about in known):
                words = {word for about in known for word in about}
                close = difflib.get_close_matches(name, words, 1)
                raise CatalogueError(
                    f"--only {name}: the catalogue has no fault, control, module or rule of that "
                    "name" + (f"; did you mean {close[0]}?" if close else "")
                )
        return [
            entry
            for entry, about in zip(self.entries, known, strict=True)
            if not names or set(names).intersection(about)
        ]


@cache
def all_entries() -> tuple[CatalogueEntry, ...]:
    """Return all entries of the package's catalogue, by module and in the order of the source.

    The controls that are not planted come last.

    Raises:
        CatalogueError: A docstring has another form, or names a rule that does not exist.
    """
    # Composed implementations, in a folder of their own, have no records.
    paths = (path for path in _modules(_FOLDER) if path.parent == _FOLDER)
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    classes = _classes([*_private(_FOLDER), *trees.values()])
    entries: list[CatalogueEntry] = []
    for path, tree in trees.items():
        records: list[tuple[Definition, Record]] = []
        for node in _definitions(tree.body):
            try:
                records.append((node, strictly(ast.get_docstring(node) or "")))
            except CatalogueError as error:
                raise CatalogueError(f"{path.name}:{node.name}: {error}") from error
        entries += _entries(path.stem, tree, records, classes)
    return (*entries, *SHIPPED)


def read(path: Path) -> Catalogue:
    """Read a catalogue that does not come with the package: a file, or a folder with its folders.

    Names that begin with an underscore or a dot are left out.

    Raises:
        CatalogueError: There is no such file or folder, or no implementation in it has a record.
    """
    if not path.exists():
        raise CatalogueError(f"--catalogue {path}: there is no such file or folder")
    if path.is_file() and path.suffix != ".py":
        raise CatalogueError(f"--catalogue {path}: expected a .py file or a folder")
    root = path if path.is_dir() else path.parent
    trees: dict[Path, ast.Module] = {}
    unread: list[str] = []
    for file in _modules(path):
        try:
            trees[file] = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError) as error:
            unread.append(f"{file.relative_to(root)}: it cannot be read: {error}")
    entries: list[CatalogueEntry] = []
    classes = _classes([*_private(path), *trees.values()])
    for file, tree in trees.items():
        name = file.relative_to(root)
        records: list[tuple[Definition, Record]] = []
        for node in _definitions(tree.body):
            try:
                records.append((node, liberally(ast.get_docstring(node) or "")))
            except CatalogueError as error:
                unread.append(f"{name}:{node.name}: {error}")
        found = _entries(name.with_suffix("").as_posix(), tree, records, classes)
        own, right = _classes([tree]), {entry.name for entry in found if not entry.is_fault}
        entries += [
            replace(entry, file=str(file.resolve()), base=_right_base(entry, own, right))
            for entry in found
        ]
    if not entries:
        raise CatalogueError(
            f"--catalogue {path}: no class or function there names a rule in its docstring"
            + (f" ({unread[0]})" if unread else "")
        )
    return Catalogue(tuple(entries), tuple(unread))


def _modules(path: Path) -> Iterator[Path]:
    """Yield the files of a catalogue: the file itself, or the public modules of a folder."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*.py")):
        if not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts):
            yield file


def _private(path: Path) -> Iterator[ast.Module]:
    """Yield the private modules of a folder that can be read: they may hold bases of the entries."""
    for file in sorted(path.rglob("_*.py")) if path.is_dir() else ():
        with suppress(OSError, SyntaxError, ValueError):
            yield ast.parse(file.read_text(encoding="utf-8"))


def _definitions(body: Sequence[ast.stmt]) -> Iterator[Definition]:
    """Yield the public classes and functions of a module, also those that depend on a condition."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            yield from _definitions([*node.body, *node.orelse])


def _classes(trees: Iterable[ast.Module]) -> dict[str, ast.ClassDef]:
    """Return all classes of some modules by name."""
    return {
        node.name: node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def _right_base(
    entry: CatalogueEntry, classes: Mapping[str, ast.ClassDef], right: Collection[str]
) -> str:
    """Return the nearest right class of a module that a fault is derived from; empty for none."""
    waiting = [entry.name] if entry.is_fault else []
    for name in waiting:  # It grows.
        if name in right:
            return name
        bases = classes[name].bases if name in classes else []
        waiting += [base.id for base in bases if isinstance(base, ast.Name)]
    return ""


def _entries(
    module: str,
    tree: ast.Module,
    records: Sequence[tuple[Definition, Record]],
    classes: Mapping[str, ast.ClassDef],
) -> list[CatalogueEntry]:
    """Return the entries of a module, each as the part of training that it is."""
    style = (ast.get_docstring(tree) or "").partition("\n")[0].rstrip(".")
    nearest = {**classes, **_classes([tree])}
    parts = [part_of(node, record, nearest) for node, record in records]
    # The faults of a module show what a control is that shows nothing by itself.
    usual: Part = "sampler" if "sampler" in parts and not {"ddp", "optimizer"} & {*parts} else "ddp"
    return [
        CatalogueEntry(
            module,
            style,
            node.name,
            record.description,
            record.source,
            record.rules,
            record.causes,
            part=part or usual,
            trigger=record.trigger,
            docstring=" ".join((ast.get_docstring(node) or "").split()),
        )
        for (node, record), part in zip(records, parts, strict=True)
    ]
