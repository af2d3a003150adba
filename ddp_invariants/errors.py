"""Every exception a user can meet, by whose fault it is, and the exit statuses.

Standard library only: the rank side imports this module under any interpreter.
"""


class CertificateError(ValueError):
    """A file is no certificate, or was changed; the message is one sentence with the reason."""


class DeclarationError(ValueError):
    """A declaration nobody knows: the message names it and what may stand there."""


class DeviationError(ValueError):
    """A file of deviations cannot be read, or one of them has expired: one sentence that names it."""


class EvidenceError(ValueError):
    """A rank handed back something that is no evidence: truncated, of an unknown dtype, or of another shape."""


class ExportError(ValueError):
    """A violation that cannot be exported: one sentence that says why."""


class NamingError(ValueError):
    """An option cannot be read: one sentence that names it and what it may be."""


class CaseError(ValueError):
    """A case that cannot be run: the message names the field, what it holds and what it may hold."""


class CatalogueError(ValueError):
    """A docstring of `faults/` without the form of a record.

    The message names the docstring and the form.
    """


class HarnessError(RuntimeError):
    """The harness itself failed: no verdict about any implementation follows from it."""


class LoadError(Exception):
    """The implementation cannot be put on trial: one sentence that names it, what is wrong and what to do."""


class LoadFailure(Exception):
    """An implementation cannot be put on trial; the message is one sentence for the user."""


class WireError(RuntimeError):
    """The peer closed the connection inside a frame, or sent something that is no frame."""


class UnknownRuleError(ValueError):
    """No rule is called so; the message names those that are close."""


class BaselineError(ValueError):
    """A file is no baseline, or an incomplete one; the message is one sentence with the reason."""


UNUSABLE_INPUT = (
    DeviationError,
    LoadFailure,
    HarnessError,
    NamingError,
    DeclarationError,
    CaseError,
    OSError,
)
"""What ends a command with one sentence."""


def unusable(error: BaseException) -> int:
    """The exit status where one of these ended it: where the harness or the system failed, nobody asked wrongly."""
    ours = isinstance(error, HarnessError) or (
        isinstance(error, OSError) and error.filename is None
    )
    return INCONCLUSIVE if ours else USAGE


CERTIFIED, VIOLATED, INCONCLUSIVE = 0, 1, 2
"""Exit statuses of a judgement."""

USAGE = 64
"""Exit status where nothing was judged because of what was asked: an option, a name or a file (`EX_USAGE` of sysexits)."""

INTERRUPTED = 130
"""Exit status after an interrupt, as a shell gives it."""
