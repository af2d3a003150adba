"""Imports of named objects: `package.module:Name`, `path/to/file.py:Name`, or an entry point."""

import ast
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Literal

from ddp_invariants.errors import LoadError
from ddp_invariants.implementation.names import misnamed, target_of
from ddp_invariants.ranks.driving.files import from_file

Side = Literal["ddp", "sampler", "opt", "after", "setup"]


def resolve(name: str, side: Side) -> Any:
    """Import the object that a name stands for.

    Raises:
        LoadError: The name has no such form, its module or file does not exist or does not import,
            or it has no such attribute.
    """
    option = f"--{side} {name}"
    wrong = misnamed(name, side)
    if wrong:
        raise LoadError(wrong)
    module_name, _, attribute = target_of(name, side).rpartition(":")
    module = import_module(module_name, option)
    try:
        target: Any = module
        for part in attribute.split("."):
            target = getattr(target, part)
    except AttributeError:
        raise LoadError(
            f"{option}: {module_name} has no {attribute!r}; "
            f"{_instead(module, module_name, attribute)}"
        ) from None
    return target


def import_module(module_name: str, option: str) -> Any:
    """Import a module by its name or file.

    Raises:
        LoadError: There is none, or it does not import.
    """
    try:
        return (
            from_file(Path(module_name))
            if module_name.endswith(".py")
            else importlib.import_module(module_name)
        )
    except LoadError as error:
        raise LoadError(f"{option}: {error}") from error
    except ModuleNotFoundError as error:
        if error.name and (module_name + ".").startswith(error.name + "."):
            raise LoadError(
                f"{option}: there is no module {error.name!r}; install it, or give the path of "
                "a .py file"
            ) from error
        raise LoadError(
            f"{option}: importing it needs the module {error.name!r}, which is missing"
            f"{_hidden_by(module_name, error.name or '')}"
        ) from error
    except BaseException as error:  # Even SystemExit: a module may do anything when imported.
        raise LoadError(
            f"{option}: importing {module_name} raised {type(error).__name__}: "
            f"{error}{_no_gpu(error)}"
        ) from error


def _hidden_by(file: str, missing: str) -> str:
    """Return a hint if a file, such as an adapter, has the name of the package that it imports."""
    path = Path(file)
    if path.suffix != ".py" or missing.partition(".")[0] != path.stem:
        return ""
    return f"; {path.name} hides a package of its own name, so rename the file"


def _no_gpu(error: BaseException) -> str:
    text = str(error).lower()
    return (
        "; it needs CUDA, which this machine does not have"
        if "cuda" in text or "nvidia" in text
        else ""
    )


