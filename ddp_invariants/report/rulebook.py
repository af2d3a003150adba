"""The explanation of a rule, collected from its module, the catalogue and the properties."""

import ast
import difflib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddp_invariants.errors import UnknownRuleError
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.rule import invariant_of
from ddp_invariants.invariants.sampler_view import sharding
from ddp_invariants.invariants.view import training
from ddp_invariants.proof.catalogue import all_entries
from ddp_invariants.report import terminal
from ddp_invariants.report.pages import page_of
from ddp_invariants.search import messages

_PACKAGE = Path(__file__).parents[1]
PROPERTIES = _PACKAGE / "properties"
"""The packaged properties; in a checkout, a link to the folder beside the package."""


@dataclass(frozen=True)
class CaughtFault:
    """A planted fault that a rule must notice: its name and its error."""

    name: str
    error: str


@dataclass(frozen=True)
class RuleExplanation:
    """A rule with its explanation.

    Attributes:
        id: Such as `GRAD-2`.
        requirement: The fact that must hold.
        level: How ordinary its subject is: `core`, `extended` or `robust`.
        applies: `always`; `capability`: only if a capability is offered; `declared`: only if it is declared;
            `observed`: never judged.
        source: The origin of the requirement.
        judged: How it is judged.
        needs: Conditions without which a run has proved nothing.
        not_claimed: Reasons for which it may not apply to the implementation.
        faults: Planted faults that it must catch.
        code: File and line of its judge, relative to the package's folder.
        property: The property that tests it, likewise.
        page: The address of its page in the documentation.
    """

    id: str
    requirement: str
    level: str
    applies: str
    source: str
    judged: str
    needs: tuple[str, ...]
    not_claimed: tuple[str, ...]
    faults: tuple[CaughtFault, ...]
    code: str
    property: str
    page: str


def explain(name: str) -> RuleExplanation:
    """Explain a rule by its id in any spelling: GRAD-2, grad-2, grad2.

    Raises:
        UnknownRuleError: There is no such rule.
    """
    wanted = _plain(name)
    rule = next(
        (candidate for candidate in ALL_RULES.values() if _plain(candidate.id) == wanted), None
    )
    if rule is None:
        close = near(name)
        instead = (
            f"did you mean {' or '.join(close)}?" if close else "`ddp-invariants rules` lists them"
        )
        raise UnknownRuleError(f"{name}: there is no such rule; {instead}")
    judges = [
        rule_set[rule.id].judge
        for rule_set in (training.rules, sharding.rules)
        if rule.id in rule_set
    ]
    judge = inspect.unwrap(judges[0])
    lines, file = inspect.getsourcelines(judge)[1], Path(inspect.getfile(judge))
    return RuleExplanation(
        rule.id,
        rule.requirement,
        rule.level,
        rule.applies,
        rule.source,
        "\n\n".join(inspect.getdoc(candidate) or "" for candidate in judges),
        rule.needs,
        tuple(exclusion.reason for exclusion in rule.exclusions),
        tuple(
            CaughtFault(candidate.name, candidate.description)
            for candidate in all_entries()
            if rule.id in candidate.rules
        ),
        f"{file.relative_to(_PACKAGE)}:{lines}",
        _properties().get(_plain(rule.id), ""),
        page_of(rule.id),
    )


def near(name: str) -> list[str]:
    """Return the rules whose ids are close to a name: those of an invariant, or a few others."""
    wanted = _plain(name)
    of_invariant = [
        candidate
        for candidate in ALL_RULES
        if invariant_of(candidate) == wanted.rstrip("0123456789").upper()
    ]
    known = {_plain(identifier): identifier for identifier in ALL_RULES}
    return of_invariant or [
        known[candidate] for candidate in difflib.get_close_matches(wanted, known, 3)
    ]


def _plain(name: str) -> str:
    return name.replace("-", "").lower()


@cache
def _properties() -> dict[str, str]:
    """Find the file and line of each rule's property by reading the files."""
    places = {}
    for path in sorted(PROPERTIES.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                places[node.name.split("_")[1]] = f"properties/{path.name}:{node.lineno}"
    return places


def listing(explanations: Sequence[RuleExplanation]) -> str:
    """List every rule with its level, its condition and its requirement."""
    # Imported here: only this command needs it.
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for title in ("rule", "level", "judged"):
        table.add_column(title, no_wrap=True)
    table.add_column("requirement")
    for rule in explanations:
        table.add_row(rule.id, rule.level, rule.applies, escape(rule.requirement))
    return "\n".join(
        [*terminal.table_lines(table), "", *_LEVELS, "`ddp-invariants rules ID` explains one rule."]
    )


_LEVELS = (
    "core: the five invariants in ordinary programs; extended: everything else that is offered;",
    "robust: argument checks, exceptions, deaths and leaks.",
    "always: for every implementation; capability: only if the implementation offers it;",
    "declared: only if it is declared; observed: reported, never judged.",
)


JUDGED_FOR = {
    "always": "every implementation",
    "capability": "implementations that offer its subject",
    "declared": "implementations that declare its subject",
    "observed": "no implementation: it is only measured",
}
"""The implementations that a rule is judged for, by when it applies."""


def text(rule: RuleExplanation) -> str:
    """Explain a rule, with all its details."""
    judged = [" ".join(paragraph.split()) for paragraph in rule.judged.split("\n\n")]
    fields = [
        ("level", [rule.level]),
        ("judged for", [JUDGED_FOR[rule.applies]]),
        ("source", [rule.source]),
        ("judged", judged),
        ("needs", ["; ".join(rule.needs)]),
        ("not claimed if it", ["; ".join(rule.not_claimed)]),
        ("catches", [f"{fault.name}: {fault.error}" for fault in rule.faults]),
        ("code", [rule.code]),
        ("property", [rule.property]),
        ("page", [rule.page]),
    ]
    lines = [
        messages.labelled(label if number == 0 else "", text)
        for label, texts in fields
        for number, text in enumerate(texts)
        if text
    ]
    search = (
        f"`ddp-invariants faults --only {rule.id}` searches for these faults."
        if rule.faults
        else ""
    )
    return "\n".join([f"{rule.id}  {rule.requirement}", *lines, *([search] if search else [])])
