"""The check of a certificate that an untrusted author may have written; nothing in it is executed.

Anybody can write a false certificate with a correct digest. The check finds parts that were
changed, cut off or left out, and statements that are impossible.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from ddp_invariants.discovery.levels import level_of, uncommon
from ddp_invariants.errors import CertificateError, MergeError, NoCertificateFileError
from ddp_invariants.records.violation import identifier
from ddp_invariants.report.accounts import RuleAccount
from ddp_invariants.report.card import card
from ddp_invariants.report.certificate.certificate import (
    FORM,
    INTERRUPTED,
    Certificate,
    ViolationAccount,
    digest,
    outcome,
    shortfall,
    to_json,
)
from ddp_invariants.report.certificate.text import printable
from ddp_invariants.search.split import in_order

MOST_READ = 32 << 20
"""Largest number of bytes that are read; a page with all its pictures has about two MiB."""
EMBEDDED = re.compile(
    r'<script type="application/json" id="certificate">\n(?P<json>.*?)</script>', re.DOTALL
)
FOOT = re.compile(r"<!-- sha256 of all lines above: (?P<digest>[0-9a-f]{64}) -->\n\Z")


def read(path: Path) -> Certificate:
    """Return the certificate in a file, which is JSON or a page.

    Raises:
        CertificateError: The file is no certificate, was changed after it was written, or
            contradicts itself.
        NoCertificateFileError: The file cannot be read.
    """
    text = _text(path)
    if text.lstrip()[:15].lower() == "<!doctype html>":
        text = _embedded(path, text)
    # Imported here: the import takes longer than the rest of a command.
    import pydantic

    try:
        plain = pydantic.TypeAdapter(dict[str, object]).validate_json(text)
    except pydantic.ValidationError as error:
        raise CertificateError(
            f"{path}: not a complete JSON object: {error.errors()[0]['msg']}"
        ) from error
    if plain.get("kind") != "certificate":
        raise CertificateError(
            f"{path}: kind is {_brief(plain.get('kind'))}, expected 'certificate'"
        )
    if plain.get("form") != FORM:
        raise CertificateError(
            f"{path}: its form is {_brief(plain.get('form'))}, but this version reads only form {FORM}"
        )
    try:
        certificate = pydantic.TypeAdapter(Certificate).validate_json(text)
        written = to_json(certificate)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the certificate"
        raise CertificateError(
            f"{path}: {printable(place)}: {first['msg'].removeprefix('Value error, ')}"
        ) from error
    except ValueError as error:
        raise CertificateError(f"{path}: it contains NaN or an infinity") from error
    if certificate.digest != digest(certificate) or written != text:
        raise CertificateError(
            f"{path}: it was changed after it was written: its digest does not match"
        )
    contradiction = next(contradictions(certificate), "")
    if contradiction:
        raise CertificateError(f"{path}: it contradicts itself: {printable(contradiction)}")
    return certificate


def _text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        CertificateError: The file is no text, or too long.
        NoCertificateFileError: The file cannot be read.
    """
    try:
        if path.exists() and not path.is_file():
            raise NoCertificateFileError(f"{path}: it is no regular file")
        size = path.stat().st_size
        if size > MOST_READ:
            raise CertificateError(f"{path}: it has {size:,} bytes, more than any certificate")
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise NoCertificateFileError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CertificateError(
            f"{path}: not a text file ({error.reason} at byte {error.start})"
        ) from error


def _embedded(path: Path, text: str) -> str:
    """Return the JSON of an unchanged page.

    Raises:
        CertificateError: The page was changed, is incomplete, or contains no certificate.
    """
    foot = FOOT.search(text)
    if foot is None:
        raise CertificateError(
            f"{path}: its last line, which has the page's digest, is missing: the page was cut off, or "
            "it is no certificate"
        )
    if hashlib.sha256(text[: foot.start()].encode()).hexdigest() != foot["digest"]:
        raise CertificateError(
            f"{path}: the page was changed after it was written: its digest does not match"
        )
    certificates = EMBEDDED.findall(text)
    if len(certificates) != 1:
        raise CertificateError(
            f"{path}: the page contains {len(certificates)} certificates, expected one"
        )
    return unescaped(certificates[0])


_ESCAPED = {"&": "\\u0026", "<": "\\u003c", ">": "\\u003e"}


def escaped(text: str) -> str:
    """Return JSON with the characters of markup escaped, so that a page can contain it.

    These characters occur only within JSON strings, where an escape is allowed.
    """
    for character, written in _ESCAPED.items():
        text = text.replace(character, written)
    return text


def unescaped(text: str) -> str:
    """Return the text that `escaped` was given.

    A literal backslash before such a sequence is doubled in JSON, and is kept.
    """

    def plain(match: re.Match[str]) -> str:
        of_its_own = len(match[1]) % 2 == 0
        return match[1] + (chr(int(match[2], 16)) if of_its_own else f"\\u{match[2]}")

    return re.sub(r"(\\*)\\u(0026|003c|003e)", plain, text)


def _brief(value: object) -> str:
    return printable(repr(value)[:40])


