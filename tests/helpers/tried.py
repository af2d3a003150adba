"""The page docs/tried.md: the dimensions of cases, how often each is drawn, and its planted faults.

This command writes the page, and so does `tests/helpers/readme.py`:

    python tests/helpers/tried.py

The shares come from drawn cases that are not run. Hypothesis also draws numbers that it finds in
the source, so any change of the code changes the shares a little. The test of the page therefore
compares shares within the spread of samples of this size.
"""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from math import prod, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import caught
from hypothesis import HealthCheck, Phase, given, seed, settings

from ddp_invariants.cases.case import Init, ShardCase, TrainingCase, Values
from ddp_invariants.cases.dtypes import Dtype
from ddp_invariants.cases.kinds import KINDS
from ddp_invariants.cases.layers import Layer, Layout, Model, Naming
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.proof.catalogue import CatalogueEntry, all_entries
from ddp_invariants.search import places, scale, strategies
from ddp_invariants.search.coverage import Drawn
from ddp_invariants.search.drawing import independent
from ddp_invariants.search.search import Asked
from ddp_invariants.situations import SITUATIONS
from ddp_invariants.situations.asking import WAYS

TRAININGS, DEALINGS = 25, 200
"""The cases that the property of each rule draws."""
MOST_NAMED = 8
"""The faults of one value that the page names; it counts the others."""
TRIED = Path(__file__).parents[2] / "docs" / "tried.md"
SHARE = re.compile(r"(\d+\.\d) %")
VALUE = re.compile(r"[;(] ?([^;()]+?) (\d+\.\d) %")
SIMPLEST = (TrainingCase(Model(1, (Layer("linear"),))), ShardCase())
"""The cases to which all others are made simpler: no fault needs their values."""
INTRODUCTION = f"""\
# What is tried

`python tests/helpers/tried.py` makes this page from the code. It lists every dimension of a [case](glossary.md), how often it is
drawn, and the planted [faults](proof.md) that need it: their recorded smallest case contains it. A fault links to the issue
where it happened. The page on [cases and limits](situations.md) gives an overview.

The shares are measured on {TRAININGS} training cases or {DEALINGS} sampler cases of each rule's property, drawn and not run, for
an implementation that offers everything, and for PARAM-7 one that declares `update = "own"`, with up to
{places.SIMULATED_WORLD_SIZE} ranks. The rule's own property draws the dimensions that the rule is about more often than other
properties do. A survey draws first the dimensions that it has met least."""  # noqa: E501 - one line for each sentence of the page


class Sample(NamedTuple):
    """Drawn cases: the cases, and their counts as a certificate shows them."""

    cases: list[Any]
    drawn: Drawn


class Axis(NamedTuple):
    """A structural dimension of cases.

    Attributes:
        name: The name of the dimension.
        span: Its range, in words.
        labels: The values or ranges of values that the page counts.
        label: A function that returns a case's values or range of values.
    """

    name: str
    span: str
    labels: tuple[str, ...]
    label: Callable[[Any], Iterable[str]]