def _instead(module: Any, module_name: str, attribute: str) -> str:
    """Return a hint at the right name.

    The hint is a close name in the module, or a module below or beside it that has this name.
    """
    offered = [
        name for name, value in vars(module).items() if callable(value) and not name.startswith("_")
    ]
    close = difflib.get_close_matches(attribute, offered, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    package = module_name.partition(".")[0]
    for name, loaded in list(sys.modules.items()):
        if (
            name.partition(".")[0] == package
            and name != module_name
            and callable(vars(loaded).get(attribute))
        ):
            return f"{name}:{attribute} exists"
    beside = _beside(module, module_name, attribute)
    return beside or f"it has {', '.join(offered[:12]) or 'nothing that can be called'}"


def _beside(module: Any, module_name: str, attribute: str) -> str:
    """Return a file of the same folder that defines the name.

    The files are read, not imported.
    """
    file = getattr(module, "__file__", None)
    if file is None:
        return ""
    for path in sorted(Path(file).parent.glob("*.py"))[:200]:
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            continue
        if any(
            isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == attribute
            for node in tree.body
        ):
            as_file = module_name.endswith(".py")
            sibling = (
                str(Path(module_name).parent / path.name)
                if as_file
                else f"{module.__package__}.{path.stem}"
            )
            return f"{sibling}:{attribute} exists"
    return ""


def version(thing: Any) -> str:
    """Return name and version of the distribution that an object comes from, or `unversioned`."""
    root = (getattr(thing, "__module__", "") or "").split(".")[0]
    number = getattr(sys.modules.get(root), "__version__", None)
    return f"{root} {number}" if number else "unversioned"


@dataclass(frozen=True)
class Source:
    """The source files that define an implementation.

    Attributes:
        digest: SHA-256 of their names and contents, in the order of their names; empty if a file
            cannot be read.
        files: The number of files.
        first: The names of the first files, relative to the folder of the package.
    """

    digest: str = ""
    files: int = 0
    first: tuple[str, ...] = ()


_MOST_NAMED = 12


def source_of(*things: Any) -> Source:
    """Return the files that define some classes or functions.

    The result holds the file of each class or function. It also holds the files of the same
    package, or folder, that these files refer to. A module refers to the values of its names after
    its import. Imports inside a function and compiled code are not followed. Thus a later session
    finds the same files whatever else it imported.
    """
    files: dict[str, Path] = {}
    wanting = sorted(
        {
            part.__module__
            for thing in things
            for part in getattr(thing, "__mro__", (thing,))
            if hasattr(part, "__module__")
        }
    )
    roots = {
        _folder(sys.modules.get(thing.__module__))
        for thing in things
        if hasattr(thing, "__module__")
    } - {None}
    seen = set(wanting)
    while wanting:
        module = sys.modules.get(wanting.pop())
        file, folder = _file(module), _folder(module)
        if (
            module is None
            or file is None
            or folder is None
            or folder not in roots
            or not file.endswith(".py")
        ):
            continue
        path = Path(file).resolve()
        files[str(path.relative_to(folder.parent))] = path
        # By their type: a stand-in for a deprecated object warns when asked for its class.
        referred = {
            value.__name__ if issubclass(type(value), ModuleType) else value.__module__
            for value in list(vars(module).values())
            if issubclass(type(value), ModuleType | type | FunctionType)
        }
        wanting += sorted(referred - seen)
        seen |= referred
    digest, first = hashlib.sha256(), tuple(sorted(files)[:_MOST_NAMED])
    try:
        for name in sorted(files):
            digest.update(
                f"{name}\0{hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode()
            )
    except OSError:
        return Source(files=len(files), first=first)
    return Source(digest.hexdigest() if files else "", len(files), first)


def _file(module: ModuleType | None) -> str | None:
    """Return the file of a module; None if it has none.

    A library's own kind of module, which imports the real one when an attribute is asked for, has
    none yet. Asking could import anything, and fail.
    """
    file = getattr(module, "__dict__", {}).get("__file__")
    return file if isinstance(file, str) else None


def _folder(module: ModuleType | None) -> Path | None:
    """Return the folder of a module's top-level package, or the folder of the module."""
    file = _file(module)
    if file is None:
        return None
    folder = Path(file).resolve().parent
    while (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    return folder


def signature(thing: Any, option: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a callable.

    Raises:
        LoadError: It cannot be called, or its parameters cannot be read.
    """
    if not callable(thing):
        raise LoadError(f"{option}: it is a {type(thing).__name__}, expected a class or function")
    try:
        parameters = dict(inspect.signature(thing).parameters)
    except (TypeError, ValueError) as error:
        raise LoadError(f"{option}: its arguments cannot be read: {error}") from error
    if isinstance(thing, type) and all(
        p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values()
    ):
        # A class that hands all arguments on to its base takes the base's parameters.
        for base in thing.__mro__[1:]:
            inherited = vars(base).get("__init__")
            if inspect.isfunction(inherited):
                _, *rest = inspect.signature(inherited).parameters.values()
                if any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in rest):
                    return {p.name: p for p in rest}
    return _with_inherited(thing, parameters) if isinstance(thing, type) else parameters


def _with_inherited(
    made: type, parameters: dict[str, inspect.Parameter]
) -> dict[str, inspect.Parameter]:
    """Return a constructor's parameters with those that it hands on to its base by name.

    A constructor hands them on if it calls `super().__init__(…, **options)` with all named
    arguments that it does not know. A parameter to which it gives a value itself is not among them.
    """
    inherited = dict[str, inspect.Parameter]()
    settled, places, certain = set[str](), 0, True
    for base in made.__mro__:
        constructor = vars(base).get("__init__")
        if constructor is None:
            continue
        if not inspect.isfunction(constructor):
            break
        _, *own = inspect.signature(constructor).parameters.values()
        inherited |= {
            p.name: p
            for p in own[places:]
            if p.name not in settled and (certain or p.default is not p.empty)
        }
        options = next((p.name for p in own if p.kind is p.VAR_KEYWORD), "")
        call = _call_of_base(constructor, options) if options else None
        if call is None:
            break
        certain = call.certain
        places = call.places
        settled |= {*(p.name for p in own), *call.names}
    more = {
        name: parameter.replace(kind=parameter.KEYWORD_ONLY)
        for name, parameter in inherited.items()
        if name not in parameters
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    last = [name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD]
    ordered = {**{n: p for n, p in parameters.items() if n not in last}, **more}
    return {**ordered, **{name: parameters[name] for name in last}}


@dataclass(frozen=True)
class _CallOfBase:
    """A constructor's call of its base's constructor with `**options`.

    Attributes:
        places: The number of arguments by position, without `self`.
        names: The names of the arguments to which the constructor gives a value.
        certain: True if the source shows all arguments.
    """

    places: int
    names: frozenset[str]
    certain: bool


def _call_of_base(constructor: FunctionType, options: str) -> _CallOfBase | None:
    """Return the call by which a constructor hands on `**options`; None if its source has none."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(constructor)))
    except (OSError, TypeError, SyntaxError):
        return None
    nodes = [*ast.walk(tree)]
    for call in nodes:
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "__init__"
            and any(
                each.arg is None and isinstance(each.value, ast.Name) and each.value.id == options
                for each in call.keywords
            )
        ):
            # `Base.__init__(self, …)` names `self`, and `super().__init__(…)` does not.
            positional = call.args[0 if isinstance(call.func.value, ast.Call) else 1 :]
            unpacked = any(isinstance(each, ast.Starred) for each in positional)
            uses = sum(isinstance(node, ast.Name) and node.id == options for node in nodes)
            return _CallOfBase(
                0 if unpacked else len(positional),
                frozenset(each.arg for each in call.keywords if each.arg is not None),
                certain=not unpacked and uses == 1,
            )
    return None


def required(parameters: Iterable[inspect.Parameter]) -> list[str]:
    """Return the names of parameters without which a call fails."""
    return [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def first(names: Iterable[str], among: Container[str]) -> str | None:
    """Return the first of some names that occurs, or None."""
    return next((name for name in names if name in among), None)


def setup_call(text: str) -> tuple[Any, dict[str, str | tuple[Any]]]:
    """Parse a `--setup` call into the function and its keyword arguments.

    The names WORLD and RANK stay names.

    Raises:
        LoadError: It is no `pkg.mod:name` or `pkg.mod:name(key=value, …)` of literals.
    """
    name, bracket, rest = text.partition("(")
    function = resolve(name, "setup")
    if not bracket:
        return function, {}
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args:
            raise ValueError("arguments must be given by name")
        values = {
            str(keyword.arg): keyword.value.id
            if isinstance(keyword.value, ast.Name) and keyword.value.id in ("WORLD", "RANK")
            else (ast.literal_eval(keyword.value),)
            for keyword in call.keywords
        }
    except (SyntaxError, ValueError, AssertionError) as error:
        raise LoadError(
            f"--setup {text}: expected pkg.mod:name(key=value, …) with literals, WORLD or "
            f"RANK: {error}"
        ) from error
    return function, values
