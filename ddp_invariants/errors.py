"""Every exception a user can meet, by whose fault it is, and the exit statuses.

Standard library only: the rank side imports this module under any interpreter.
"""

import errno


class CertificateError(ValueError):
    """A file is no certificate, or was changed; the message is one sentence with the reason."""


class NoCertificateFileError(CertificateError):
    """A path at which no file can be read; nothing was checked."""


class DeclarationError(ValueError):
    """An unknown declaration: the message names it and its allowed values."""


class DeviationError(ValueError):
    """An unreadable file of deviations or an expired deviation: one sentence that names it."""


class EvidenceError(ValueError):
    """A rank's answer that is no evidence: truncated, of an unknown dtype, or of another shape."""


class ExportError(ValueError):
    """A violation that cannot be exported: one sentence that says why."""


class NamingError(ValueError):
    """An option that cannot be read: one sentence names it and its allowed forms."""


class CaseError(ValueError):
    """A case that cannot be run: the message names the field, its value and its allowed values."""


class CatalogueError(ValueError):
    """A catalogue, or a docstring of one, that cannot be read: the message says why."""


class ResultsError(ValueError):
    """A file of results that cannot be continued: the message says why."""


class HarnessError(RuntimeError):
    """The harness itself failed: no verdict about any implementation follows from it."""


class HostLost(HarnessError):
    """The host of a pool ended, and its ranks with it.

    Attributes:
        address: The host's address, under which the session starts it anew.
    """

    def __init__(self, address: str, message: str) -> None:
        super().__init__(message)
        self.address = address


class AlteredHarness(HarnessError):
    """The implementation under test replaced code of the harness in a rank."""

    def __init__(self, names: list[str]) -> None:
        rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
        super().__init__(
            f"the implementation altered the harness ({', '.join(names[:3])}{rest}), so the "
            "evidence does not count"
        )


class LoadError(Exception):
    """An implementation that cannot be tested: a sentence names it, the problem and the remedy."""


class LoadFailure(Exception):
    """An implementation that cannot be tested; the message is one sentence for the user."""


class WireError(RuntimeError):
    """A peer that closed the connection inside a frame, or sent an invalid frame."""


class UnknownRuleError(ValueError):
    """A rule id that does not exist; the message names close ones."""


class MergeError(ValueError):
    """Files that do not add up; the message is one sentence with the reason."""


class BaselineError(ValueError):
    """A file is no baseline, or an incomplete one; the message is one sentence with the reason."""


_EXHAUSTED = (
    errno.EAGAIN,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOSPC,
    errno.EIO,
)
"""Errors of a system that has run out of something, whatever file was asked for."""

UNUSABLE_INPUT = (
    DeviationError,
    LoadFailure,
    HarnessError,
    NamingError,
    DeclarationError,
    CaseError,
    OSError,
)
"""The errors that end a command with one sentence."""


def is_exhaustion(error: BaseException | None) -> bool:
    """Return whether an error says that the system has run out of something, such as processes."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def unusable(error: BaseException) -> int:
    """Return the exit status of such an error.

    It is INCONCLUSIVE if the harness or the system failed, since then the user made no mistake.
    """
    failed = isinstance(error, HarnessError) or (
        isinstance(error, OSError) and (error.filename is None or is_exhaustion(error))
    )
    return INCONCLUSIVE if failed else USAGE


CERTIFIED, VIOLATED, INCONCLUSIVE = 0, 1, 2
"""Exit statuses of a judgement."""

USAGE = 64
"""Exit status of a usage error (`EX_USAGE` of sysexits)."""

USAGE_ERROR = "usage error (a bad option, name or file)"
"""The words for `USAGE` in every help text and document."""

UNWRITTEN = 73
"""Exit status if a certificate or a badge cannot be written (`EX_CANTCREAT` of sysexits)."""

INTERRUPTED = 130
"""Exit status after an interrupt, as a shell gives it."""
