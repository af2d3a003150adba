"""The pages of the rules: the index `docs/rules.md`, and `docs/rules/ID.md` for each rule.

`python tests/helpers/readme.py` writes the pages from the code and from the recorded violations.
This command records the violations anew, in `tests/quality/violations.json`:

    python tests/helpers/rule_pages.py
"""

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import caught

from ddp_invariants.cases.case import describe
from ddp_invariants.invariants import ALL_RULES, INVARIANTS
from ddp_invariants.invariants.draws import Draws, ShardDraws
from ddp_invariants.invariants.rule import Row
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
from ddp_invariants.proof.catalogue import CatalogueEntry, all_entries
from ddp_invariants.records.verdict import Failure
from ddp_invariants.report.rulebook import JUDGED_FOR, RuleExplanation, explain
from ddp_invariants.search.messages import labelled
from ddp_invariants.situations import SITUATIONS

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "rules.md"
PAGES = ROOT / "docs" / "rules"
VIOLATIONS = ROOT / "tests" / "quality" / "violations.json"
LEVELS = {
    "core": "the five invariants, in ordinary programs",
    "extended": "everything else that an implementation may offer",
    "robust": "argument checks, exceptions, deaths and leaks",
}
"""The subjects of the rules of each level."""
KEPT = ("rule", "fact", "where", "got", "perhaps")
"""The parts of a failure that a page shows: those without times and process numbers."""


def pages() -> dict[Path, str]:
    """Return the text of the index and of each rule's page, by path."""
    return {INDEX: _index(), **{PAGES / f"{rule}.md": _page(ALL_RULES[rule]) for rule in ALL_RULES}}


def write() -> None:
    """Write all pages, and remove those of rules that no longer exist."""
    PAGES.mkdir(exist_ok=True)
    texts = pages()
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    for path in PAGES.glob("*.md"):
        if path not in texts:
            path.unlink()


def _index() -> str:
    text = [
        "# The rules",
        "",
        (
            "`python tests/helpers/readme.py` makes this page, and a page for each rule, from the "
            "code."
        ),
        "`ddp-invariants rules GRAD-2` prints one rule.",
        "The [glossary](glossary.md) defines the words.",
        "The level says how ordinary the subject of a rule is:",
        "",
        "| level | subject |",
        "|---|---|",
        *(f"| {level} | {meaning} |" for level, meaning in LEVELS.items()),
        "",
        "The next word says when a rule is judged:",
        "",
        "| judged | for |",
        "|---|---|",
        *(f"| {applies} | {meaning} |" for applies, meaning in JUDGED_FOR.items()),
    ]
    for invariant, title in INVARIANTS.items():
        text += ["", f"## {invariant}: {title[:1].lower()}{title[1:]}", ""]
        text += ["| rule | level | judged | requirement |", "|---|---|---|---|"]
        text += [
            f"| [{rule.id}](rules/{rule.id}.md) | {rule.level} | {rule.applies} | "
            f"{_cell(rule.requirement)} |"
            for rule in ALL_RULES.values()
            if rule.invariant == invariant
        ]
    return "\n".join(text) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _page(rule: Row) -> str:
    """Return the page of a rule."""
    explained = explain(rule.id)
    judge = explained.code.partition(":")[0]
    tested = explained.property.partition(":")[0]
    text = [
        f"# {rule.id}",
        "",
        rule.requirement,
        "",
        "| | |",
        "|---|---|",
        f"| level | {rule.level}: {LEVELS[rule.level]} |",
        f"| judged for | {JUDGED_FOR[rule.applies]} |",
        f"| source | {_cell(rule.source)} |",
        (
            f"| code | the judge in [`{judge}`](../../ddp_invariants/{judge}), "
            f"the property in [`{tested}`](../../{tested}) |"
        ),
        "",
        "## How it is judged",
        "",
        explained.judged,
        *_conditions(rule, explained),
        *_example(rule),
        *_faults(rule),
        "",
        "All rules are [listed here](../rules.md).",
        "The page on [violations](../violations.md) explains the lines of a report.",
    ]
    return "\n".join(text) + "\n"


def _conditions(rule: Row, explained: RuleExplanation) -> list[str]:
    """Return the section on the cases: the conditions, and what its own property draws."""
    drawn = [*_drawn(rule.draws)]
    lines = ["", "## The cases it needs", ""]
    if rule.needs:
        lines += ["A run proves nothing unless some case meets each of these conditions:", ""]
        lines += [f"- {need}" for need in rule.needs]
    else:
        lines += ["Any case that contains its subject counts."]
    if drawn:
        lines += [
            "",
            "The rule's own property draws such cases more often than other properties do. Its cases have:",
            "",
        ]
        lines += [f"- {entry}" for entry in drawn]
    if explained.not_claimed:
        lines += [
            "",
            "It is *not claimed* by an implementation that does one of the following:",
            "",
        ]
        lines += [f"- {reason}" for reason in explained.not_claimed]
    return lines


