"""Overlays: altered copies of a module in a folder of their own.

The ranks load a copy as they load any file. The installed file is only read, and the installed
module keeps its name in `sys.modules`.
"""

import ast
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ddp_invariants.errors import LoadFailure
from ddp_invariants.implementation.names import target_of
from ddp_invariants.proof.mutants.operators import Mutant, comes_first, marked, mutated

EXECUTED = ".executed"
"""The suffix of a folder beside an overlay: ranks write an empty file for each executed marker."""

_HEAD = '''
def _statement_is_executed(statement, seen=set()):
    """Write an empty file when a statement is first executed."""
    if statement not in seen:
        import pathlib
        pathlib.Path({executed!r}, statement).touch()
        seen.add(statement)

from ddp_invariants.ranks.driving.imports import import_module as _import_original
_import_original({module!r}, "the original of a mutant")
del _import_original
'''
"""The head of a copy. The original is imported, so that its folder and its package are known."""


@dataclass(frozen=True)
class Original:
    """The source of an implementation.

    Attributes:
        module: The module's name, or the path of its file, as the user named it.
        file: The file that defines the class or function.
        package: The package of that file's module; empty if it lies in none.
        attribute: The qualified name of the class or function.
    """

    module: str
    file: Path
    package: str
    attribute: str

    def tree(self) -> ast.Module:
        """Return the syntax tree of the file."""
        return ast.parse(self.file.read_text(encoding="utf-8"))


def locate(side: str, name: str) -> Original:
    """Find the source of an implementation.

    Args:
        side: `ddp`, `sampler` or `opt`.
        name: As the option of that name takes it.

    Raises:
        LoadFailure: The implementation cannot be imported, or has no source in Python.
    """
    process = subprocess.run(
        [sys.executable, "-m", f"{__package__}.location", side, name],
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise LoadFailure(process.stderr.strip().splitlines()[-1])
    located = json.loads(process.stdout.strip().splitlines()[-1])
    if not str(located["file"]).endswith(".py"):
        raise LoadFailure(f"{name} has no source in Python")
    module = target_of(name, side).rpartition(":")[0]
    return Original(
        str(Path(module).resolve()) if module.endswith(".py") else module,
        Path(located["file"]),
        located["package"],
        located["attribute"],
    )


def write(original: Original, mutant: Mutant | None, path: Path) -> None:
    """Write a copy of a module.

    Args:
        original: The module.
        mutant: The change of the copy, whose statement gets a marker; None for a copy without a
            change, in which each statement has a marker.
        path: The file to write. Its stem must differ from those of other copies.
    """
    tree = marked(original.tree()) if mutant is None else mutated(original.tree(), mutant)
    folder = path.with_suffix(EXECUTED)
    folder.mkdir()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            node.module, node.level = _absolute(node, original.package), 0
    head = _HEAD.format(executed=str(folder), module=original.module)
    start = next(
        (number for number, node in enumerate(tree.body) if not comes_first(node)), len(tree.body)
    )
    tree.body[start:start] = ast.parse(head).body
    path.write_text(ast.unparse(tree), encoding="utf-8")


def executed(path: Path) -> tuple[str, ...]:
    """Return the places of a copy's marked statements that a rank has executed, sorted."""
    return tuple(sorted(file.name for file in path.with_suffix(EXECUTED).iterdir()))


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """Return the full name of the module of a relative import."""
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])
