"""A certificate in words: headline, the text of `verify`, a table for a CI job's page, a badge."""

import json
import textwrap
from collections.abc import Iterable

from ddp_invariants.report import card
from ddp_invariants.report.accounts import RuleAccount, RuleVerdict
from ddp_invariants.report.certificate.certificate import (
    Certificate,
    Setting,
    Subject,
)
from ddp_invariants.search.messages import exhausted, explored

ORDER: tuple[RuleVerdict, ...] = (
    "violated",
    "inconclusive",
    "not finished",
    "not tested",
    "not run",
    "holds",
    "observed",
    "not claimed",
)
"""Verdicts in the order of their importance to a reader."""
SETTLED: tuple[RuleVerdict, ...] = ("holds", "observed", "not claimed")
"""Verdicts that a page folds away."""
_WIDTH = 118


def headline(certificate: Certificate) -> str:
    """Return the outcome in a line."""
    if certificate.outcome == "certified" and not certificate.partial:
        return "CERTIFIED, with exceptions" if certificate.exceptions else "CERTIFIED"
    if certificate.partial and certificate.outcome != "violated":
        return "PARTIAL: not certified"
    return card.headline(certificate.card)


def counted(rules: Iterable[RuleAccount]) -> str:
    """Return the number of rules by verdict."""
    verdicts = [account.verdict for account in rules]
    counts = [(verdicts.count(verdict), verdict) for verdict in ORDER]
    return ", ".join(
        f"{count} {'hold' if verdict == 'holds' and count > 1 else verdict}"
        for count, verdict in counts
        if count
    )


def conditions(account: RuleAccount) -> str:
    """Return the conditions that a rule needs, and the number of cases that met each."""
    met = [f"{need}: {count:,}" for need, count in account.needs.items()]
    return "; ".join([*met, *(f"{need}: not offered" for need in account.without)])


def largest(account: RuleAccount) -> str:
    """Return a rule's largest error."""
    if account.observed:
        return f"{account.observed[0]:.2f} to {account.observed[-1]:.2f} observed"
    if account.worst is None:
        return "infinite or NaN"
    if not account.worst:
        return "none" if account.judged else ""
    return (
        f"{account.worst:.2f} of bound" if account.worst < 100 else f"{account.worst:.1e} of bound"
    )


