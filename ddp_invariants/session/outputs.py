"""What a session leaves behind when it ends: a certificate with its page, a badge, a table on a CI job's page."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_invariants.discovery.probe import Discovery
from ddp_invariants.errors import CaseError
from ddp_invariants.records import reading
from ddp_invariants.records.violation import StoredViolation
from ddp_invariants.report.certificate.certificate import (
    INTERRUPTED,
    Certificate,
    Run,
    make,
    to_json,
)
from ddp_invariants.report.certificate.text import badge, headline, markdown
from ddp_invariants.search.ledger import Ledger

SUMMARY = "GITHUB_STEP_SUMMARY"
"""The environment variable that names the file a CI job's page is made of."""


@dataclass(frozen=True)
class Wanted:
    """Which files a session is to write; None for none.

    Attributes:
        certificate: The JSON or the page: the other is written beside it.
        badge: For shields.io.
    """

    certificate: Path | None = None
    badge: Path | None = None

    @property
    def summary(self) -> Path | None:
        """Where a CI job's page is made, if that is where it runs."""
        return Path(os.environ[SUMMARY]) if os.environ.get(SUMMARY) else None

    def check(self) -> None:
        """Refuse what cannot be written before anything is started.

        Raises:
            CaseError: One of them cannot; the message names it.
        """
        for option, path in (("--certificate", self.certificate), ("--badge", self.badge)):
            if path is None:
                continue
            if not path.parent.is_dir():
                raise CaseError(f"{option} {path}: there is no folder {path.parent}")
            if option == "--certificate" and path.suffix not in (".json", ".html"):
                raise CaseError(
                    f"{option} {path}: expected FILE.json or FILE.html; the other is written beside it"
                )
            if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
                raise CaseError(f"{option} {path}: it cannot be written")


def violations_of(ledger: Ledger) -> dict[str, StoredViolation]:
    """What is stored of the violations a ledger confirmed; one whose file is gone or broken is left out."""
    found = {}
    for path in ledger.stored:
        try:
            one = reading.read_any(Path(path))
        except CaseError:
            continue
        if isinstance(one, StoredViolation):
            found[path] = one
    return found


def write(
    wanted: Wanted, ledger: Ledger, found: Discovery, run: Run
) -> tuple[Certificate, Sequence[str]]:
    """Write all that is wanted.

    Returns:
        The certificate, and a line for each file: that it was written, or why not.
    """
    certificate = make(ledger, found, run, violations_of(ledger))
    said = []
    for path, kind in (
        (wanted.certificate, "certificate"),
        (wanted.badge, "badge"),
        (wanted.summary, "summary"),
    ):
        if path is None:
            continue
        try:
            said.append(_written(path, kind, certificate))
        except OSError as error:
            said.append(f"{kind}: {path} could not be written: {error.strerror}")
    return certificate, said


def _written(path: Path, kind: str, certificate: Certificate) -> str:
    """Write one of them, and say so."""
    if kind == "badge":
        path.write_text(badge(certificate), encoding="utf-8")
        return f"badge: {path}"
    if kind == "summary":  # Others write to it, too.
        with path.open("a", encoding="utf-8") as file:
            file.write(markdown(certificate))
        return f"summary: {path}"
    # Imported here: only who wants a page needs it.
    from ddp_invariants.report.certificate.page import render

    # Who interrupts waits for nothing.
    page = render(certificate, drawn=INTERRUPTED not in certificate.partial)
    both = path.with_suffix(".json"), path.with_suffix(".html")
    for each, text in zip(both, (to_json(certificate), page), strict=True):
        whole = each.with_name(
            each.name + ".part"
        )  # Whoever looks while it is written sees the old one, or all of it.
        whole.write_text(text, encoding="utf-8")
        whole.replace(each)
    return f"certificate: {both[0]}, {both[1]} ({headline(certificate)})"
