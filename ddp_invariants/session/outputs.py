"""A session's output files: a certificate and its page, a badge, a table on a CI job's page."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ddp_invariants.discovery.result import Discovery
from ddp_invariants.errors import CaseError
from ddp_invariants.records import reading
from ddp_invariants.records.violation import StoredViolation
from ddp_invariants.report.certificate.certificate import (
    INTERRUPTED,
    Certificate,
    to_json,
)
from ddp_invariants.report.certificate.from_session import SessionRun, make
from ddp_invariants.report.certificate.text import badge, headline, markdown
from ddp_invariants.report.proposal import Proposed, file_of, proposals
from ddp_invariants.search.ledger import Ledger

SUMMARY = "GITHUB_STEP_SUMMARY"
"""The environment variable that names the file of a CI job's summary page."""


@dataclass(frozen=True)
class OutputFiles:
    """The files that a session writes; None for a file that is not wanted.

    Attributes:
        certificate: The JSON or the page: the other is written beside it.
        badge: For shields.io.
        proposal: A declaration file of what the implementation lacks.
    """

    certificate: Path | None = None
    badge: Path | None = None
    proposal: Path | None = None

    @property
    def summary(self) -> Path | None:
        """The file of the CI job's summary page, if the session runs in a CI job."""
        return summary_page()

    def check(self) -> None:
        """Refuse files that cannot be written before anything is started.

        Raises:
            CaseError: A file cannot be written; the message names it.
        """
        for option, path in (
            ("--certificate", self.certificate),
            ("--badge", self.badge),
            ("--propose", self.proposal),
        ):
            if path is None:
                continue
            if not path.parent.is_dir():
                raise CaseError(f"{option} {path}: there is no folder {path.parent}")
            if option == "--certificate" and path.suffix not in (".json", ".html"):
                raise CaseError(
                    f"{option} {path}: expected FILE.json or FILE.html; the other is written "
                    "beside it"
                )
            if option == "--certificate" and find_spec("matplotlib") is None:
                raise CaseError(
                    f"{option} {path}: its page has pictures, which matplotlib draws; run "
                    "pip install 'ddp-invariants[pages]'"
                )
            if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
                raise CaseError(f"{option} {path}: it cannot be written")


def summary_page() -> Path | None:
    """Return the file of a CI job's summary page; None outside of such a job."""
    return Path(os.environ[SUMMARY]) if os.environ.get(SUMMARY) else None


def summarise(text: str) -> str:
    """Append a text to a CI job's summary page, if there is one.

    Returns:
        Why it could not be written; empty if it was, or outside of a CI job.
    """
    path = summary_page()
    if path is None:
        return ""
    try:
        with path.open("a", encoding="utf-8") as file:  # Other steps of the job write to it, too.
            file.write(text)
    except OSError as error:
        return f"summary: {path} could not be written: {error.strerror}"
    return ""


def violations_of(ledger: Ledger) -> dict[str, StoredViolation]:
    """Return the stored violations that a ledger confirmed.

    A violation whose file is gone or broken is left out.
    """
    violations = {}
    for path in ledger.stored:
        try:
            stored = reading.read_any(Path(path))
        except CaseError:
            continue
        if isinstance(stored, StoredViolation):
            violations[path] = stored
    return violations


def write(
    files: OutputFiles, ledger: Ledger, discovery: Discovery, run: SessionRun
) -> tuple[Sequence[str], bool]:
    """Write all wanted files.

    Returns:
        A line for each file: that it was written, or why not; and whether a file other than the
        summary of a CI job could not be written. Nobody waits for that summary.
    """
    certificate = make(ledger, discovery, run, violations_of(ledger))
    proposed = proposals(certificate.card, discovery)
    lines, unwritten = [], False
    for path, kind in (
        (files.certificate, "certificate"),
        (files.badge, "badge"),
        (files.proposal, "proposal"),
        (files.summary, "summary"),
    ):
        if path is None:
            continue
        try:
            lines.append(
                _proposed(path, proposed, discovery)
                if kind == "proposal"
                else _written(path, kind, certificate)
            )
        except OSError as error:
            lines.append(f"{kind}: {path} could not be written: {error.strerror}")
            unwritten |= kind != "summary"
    return lines, unwritten


def _proposed(path: Path, proposed: Sequence[Proposed], discovery: Discovery) -> str:
    """Write the proposed declarations, if any, and return a line that says so."""
    if not proposed:
        return f"proposal: {path} was not written: there is nothing to declare"
    path.write_text(file_of(proposed, discovery), encoding="utf-8")
    return f"proposal: {path}, for --declare"


def _written(path: Path, kind: str, certificate: Certificate) -> str:
    """Write one of the files, and return a line that says so."""
    if kind == "badge":
        path.write_text(badge(certificate), encoding="utf-8")
        return f"badge: {path}"
    if kind == "summary":  # Other steps of the CI job write to it, too.
        with path.open("a", encoding="utf-8") as file:
            file.write(markdown(certificate))
        return f"summary: {path}"
    return write_certificate(path, certificate)


def write_certificate(path: Path, certificate: Certificate) -> str:
    """Write a certificate and its page, and return a line that says so.

    Raises:
        OSError: A file cannot be written.
    """
    # Imported here: only a page needs it.
    from ddp_invariants.report.certificate.page import render

    # After an interrupt the user must not wait for a drawing.
    page = render(certificate, drawn=INTERRUPTED not in certificate.partial)
    both = path.with_suffix(".json"), path.with_suffix(".html")
    for target, text in zip(both, (to_json(certificate), page), strict=True):
        # A reader sees the old file or the whole new one, never a part.
        whole = target.with_name(target.name + ".part")
        whole.write_text(text, encoding="utf-8")
        whole.replace(target)
    return f"certificate: {both[0]}, {both[1]} ({headline(certificate)})"
