"""Imports of files, alone or as modules of the packages that they lie in."""

import ast
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ddp_invariants.errors import LoadError

_FOLDERS_ABOVE = 4
"""Folders above a file that may hold what it imports."""


def from_file(path: Path) -> Any:
    """Import a file.

    A file inside a package is imported as its module, so that its own imports work. Any other file
    is imported by itself.
    """
    if not path.is_file():
        raise LoadError(f"there is no file {path}")
    resolved = path.resolve()
    root = resolved.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    packaged = root != resolved.parent
    alone = _name_alone(resolved)
    name = ".".join(resolved.with_suffix("").relative_to(root).parts) if packaged else alone
    for known in (name, alone):
        if getattr(sys.modules.get(known), "__file__", None) == str(resolved):
            return sys.modules[known]
    folders = [root]
    while True:
        try:
            with _first_on_the_path(folders):
                return _packaged(name, resolved) if packaged else _alone(alone, resolved)
        except ModuleNotFoundError as error:
            above = _holder(resolved, error.name or "")
            if above is None or above in folders:
                raise
            folders.append(above)


@contextmanager
def _first_on_the_path(folders: list[Path]) -> Iterator[None]:
    """Let imports find the modules of some folders first, and last from then on.

    A file's later imports find its folder, which then shadows nothing.
    """
    for folder in reversed(folders):
        sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        for folder in folders:
            sys.path.remove(str(folder))
            sys.path.append(str(folder))


def _holder(path: Path, name: str) -> Path | None:
    """Return the nearest folder above a file that holds a module; None if none of them does.

    A file in a folder of folders may import a module beside these, or name the outer folder.
    """
    top = name.partition(".")[0]
    for folder in path.parents[1:_FOLDERS_ABOVE]:
        if top and ((folder / f"{top}.py").is_file() or (folder / top).is_dir()):
            return folder
    return None


def _packaged(name: str, path: Path) -> Any:
    """Import a module of a package, or its file by itself if the package fails.

    The package may fail because it is not installed.
    """
    alone = _name_alone(path)
    try:
        module = importlib.import_module(name)
    except Exception:
        with suppress(Exception):  # The first error says more.
            return _alone(alone, path)
        raise
    # Another package of that name may be loaded already, from somewhere else.
    return module if getattr(module, "__file__", None) == str(path) else _alone(alone, path)


def _name_alone(path: Path) -> str:
    """Return the name of a file that is imported by itself.

    A file whose imports are relative is a module of a package: of its folder, or of one above it.
    """
    levels = _relative(path)
    if not levels:
        return f"_on_trial_{path.stem}"
    folder = path.parents[min(levels, len(path.parents)) - 1]
    package = f"_on_trial_{folder.name}_{hashlib.blake2b(bytes(folder), digest_size=4).hexdigest()}"
    return ".".join((package, *path.relative_to(folder).with_suffix("").parts))


def _relative(path: Path) -> int:
    """Return the most dots with which an import of a file begins; 0 if it cannot be parsed."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return 0  # Its import says what is wrong.
    return max(
        (node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0
    )


def _alone(name: str, path: Path) -> Any:
    """Import a file by itself, or as a module of the package that its relative imports need."""
    package, _, rest = name.partition(".")
    if rest:
        folder = ModuleType(package)
        folder.__path__ = [str(path.parents[rest.count(".")])]
        sys.modules.setdefault(package, folder)
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
