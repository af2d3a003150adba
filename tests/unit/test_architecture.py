"""The package's layout: imports run downward, and the controller's rooms never import torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "ddp_invariants"
ADAPTERS = f"{PACKAGE}.implementation.adapters."

ORDER = (
    "cli",
    "plugin",
    "session",
    "report",
    "upgrades",
    "export",
    "proof",
    "certification",
    "rules",
    "search",
    "discovery",
    "invariants",
    "ranks",
    "oracle",
    "processes",
    "records",
    "implementation",
    "situations",
    "cases",
    "faults",
    "reference",
    "errors",
)
"""The rooms of the package. A room imports only from rooms below it."""
WITHOUT_TORCH = (
    "cases",
    "situations",
    "implementation",
    "records",
    "processes",
    "oracle",
    "invariants",
    "discovery",
    "search",
    "report",
    "session",
    "certification",
    "rules",
    "upgrades",
    "export",
    "proof",
    "cli",
    "plugin",
    "errors",
)
MOST_ROOMS = 26
"""Files and folders on the package's top level. More of them hide the pipeline in `ls`."""


def modules() -> dict[str, Path]:
    """Return the package's modules by dotted name."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", f"{PACKAGE}/*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    paths = [ROOT / name for name in listed if (ROOT / name).exists()]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


MODULES = modules()


def imports(path: Path, *, running: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name of every import in a module, also those in functions.

    Args:
        path: The module's file.
        running: True to leave out imports that only a type checker reads.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typed = [
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    ]
    for node in ast.walk(tree):
        if running and node in typed:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield node.lineno, full if full in MODULES else node.module


def room(module: str) -> str:
    """Return the room of a module; empty for the package itself and for `__main__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else ""


def upward(module: str, line: int, target: str) -> str:
    """Return a sentence about an import that does not run downward; empty if it does."""
    here, there = room(module), room(target)
    if not target.startswith(f"{PACKAGE}.") or not here or not there or here == there:
        return ""
    if ORDER.index(there) > ORDER.index(here):
        return ""
    return f"{module}, line {line}: {here} imports {target}, which is in a room above it"


def test_every_room_has_a_place_in_the_order() -> None:
    """A new folder or module on the top level must be given its place."""
    rooms = {room(module) for module in MODULES} - {""}
    assert rooms <= {*ORDER}
    assert len(list(rooms)) + len(("__init__", "__main__", "py.typed", "properties")) <= MOST_ROOMS


def test_imports_run_downward() -> None:
    """A room imports only from rooms below it."""
    sentences = [
        upward(module, line, target)
        for module, path in MODULES.items()
        for line, target in imports(path)
    ]
    assert [sentence for sentence in sentences if sentence] == []


def test_an_import_that_runs_upward_is_named() -> None:
    """The sentence names the module, the line and the room."""
    sentence = upward(f"{PACKAGE}.cases.case", 7, f"{PACKAGE}.search.trial")
    assert "cases imports ddp_invariants.search.trial" in sentence
    assert upward(f"{PACKAGE}.search.trial", 7, f"{PACKAGE}.cases.case") == ""


def test_no_module_imports_itself_through_others() -> None:
    """The modules' imports form no circle.

    An effect's hooks take the stepper that calls them. Only the type checker imports it there.
    """
    graph = {
        module: {
            target
            for _, target in imports(path, running=True)
            if target in MODULES and target != module
        }
        for module, path in MODULES.items()
    }
    assert len([*TopologicalSorter(graph).static_order()]) == len(MODULES)


def test_the_controllers_rooms_never_import_torch() -> None:
    """No module of these rooms imports torch, directly or through another module of the package.

    The message names the first module that brings torch along. Only ranks load adapters, which
    import torch like their libraries.
    """
    members = [
        module
        for module in MODULES
        if room(module) in WITHOUT_TORCH and not module.startswith(ADAPTERS)
    ]
    lines = [
        f"import {module}; 'torch' in sys.modules and sys.exit({module!r})" for module in members
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(["import sys", *lines])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