def _drawn(draws: Draws | ShardDraws) -> Iterator[str]:
    """Yield in words what the property of a rule draws, with links to the situations."""
    fields = _fields(type(draws))
    options = draws.options
    if sizes := options.get("world_sizes"):
        yield f"world sizes {', '.join(map(str, sorted(sizes)))}, and larger worlds in a few cases"
    for name in options:
        if name in fields and name != "world_sizes":
            value = options[name]
            number = f": {value}" if value is not True else ""
            yield fields[name][:1].lower() + fields[name][1:].rstrip(".") + number
    for kind in SITUATIONS if isinstance(draws, Draws) else ():
        if options.keys() & kind.options.keys():
            name = vars(kind)["kind"]
            yield f"the situation [{name}](../tried.md#{name.replace(' ', '-')})"


def _fields(kind: type) -> dict[str, str]:
    """Return the descriptions of a class's fields, from its docstring."""
    described = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", described, re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()) for name, text in entries}


def _example(rule: Row) -> list[str]:
    """Return the section with a recorded violation; nothing if none is recorded."""
    recorded = violations().get(rule.id)
    if recorded is None:
        return []
    target, failure = recorded
    planted = next(entry for entry in all_entries() if entry.target == target)
    option = "--sampler" if planted.is_sampler else "--ddp"
    lines = [
        f"{rule.id} violated by {target}: {failure.fact}",
        labelled("where", failure.where),
        labelled("got", failure.got),
        *([labelled("perhaps", failure.perhaps)] if failure.perhaps else []),
        labelled("case", describe(caught.recorded()[target])),
    ]
    return [
        "",
        "## A violation",
        "",
        f"The planted fault `{planted.name}` violates it like this:",
        "",
        "```text",
        *lines,
        "```",
        "",
        "This command searches for it:",
        "",
        "```sh",
        f"ddp-invariants certify {option} {target} -k {rule.id.replace('-', '').lower()}",
        "```",
    ]


def _faults(rule: Row) -> list[str]:
    """Return the section on the planted faults that the rule must notice."""
    entries = [entry for entry in all_entries() if rule.id in entry.rules]
    if not entries:
        return []
    return [
        "",
        "## Planted faults that it must catch",
        "",
        "| fault | error | smallest recorded case |",
        "|---|---|---|",
        *(f"| {_name(entry)} | {_cell(entry.description)} | {_case(entry)} |" for entry in entries),
    ]


def _name(entry: CatalogueEntry) -> str:
    return f"[`{entry.name}`]({entry.link})" if entry.link else f"`{entry.name}`"


def _case(entry: CatalogueEntry) -> str:
    """Return the recorded case of a fault in words; empty if none is recorded."""
    case = caught.recorded().get(entry.target)
    return "" if case is None else f"`{_cell(describe(case))}`"


@cache
def violations() -> dict[str, tuple[str, Failure]]:
    """Return the recorded violations: by rule, the name of a fault and its failure."""
    plain = json.loads(VIOLATIONS.read_text(encoding="utf-8")) if VIOLATIONS.exists() else {}
    return {
        rule: (target, Failure(**{"rule": rule, "perhaps": "", **failure}))
        for rule, (target, failure) in plain.items()
    }


def kept(failure: Failure) -> dict[str, str]:
    """Return the parts of a failure that a page shows."""
    return {name: str(value) for name, value in asdict(failure).items() if name in KEPT and value}


def _candidates() -> Iterator[tuple[str, list[CatalogueEntry]]]:
    """Yield each rule with the faults that it must notice and whose cases are recorded.

    Faults whose first rule it is come first, then those with a named cause, then small cases.
    """
    for rule in ALL_RULES:
        entries = [
            entry
            for entry in all_entries()
            if rule in entry.rules and entry.target in caught.recorded()
        ]
        yield rule, sorted(entries, key=lambda entry: _order(entry, rule))


def _order(entry: CatalogueEntry, rule: str) -> tuple[Any, ...]:
    return entry.rule != rule, not entry.causes, len(describe(caught.recorded()[entry.target]))


def main() -> None:
    """Record a violation of each rule that some fault with a recorded case violates."""
    caught.simulate_first()
    recorded: dict[str, tuple[str, dict[str, str]]] = {}
    with (
        Hosts() as hosts,
        Pool(hosts.addresses, deadline=caught.DEADLINE) as pool,
        TemporaryDirectory() as store,
    ):
        for rule, entries in _candidates():
            for entry in entries:
                trial = caught.trial_of(pool, entry, Path(store))
                result = caught.judged(trial, entry, caught.recorded()[entry.target])
                if result.failure is not None and result.rule == rule and not result.unreal:
                    shown = kept(replace(result.failure, rule=""))
                    recorded[rule] = (entry.target, shown)
                    break
    lines = [f"{json.dumps(rule)}: {json.dumps(entry)}" for rule, entry in recorded.items()]
    VIOLATIONS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