@cache
def sample(kind: type) -> Sample:
    """Draw cases as the properties of all rules about DDPs or about samplers do."""
    cases: list[Any] = []
    scope = Scope(max_world_size=places.SIMULATED_WORLD_SIZE)
    about_samplers = kind is ShardCase
    rules = [name for name in ALL_RULES if ALL_RULES[name].is_about_samplers == about_samplers]
    of_its_own = replace(scope, declared=Declarations(update="own"))
    claimed = [
        (name, each) for name in rules for each in (scope, of_its_own) if not each.excluded(name)
    ]
    for number, (rule, within) in enumerate(dict(reversed(claimed)).items()):

        @seed(number)
        @settings(
            max_examples=DEALINGS if about_samplers else TRAININGS,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(independent(strategies.cases_for(rule, within).map(partial(Asked, rule))))
        def draw(asked: Asked) -> None:
            cases.append(asked.case)

        draw()
    drawn = Drawn()
    for case in cases:
        drawn.add(case)
    return Sample(cases, drawn)


def ranges(number: Callable[[Any], int], *starts: int, end: int) -> dict[str, Any]:
    """Return the labels of ranges of a number, and the function that labels a case.

    Args:
        number: A function that returns a case's number.
        starts: The first number of each range.
        end: The largest number that is drawn.
    """
    ends = [start - 1 for start in starts[1:]] + [end]
    labels = [
        f"{low:,}" if low == high else f"{low:,} to {high:,}"
        for low, high in zip(starts, ends, strict=True)
    ]

    def label(case: Any) -> list[str]:
        value = number(case)
        assert starts[0] <= value <= end, f"{value} lies outside {labels}"
        return [labels[sum(value >= start for start in starts) - 1]]

    return {"span": f"{starts[0]:,} to {end:,}", "labels": tuple(labels), "label": label}


def choices(values: Iterable[str], label: Callable[[Any], Iterable[str]]) -> dict[str, Any]:
    """Return the labels of a few values, and the function that labels a case."""
    labels = tuple(values)
    return {"span": f"{len(labels)} values", "labels": labels, "label": label}


def _shapes(case: TrainingCase) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of all parameters."""
    for layer, width in zip(case.model.layers, case.model.widths(), strict=False):
        shapes = layer.shapes(width)
        yield from (shapes[name] for name in layer.parameters)


def _largest(case: TrainingCase) -> int:
    return max(map(prod, _shapes(case)))


def _square(case: TrainingCase) -> int:
    """Return the longest side of the square matrices; 0 if there is none."""
    matrices = [each for each in _shapes(case) if len(each) == 2]
    return max((rows for rows, columns in matrices if rows == columns), default=0)


def _parameters(case: TrainingCase) -> int:
    return sum(len(layer.parameters) for layer in case.model.layers)


def _optimizer(case: TrainingCase) -> list[str]:
    optimizer = case.optimizer
    options = {
        "momentum": optimizer.momentum,
        "weight decay": optimizer.weight_decay,
        "other betas": optimizer.differing_constants,
        "AMSGrad": optimizer.amsgrad,
        "maximize": optimizer.maximize,
        "fused or foreach": optimizer.kernels != "default",
    }
    return [optimizer.kind, *(name for name, value in options.items() if value)]


def _cap(case: TrainingCase) -> list[str]:
    cap = case.bucket_cap
    if cap is None:
        return ["its default"]
    return ["up to 16 bytes" if cap <= 16 else "up to 1 KiB" if cap <= 1024 else "more"]


AXES = (
    Axis("world size", **ranges(lambda case: case.world_size, 1, 2, 3, 4, 5, 9, end=16)),
    Axis("parameters", **ranges(_parameters, 1, 5, 12, 65, end=512)),
    Axis("largest tensor (elements)", **ranges(_largest, 0, 2, 65, 1025, 65_535, end=2**20)),
    Axis("side of a square matrix", **ranges(_square, 0, 1, 2, 9, end=128)),
    Axis("steps", **ranges(lambda case: case.steps, 1, 2, 4, 11, end=max(scale._STEPS))),
    Axis(
        "backwards per step",
        **ranges(lambda case: case.accumulation, 1, 2, 11, end=max(scale._BACKWARDS)),
    ),
    Axis(
        "batch of a rank",
        **ranges(lambda case: case.data.batch_size, 1, 2, 5, end=max(scale._BATCHES)),
    ),
    Axis(
        "dtype",
        **choices(Dtype.__args__, lambda case: {each.dtype for each in case.model.layers}),  # type: ignore[attr-defined]
    ),
    Axis("layers", **choices(KINDS, lambda case: {each.kind for each in case.model.layers})),
    Axis(
        "layout",
        **choices(Layout.__args__, lambda case: {each.layout for each in case.model.layers}),  # type: ignore[attr-defined]
    ),
    Axis(
        "names of layers",
        **choices(Naming.__args__, lambda case: {case.model.naming}),  # type: ignore[attr-defined]
    ),
    Axis(
        "values",
        **choices(Values.__args__, lambda case: {case.values}),  # type: ignore[attr-defined]
    ),
    Axis("starts", **choices(Init.__args__[::2], lambda case: {case.init})),  # type: ignore[attr-defined]
    Axis(
        "optimizer",
        **choices(
            (
                "sgd",
                "adam",
                "adamw",
                "momentum",
                "weight decay",
                "other betas or AMSGrad",
                "maximize",
                "fused or foreach",
            ),
            _optimizer,
        ),
    ),
    Axis("bucket cap", **choices(("its default", "up to 16 bytes", "up to 1 KiB", "more"), _cap)),
)
SAMPLER_AXES = (
    Axis("samples", **ranges(lambda case: case.data.samples, 0, 1, 33, 1000, 65_535, end=2**20)),
    Axis("world size", **ranges(lambda case: case.world_size, 1, 2, 9, 33, 257, end=1100)),
    Axis("epochs asked for", **ranges(lambda case: len(case.epochs), 1, 2, 3, end=4)),
    Axis("largest epoch", **ranges(lambda case: max(case.epochs), 0, 1, 6, 2**16, end=2**31)),
    Axis(
        "seed",
        **ranges(lambda case: case.data.seed, -(2**40), 0, 8, 2**31 - 1, end=2**63 - 1),
    ),
    Axis("batch of a rank", **ranges(lambda case: case.data.batch_size, 1, 2, 5, end=64)),
)


@cache
def smallest() -> tuple[tuple[CatalogueEntry, Any], ...]:
    """Return the planted faults that have a recorded smallest case, with the case."""
    cases = caught.recorded()
    return tuple(
        (entry, cases[entry.target])
        for entry in all_entries()
        if entry.is_fault and entry.target in cases
    )


def needing(kind: Any) -> list[CatalogueEntry]:
    """Return the faults whose smallest case contains a situation."""
    return [entry for entry, case in smallest() if _in(kind, case)]


def _in(kind: Any, case: Any) -> bool:
    return any(type(situation) is kind for situation in case.situations)


def _named(entries: list[CatalogueEntry]) -> str:
    """Return the names of faults, those with an issue first and linked."""
    first = sorted(entries, key=lambda entry: not entry.link)[:MOST_NAMED]
    names = [
        f"[`{entry.name}`]({entry.link})" if entry.link else f"`{entry.name}`" for entry in first
    ]
    more = len(entries) - len(first)
    return ", ".join(names) + (f", and {more} more" if more else "")


def _plain(text: str) -> str:
    return " ".join(text.split())


def _fields(kind: Any) -> list[str]:
    """Return the fields of a situation, from the docstrings of its class and of its parts."""
    part = getattr(kind, "part", None)
    return [
        _plain(inspect.cleandoc(text).partition("Attributes:\n")[2])
        for text in (kind.__doc__ or "", (part.__doc__ or "") if part else "")
        if "Attributes:\n" in text
    ]


def _dimensions(kind: Any) -> dict[str, Counter[str]]:
    """Return the counts of a situation's own dimensions in the drawn cases."""
    case = next((case for case in sample(TrainingCase).cases if _in(kind, case)), None)
    if case is None or not hasattr(kind, "counted"):
        return {}
    counts = sample(TrainingCase).drawn.dimensions
    return {name: counts[name] for name in kind.counted(case)}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _situation(kind: Any, cases: list[Any]) -> list[str]:
    """Return the lines about a situation."""
    share = sum(_in(kind, case) for case in cases) / len(cases)
    values = [
        f"{name} {value} {_percent(count / len(cases))}".replace(",", "")
        for name, counts in _dimensions(kind).items()
        for value, count in sorted(counts.items())
    ]
    described = _plain(inspect.cleandoc(kind.__doc__).partition("\n\nAttributes:")[0])
    return [
        "",
        f"### {vars(kind)['kind'].capitalize()}",
        "",
        described,
        "",
        *(f"- *range*: {fields}" for fields in _fields(kind)),
        f"- *drawn*: {_percent(share)}" + (f" ({'; '.join(values)})" if values else ""),
        f"- *faults*: {_named(needing(kind)) or 'no recorded smallest case contains it'}",
    ]


def _table(axes: tuple[Axis, ...], kind: Any) -> list[str]:
    """Return the table of some structural dimensions."""
    cases = sample(kind).cases
    (simplest,) = (case for case in SIMPLEST if isinstance(case, kind))
    lines = ["", "| dimension | value | drawn | planted faults |", "|---|---|---|---|"]
    for axis in axes:
        counts = Counter(label for case in cases for label in {*axis.label(case)})
        head = f"{axis.name}, {axis.span}"
        for label in axis.labels:
            entries = [
                entry
                for entry, case in smallest()
                if isinstance(case, kind) and label in axis.label(case)
            ]
            named = "(the simplest)" if label in axis.label(simplest) else _named(entries)
            lines.append(f"| {head} | {label} | {_percent(counts[label] / len(cases))} | {named} |")
            head = ""
    return lines


def tried_page() -> str:
    """Return the page."""
    trainings, dealings = sample(TrainingCase).cases, sample(ShardCase).cases
    text = [INTRODUCTION, "", "## Models, data and optimizers", *_table(AXES, TrainingCase)]
    text += ["", "## Situations of training"]
    for kind in SITUATIONS:
        text += _situation(kind, trainings)
    text += ["", "## Samplers", *_table(SAMPLER_AXES, ShardCase), "", "## Ways to ask a sampler"]
    for way in WAYS:
        text += _situation(way, dealings)
    return "\n".join(text) + "\n"


def words(page: str) -> str:
    """Return a page without its shares."""
    return SHARE.sub("", re.sub(r"(\*drawn\*:[^(\n]*)\(.*\)$", r"\1", page, flags=re.MULTILINE))


def shares(page: str) -> list[dict[str, float]]:
    """Return the shares that each line of a page states, by value; "" for that of the line."""
    return [
        {"": float(first[1]), **{name: float(share) for name, share in VALUE.findall(line)}}
        for line in page.splitlines()
        if (first := SHARE.search(line)) is not None
    ]


def differing(page: str, second_page: str) -> list[str]:
    """Return the shares of two pages that differ by more than samples of their size may."""
    cases = len(sample(TrainingCase).cases)
    return [
        f"{name}: {first.get(name, 0)} % and {second.get(name, 0)} %"
        for first, second in zip(shares(page), shares(second_page), strict=True)
        for name in first.keys() | second.keys()
        if _differ(first.get(name, 0) / 100, second.get(name, 0) / 100, cases)
    ]


def _differ(first: float, second: float, cases: int) -> bool:
    """Return whether two shares differ by more than six deviations of their difference."""
    mean = (first + second) / 2
    return abs(first - second) > 6 * sqrt(2 * mean * (1 - mean) / cases)


if __name__ == "__main__":
    TRIED.write_text(tried_page(), encoding="utf-8")
