"""The history of sessions as a table and as a page: verdicts over time, and changes."""

from collections.abc import Sequence
from dataclasses import dataclass

from ddp_invariants.cases.levels import LEVELS
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.records.history import PastSession
from ddp_invariants.report.certificate.page import environment
from ddp_invariants.report.pages import page_of, site
from ddp_invariants.report.terminal import table_lines

_OPEN = ("violated", "inconclusive")
_MOST = 4
"""Rules that a cell lists by name."""


@dataclass(frozen=True)
class Change:
    """The rules whose verdict changed since the last session of the same implementation.

    Attributes:
        worse: Rules that are violated or inconclusive now, and were not.
        better: Rules that were violated or inconclusive, and hold now.
        first: True if no earlier session judged the implementation.
    """

    worse: tuple[str, ...] = ()
    better: tuple[str, ...] = ()
    first: bool = False

    def __str__(self) -> str:
        if self.first:
            return "first session"
        parts = [
            f"{sign} {_listed(rules)}"
            for sign, rules in (("new:", self.worse), ("gone:", self.better))
            if rules
        ]
        return "; ".join(parts)


def _listed(rules: Sequence[str]) -> str:
    more = len(rules) - _MOST
    return ", ".join(rules[:_MOST]) + (f" and {more} more" if more > 0 else "")


def changes(sessions: Sequence[PastSession]) -> list[Change]:
    """Return the changes that each session brought.

    A verdict is compared with the last one that the same implementation had for that rule: a
    session of a few rules says nothing about the others.
    """
    known: dict[tuple[str, str], dict[str, str]] = {}
    found = []
    for session in sessions:
        key = (session.ddp, session.sampler)
        before = known.get(key)
        if before is None:
            found.append(Change(first=True))
        else:
            now = session.rules.items()
            found.append(
                Change(
                    tuple(
                        rule
                        for rule, verdict in now
                        if verdict in _OPEN and before.get(rule) not in (verdict, "violated")
                    ),
                    tuple(
                        rule
                        for rule, verdict in now
                        if verdict == "holds" and before.get(rule) in _OPEN
                    ),
                )
            )
        judged = {rule: verdict for rule, verdict in session.rules.items() if _tells(verdict)}
        known[key] = {**(before or {}), **judged}
    return found


def _tells(verdict: str) -> bool:
    """Return whether a verdict says anything: rules without an own property were not tested."""
    return verdict not in ("not tested", "not finished", "not run")


def text(sessions: Sequence[PastSession], last: int) -> str:
    """Return a table of the last sessions, the newest at the end."""
    # Imported here: only this command needs it.
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    if not sessions:
        return "no session is recorded here: a session writes .ddp-invariants/history.jsonl"
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    table.add_column("began", no_wrap=True)
    for title in ("ddp", "sampler"):
        table.add_column(title, overflow="fold", max_width=30)
    table.add_column("torch", no_wrap=True)
    table.add_column("cases", justify="right", no_wrap=True)
    for level in LEVELS:
        table.add_column(level, no_wrap=True)
    table.add_column("changed")
    for session, change in [*zip(sessions, changes(sessions), strict=True)][-last:]:
        levels = [session.levels.get(level, "") for level in LEVELS]
        names = (escape(session.ddp), escape(session.sampler))
        torch = session.torch.partition("+")[0]
        table.add_row(when(session), *names, torch, f"{session.cases:,}", *levels, str(change))
    older = len(sessions) - last
    return "\n".join(
        [
            *table_lines(table),
            *([f"{older} older sessions: --last {len(sessions)}"] if older > 0 else []),
        ]
    )


def when(session: PastSession) -> str:
    """Return the start of a session to the minute, in UTC."""
    return session.began[:16].replace("T", " ")


def page(sessions: Sequence[PastSession], last: int) -> str:
    """Return a page with the last sessions, the newest first, and the verdicts of rules over time."""
    rows = [*zip(sessions, changes(sessions), strict=True)][-last:][::-1]
    shown = [session for session, _ in rows]
    known = dict.fromkeys([*ALL_RULES, *(rule for session in shown for rule in session.rules)])
    rules = [
        (rule, [session.rules.get(rule, "") for session in shown])
        for rule in known
        if any(_tells(session.rules.get(rule, "not tested")) for session in shown)
    ]
    return (
        environment()
        .get_template("history.html.j2")
        .render(
            rows=rows,
            levels=LEVELS,
            rules=[row for row in rules if len({*row[1]} - {""}) > 1 or {*row[1]} & {*_OPEN}],
            steady=[
                row for row in rules if len({*row[1]} - {""}) <= 1 and not {*row[1]} & {*_OPEN}
            ],
            when=when,
            page_of=page_of if site() else lambda _: "",
        )
    )