def printable(text: str) -> str:
    """Return untrusted text without the characters that control a terminal."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def verification(certificate: Certificate) -> str:
    """Return the summary of a certificate file that passed all checks."""
    setting = certificate.setting
    by = (
        f"ddp-invariants {setting.suite}, torch {setting.torch}, numpy {setting.numpy}, "
        f"hypothesis {setting.hypothesis}, Python {setting.python}, backend {setting.backend}; "
        f"{setting.processor}, {setting.machine}"
    )
    how = (
        f"seed {setting.seed}, {extent(setting)}, {certificate.cases:,} judged, "
        f"world sizes to {setting.max_world_size}, isolation {setting.isolation}, {setting.began}"
    )
    rows: list[tuple[str, str]] = [
        (subject.side, f"{subject.name} = {subject.target} ({subject.version}), {_source(subject)}")
        for subject in certificate.subjects
    ]
    rows = [*((level.level, card.words(level)) for level in certificate.card), *rows]
    rows += [("by", by), ("how", how), ("where", where(certificate))]
    rows += [("parts", parts(certificate))] if certificate.parts else []
    rows += [("rules", counted(certificate.rules))]
    rows += [("without", certificate.without)] if certificate.without else []
    rows += [("partial", reason) for reason in certificate.partial]
    rows += [("except", exception) for exception in certificate.exceptions]
    rows += [
        (
            "violated",
            f"{violation.failure.rule}: {violation.failure.fact}; {violation.failure.where}",
        )
        for violation in certificate.violations
    ]
    digest = (
        f"{certificate.digest}: the file is unchanged. The digest is no signature: it does not show who "
        "wrote the file"
    )
    rows += [("digest", digest)]
    return "\n".join(
        [headline(certificate), *(_row(label, printable(text)) for label, text in rows)]
    )


def extent(setting: Setting) -> str:
    """Return the number of cases per property in words, and the part of them that was drawn."""
    number, _, parts = setting.shard.partition("/")
    part = f", part {number} of {parts} of the session" if parts else ""
    return f"{setting.cases} cases per property{part}"


def parts(certificate: Certificate) -> str:
    """Return the certificates that were merged into one, by their digests."""
    return ", ".join(f"{part.shard} is {part.digest[:16]}" for part in certificate.parts)


def where(certificate: Certificate) -> str:
    """Return where the cases ran, in words."""
    alone = len(certificate.unreal)
    lines = [
        ", ".join(
            f"{count:,} runs " + ("simulated" if place == "simulated" else f"over {place}")
            for place, count in sorted(certificate.places.items())
        )
    ]
    if certificate.not_simulated:
        lines.append(f"nothing was simulated: {certificate.not_simulated}")
    if any(certificate.dealt):
        lines.append(exhausted(certificate.dealt))
    if certificate.schedules:
        lines.append(explored(certificate.schedules))
    if alone:
        lines.append(f"{alone} cases failed only in the simulation, and do not count")
    return "; ".join(lines)


def _source(subject: Subject) -> str:
    return (
        f"source {subject.digest[:16]} of {subject.files} file{'s' if subject.files > 1 else ''}"
        if subject.digest
        else "source not read"
    )


def _row(label: str, text: str) -> str:
    lines = textwrap.wrap(text, _WIDTH - 12, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(
        f"  {label if not number else '':<10}{line}" for number, line in enumerate(lines)
    )


def markdown(certificate: Certificate) -> str:
    """Return a table for the page of a CI job, in GitHub's Markdown."""
    who = " and ".join(
        f"`{_cell(subject.name)}` ({_cell(subject.version)})" for subject in certificate.subjects
    )
    setting = certificate.setting
    summary = (
        f"{who}, by ddp-invariants {setting.suite} on torch {setting.torch}, seed "
        f"{setting.seed}: {certificate.cases:,} cases; {counted(certificate.rules)}."
    )
    lines = [f"## {headline(certificate)}", "", summary, ""]
    lines += [f"- **{level.level}** {_cell(card.words(level))}" for level in certificate.card]
    lines += [f"- without: {_cell(certificate.without)}"] if certificate.without else []
    lines += [f"- partial: {_cell(reason)}" for reason in certificate.partial]
    lines += [f"- except: {_cell(exception)}" for exception in certificate.exceptions]
    for violation in certificate.violations:
        lines += [
            (
                f"- **{violation.failure.rule}** violated: {_cell(violation.failure.fact)}; "
                f"{_cell(violation.failure.where)}"
            )
            + (
                f"; perhaps {_cell(perhaps)}"
                if (perhaps := violation.failure.probable_cause(violation.confirmed))
                else ""
            ),
            f"  `{_cell(violation.repeat)}`",
        ]
    lines += [
        "",
        "| rule | verdict | judged | compared | largest error |",
        "|---|---|---:|---:|---|",
    ]
    lines += [
        f"| {rule.rule} | {rule.verdict} | {rule.judged:,} | {rule.compared:,} | {largest(rule)} |"
        for rule in in_order(certificate)
    ]
    return "\n".join(lines) + "\n"


def in_order(certificate: Certificate) -> Iterable[RuleAccount]:
    """Return the rules in the order of their verdicts' importance to a reader."""
    return sorted(certificate.rules, key=lambda account: ORDER.index(account.verdict))


def _cell(text: str) -> str:
    """Return text for a table cell or a list item, with all markup escaped."""
    plain = printable(text).replace("&", "&amp;").replace("<", "&lt;")
    return plain.replace("|", "\\|").replace("`", "'").replace("*", "\\*").replace("[", "\\[")


def _levels(certificate: Certificate) -> str:
    """Return the verdict of each level, in as few words as a badge has room for."""
    return ", ".join(f"{level.level} {level.verdict}" for level in certificate.card)


def badge(certificate: Certificate) -> str:
    """Return a badge in the form of shields.io's endpoint."""
    holds = certificate.count("holds") + certificate.count("observed")
    message, colour = {
        "violated": (_levels(certificate), "orange"),
        "inconclusive": (_levels(certificate), "yellow"),
        "certified": (f"{holds} rules hold", "brightgreen"),
    }[certificate.outcome]
    if certificate.card[0].verdict == "violated":
        colour = "red"
    if certificate.partial and certificate.outcome != "violated":
        message, colour = "partial", "lightgrey"
    elif certificate.outcome == "certified" and certificate.exceptions:
        message, colour = f"{message}, {len(certificate.exceptions)} exceptions", "green"
    return (
        json.dumps(
            {
                "schemaVersion": 1,
                "label": "data-parallel invariants",
                "message": message,
                "color": colour,
            }
        )
        + "\n"
    )
