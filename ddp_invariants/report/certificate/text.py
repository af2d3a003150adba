"""A certificate in words: its headline, what `verify` says of it, a table for a CI job's page, a badge."""

import json
import textwrap
from collections.abc import Iterable

from ddp_invariants.report.certificate.certificate import Certificate, RuleAccount, Said, Subject

ORDER: tuple[Said, ...] = (
    "violated",
    "inconclusive",
    "not finished",
    "not tested",
    "not run",
    "holds",
    "observed",
    "not claimed",
)
"""Verdicts in the order in which a reader wants to hear of them."""
_WIDTH = 118


def headline(certificate: Certificate) -> str:
    """The outcome in a word or two."""
    if certificate.outcome == "violated":
        return "VIOLATED"
    if certificate.partial:
        return "PARTIAL: not certified"
    if certificate.outcome == "certified":
        return "CERTIFIED, with exceptions" if certificate.exceptions else "CERTIFIED"
    return "INCONCLUSIVE: not certified"


def counted(certificate: Certificate) -> str:
    """How many rules have which verdict."""
    counts = [(certificate.count(verdict), verdict) for verdict in ORDER]
    return ", ".join(
        f"{count} {'hold' if verdict == 'holds' and count > 1 else verdict}"
        for count, verdict in counts
        if count
    )


def situations(account: RuleAccount) -> str:
    """What a rule needs to have met, and how often it did."""
    met = [f"{need}: {count:,}" for need, count in account.needs.items()]
    return "; ".join([*met, *(f"{need}: not offered" for need in account.without)])


def largest(account: RuleAccount) -> str:
    """A rule's largest error."""
    if account.observed:
        return f"{account.observed[0]:.2f} to {account.observed[-1]:.2f} observed"
    if account.worst is None:
        return "not a number"
    if not account.worst:
        return "none" if account.judged else ""
    return (
        f"{account.worst:.2f} of bound" if account.worst < 100 else f"{account.worst:.1e} of bound"
    )


def printable(text: str) -> str:
    """Text of a file somebody else wrote without what steers a terminal."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def verified(certificate: Certificate) -> str:
    """What a file that holds together says."""
    setting = certificate.setting
    by = (
        f"ddp-invariants {setting.suite}, torch {setting.torch}, numpy {setting.numpy}, hypothesis {setting.hypothesis}, "
        f"Python {setting.python}, backend {setting.backend}; {setting.processor}, {setting.machine}"
    )
    how = (
        f"seed {setting.seed}, {setting.cases} cases per property, {certificate.cases:,} judged, "
        f"world sizes to {setting.max_world_size}, isolation {setting.isolation}, {setting.began}"
    )
    rows: list[tuple[str, str]] = [
        (one.side, f"{one.name} = {one.target} ({one.version}), {_source(one)}")
        for one in certificate.subjects
    ]
    rows += [("by", by), ("how", how), ("rules", counted(certificate))]
    rows += [("partial", reason) for reason in certificate.partial]
    rows += [("except", one) for one in certificate.exceptions]
    rows += [
        ("violated", f"{one.failure.rule}: {one.failure.fact}; {one.failure.where}")
        for one in certificate.violations
    ]
    digest = f"{certificate.digest}: unchanged since it was written. It is no signature: who wrote it, it does not say"
    rows += [("digest", digest)]
    return "\n".join(
        [headline(certificate), *(_row(label, printable(text)) for label, text in rows)]
    )


def _source(one: Subject) -> str:
    return (
        f"source {one.digest[:16]} of {one.files} file{'s' if one.files > 1 else ''}"
        if one.digest
        else "source not read"
    )


def _row(label: str, text: str) -> str:
    lines = textwrap.wrap(text, _WIDTH - 12, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(
        f"  {label if not number else '':<10}{line}" for number, line in enumerate(lines)
    )


def markdown(certificate: Certificate) -> str:
    """A table for the page of a CI job (GitHub's flavour)."""
    who = " and ".join(
        f"`{_cell(one.name)}` ({_cell(one.version)})" for one in certificate.subjects
    )
    setting = certificate.setting
    told = (
        f"{who}, by ddp-invariants {setting.suite} on torch {setting.torch}, seed {setting.seed}: {certificate.cases:,} "
        f"cases; {counted(certificate)}."
    )
    lines = [f"## {headline(certificate)}", "", told, ""]
    lines += [f"- partial: {_cell(reason)}" for reason in certificate.partial]
    lines += [f"- except: {_cell(one)}" for one in certificate.exceptions]
    for one in certificate.violations:
        lines += [
            f"- **{one.failure.rule}** violated: {_cell(one.failure.fact)}; {_cell(one.failure.where)}"
            + (f"; perhaps {_cell(one.failure.perhaps)}" if one.failure.perhaps else ""),
            f"  `{_cell(one.repeat)}`",
        ]
    lines += [
        "",
        "| rule | verdict | judged | compared | largest error |",
        "|---|---|---:|---:|---|",
    ]
    lines += [
        f"| {one.rule} | {one.verdict} | {one.judged:,} | {one.compared:,} | {largest(one)} |"
        for one in in_order(certificate)
    ]
    return "\n".join(lines) + "\n"


def in_order(certificate: Certificate) -> Iterable[RuleAccount]:
    """Rules in the order in which a reader wants to hear of them."""
    return sorted(certificate.rules, key=lambda one: ORDER.index(one.verdict))


def _cell(text: str) -> str:
    """Text within a cell or an item: nothing in it is markup, and nothing ends it."""
    plain = printable(text).replace("&", "&amp;").replace("<", "&lt;")
    return plain.replace("|", "\\|").replace("`", "'").replace("*", "\\*").replace("[", "\\[")


def badge(certificate: Certificate) -> str:
    """A badge as shields.io's endpoint takes it."""
    holds = certificate.count("holds") + certificate.count("observed")
    message, colour = {
        "violated": (f"violated: {certificate.count('violated')} rules", "red"),
        "inconclusive": ("inconclusive", "yellow"),
        "certified": (f"{holds} rules hold", "brightgreen"),
    }[certificate.outcome]
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