def contradictions(certificate: Certificate) -> Iterator[str]:
    """Yield the impossible statements of a certificate, a sentence each."""
    properties, rules = certificate.properties, [account.rule for account in certificate.rules]
    if list(properties.planned) != rules or len(set(rules)) < len(rules):
        yield "the planned properties differ from the listed rules"
    for verb, listed in (("executed", properties.executed), ("reported", properties.reported)):
        if not set(listed) <= set(rules) or len(set(listed)) < len(listed):
            yield f"a property that was {verb} was not planned, or is listed twice"
    expected = shortfall(properties)
    if certificate.partial not in (expected, (INTERRUPTED, *expected)):
        yield (
            f"the reasons why it is partial are {list(certificate.partial)}, but its properties "
            f"give {list(expected)}"
        )
    if certificate.outcome != outcome(certificate.rules):
        yield (
            f"its outcome is {certificate.outcome!r}, but its rules give "
            f"{outcome(certificate.rules)!r}"
        )
    if sum(certificate.sizes.values()) != certificate.cases:
        yield (
            f"it counts {certificate.cases} cases, but the counts by size sum to "
            f"{sum(certificate.sizes.values())}"
        )
    yield from _of_parts(certificate)
    for account in certificate.rules:
        sentences = (*_of_a_rule(certificate, account), *_of_levels(account))
        yield from (f"{account.rule} {sentence}" for sentence in sentences)
    for violation in certificate.violations:
        yield from _of_a_violation(certificate, violation)
    if certificate.card != card(certificate.rules):
        yield "its card differs from the card that follows from its rules"


def _of_parts(certificate: Certificate) -> Iterator[str]:
    """Yield the impossible statements about the parts of a session that was split."""
    parts = certificate.parts
    if not parts:
        return
    try:
        in_order([part.shard for part in parts], parts)
    except MergeError as error:
        yield f"of its parts, {error}"
    if len({part.digest for part in parts}) < len(parts):
        yield "two of its parts have the same digest"
    if sum(part.cases for part in parts) != certificate.cases or certificate.setting.shard:
        yield f"it counts {certificate.cases} cases, which are not those of its parts"


def _of_a_violation(certificate: Certificate, violation: ViolationAccount) -> Iterator[str]:
    """Yield the impossible statements about one violation."""
    if not 1 <= violation.confirmed[0] <= violation.confirmed[1]:
        yield (
            f"{violation.failure.rule} was confirmed in {violation.confirmed[0]} of "
            f"{violation.confirmed[1]} runs"
        )
    if violation.id != identifier(violation.case, violation.failure.rule, violation.by):
        yield (
            f"the id {violation.id} of the violation of {violation.failure.rule} does not match its "
            "case"
        )
    if violation.failure.rule not in {
        rule.rule for rule in certificate.rules if rule.verdict == "violated"
    }:
        yield f"{violation.failure.rule} has a violation, but its verdict is not 'violated'"
    rule, levels = violation.failure.rule, uncommon(violation.case)
    blames = [
        blame for account in certificate.rules if account.rule == rule for blame in account.blames
    ]
    if not any(
        blame.level == level_of(rule, [levels[name] for name in blame.names])
        for blame in blames
        if levels.keys() >= set(blame.names)
    ):
        yield f"no level of the violations of {rule} fits the case of {violation.id}"


def _of_levels(account: RuleAccount) -> Iterator[str]:
    """Yield the impossible statements about the levels of a rule's failures."""
    if sum(account.seen_at.values()) != account.seen or len(account.blames) != account.confirmed:
        yield (
            f"has {account.seen} failures and {account.confirmed} violations, but levels for "
            f"{sum(account.seen_at.values())} and {len(account.blames)}"
        )


def _of_a_rule(certificate: Certificate, account: RuleAccount) -> Iterator[str]:
    """Yield the impossible statements about one rule."""
    verdict, executed = account.verdict, account.rule in certificate.properties.executed
    counts = (
        account.judged,
        account.compared,
        account.seen,
        account.confirmed,
        account.ordinary,
        *account.errors,
        *account.needs.values(),
        *account.ordinary_needs.values(),
        account.milliseconds,
    )
    if (
        min(counts) < 0
        or account.judged > certificate.cases
        or max(account.needs.values(), default=0) > account.judged
        or account.ordinary > account.judged
        or max(account.ordinary_needs.values(), default=0) > account.ordinary
    ):
        yield (
            f"has impossible counts: {account.judged} of {certificate.cases} cases judged, conditions "
            f"{account.needs}"
        )
    if sum(account.errors) != account.judged:
        yield f"was judged on {account.judged} cases, but has errors for {sum(account.errors)}"
    if verdict in ("holds", "observed") and not (executed and account.judged and account.compared):
        yield f"{verdict}, but its property did not run or compared nothing"
    if verdict in ("holds", "observed", "not claimed") and (account.seen or account.confirmed):
        yield f"{verdict}, but {account.seen} cases violate it"
    if verdict == "holds" and not all(account.needs.values()):
        yield f"holds, but never met {min(account.needs, key=lambda need: account.needs[need])!r}"
    if verdict == "not claimed" and (account.judged or not account.why):
        yield "is not claimed, but was judged or has no reason"
    if verdict == "not run" and not account.why:
        yield "was not run, but has no reason"
    if verdict == "violated" and (
        not account.confirmed
        or account.rule not in {violation.failure.rule for violation in certificate.violations}
    ):
        yield "is violated, but no violation is listed"
    if verdict in ("not tested", "not finished") and executed:
        yield f"is {verdict}, but its property ran"


def status(certificate: Certificate) -> int:
    """Return the exit status: 0 certified, 1 violated, 2 partial or inconclusive."""
    if certificate.partial:
        return 2
    return {"certified": 0, "violated": 1, "inconclusive": 2}[certificate.outcome]
