"""Check the claims of a comparison in plain torch, without the suite.

    ddp-invariants compare --old OLD --new NEW --ddp torch --sampler torch --json > report.json
    python benchmarks/claims.py OLD NEW report.json

OLD and NEW are interpreters. Each claim that counts is asked of both, by code that uses torch and the
standard library alone. The exit status is 1 if an answer differs from the report. Differences that a
case shows have scripts of their own (`compare --scripts FOLDER`); they are listed as not checked.
"""

import inspect
import json
import operator
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    """Ask both interpreters about each claim, and print how many answers are as reported."""
    if sys.argv[1:] == ["--answer"]:
        json.dump(_answers(json.load(sys.stdin)), sys.stdout)
        return
    *pythons, report = sys.argv[1:]
    rows = [row for row in json.loads(Path(report).read_text("utf-8"))["found"] if row["counts"]]
    subjects = [row["name"].partition(": ")[2].partition("; ")[0] for row in rows]
    old, new = (_asked(python, subjects) for python in pythons)
    wrong = unchecked = 0
    for row, subject, before, after in zip(rows, subjects, old, new, strict=True):
        if before is None or after is None:
            unchecked += 1
            print(f"not checked: {subject}")
        elif (before, after) != (row["old"], row["new"]):
            wrong += 1
            print(f"OTHERWISE: {subject}\n  old {before}\n  new {after}")
    print(
        f"{len(rows)} claims: {len(rows) - wrong - unchecked} as reported, {wrong} otherwise, ",
        end="",
    )
    print(f"{unchecked} not checked")
    sys.exit(wrong > 0)


def _asked(python: str, subjects: list[str]) -> list[str | None]:
    """Return an interpreter's answers; None for a subject that this script has no question for."""
    command = [python, __file__, "--answer"]
    text = json.dumps(subjects)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    answers: list[str | None] = json.loads(done.stdout)
    return answers


def _answers(subjects: list[str]) -> list[str | None]:
    import torch.distributed as dist

    # torch declares no exports.
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    return [_answer(subject) for subject in subjects]


def _answer(subject: str) -> str | None:
    """Return the answer to a subject: a signature, a default, an attribute, or how a call ends."""
    import torch
    from torch import nn

    word, _, name = subject.partition(" ")
    linear = nn.Linear(2, 2)
    if word == "argument":
        return _argument(name)
    if attribute := re.fullmatch(r"surface attribute (\w+) of a wrapped module", subject):
        return _attribute(attribute[1])
    if defaults := re.fullmatch(r"surface defaults of (\w+)", subject):
        made = getattr(torch.optim, defaults[1])(linear.parameters(), lr=0.5)
        return str(sorted(made.defaults.items()))
    if subject == "surface refusal of a module on the meta device":
        return _ends(lambda: _ddp(nn.Linear(2, 2, device="meta")))
    if refused := re.fullmatch(r"surface refusal of (\w+)=(object\(\)|-1)", subject):
        value = object() if refused[2] == "object()" else -1
        return _ends(lambda: _ddp(linear, **{refused[1]: value}))
    if subject == "capability complex":
        try:
            _ddp(nn.Linear(2, 2, dtype=torch.complex64))
        except RuntimeError as error:
            return f"refused RuntimeError in wrap: {error}"
        return None  # One rank cannot show that it is right.
    if word == "surface" and name.startswith("torch."):
        return _public(name)
    return None


def _ddp(*arguments: Any, **options: Any) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(*arguments, **options)


def _attribute(name: str) -> str:
    """Return a plain value of a wrapped module; "none" if it has none of that name."""
    from torch import nn

    try:
        value = getattr(_ddp(nn.Linear(2, 2)), name)
    except Exception:  # noqa: BLE001 - a property may have a value in training alone
        return "none"
    plain = value is None or isinstance(value, (bool, int, float, str))
    return repr(value) if plain else "none"


def _argument(name: str) -> str:
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DistributedSampler

    for target in (DistributedDataParallel, DistributedSampler):
        found = inspect.signature(target).parameters.get(name)
        if found is not None:
            return "required" if found.default is found.empty else f"default {found.default!r}"
    return "not taken"


def _ends(call: Callable[[], object]) -> str:
    """Return how a call ends, with the warnings that usual calls do not give."""
    from torch import nn

    end, given = _ended(call)
    _, usual = _ended(lambda: _ddp(nn.Linear(2, 2)))
    kinds = sorted(given - usual)
    return f"{end}, with {', '.join(kinds)}" if kinds else end


def _ended(call: Callable[[], object]) -> tuple[str, set[str]]:
    """Return how a call ends, and the kinds of its warnings."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            call()
            end = "taken"
        except Exception as error:  # noqa: BLE001 - the answer
            end = f"raises {type(error).__name__}"
    return end, {warning.category.__name__ for warning in given}


def _public(name: str) -> str:
    """Return the signature of a public name, or its type; "none" if torch has no such name."""
    import torch
    import torch.utils.checkpoint

    name = name.removeprefix("torch.")
    try:
        thing = operator.attrgetter(name)(torch)
        owner = operator.attrgetter(name.rpartition(".")[0])(torch) if "." in name else torch
    except AttributeError:
        return "none"
    if isinstance(owner, type) and _is_inherited(owner, name.rpartition(".")[2]):
        return "none"
    if not callable(thing):
        return type(thing).__name__
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return "callable"
    marks = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    words = [
        f"{marks.get(each.kind.name, '')}{each.name}"
        + ("" if each.default is each.empty else f"={each.default!r}"[:80])
        for each in parameters
    ]
    return re.sub(r" at 0x[0-9a-f]+", "…", f"({', '.join(words)})")


def _is_inherited(owner: type, name: str) -> bool:
    """Return whether a class has a member from a module, an optimizer or any object, unaltered."""
    import torch

    plain = next(
        each
        for each in (torch.nn.Module, torch.optim.Optimizer, object)
        if issubclass(owner, each) and owner is not each
    )
    return inspect.getattr_static(owner, name) is inspect.getattr_static(plain, name, None)


if __name__ == "__main__":
    main()
