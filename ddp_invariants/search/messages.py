"""The text of a violation, as it is raised and stored."""

import textwrap
from collections.abc import Iterable

from ddp_invariants.cases.case import Case, TrainingCase, describe
from ddp_invariants.records.verdict import Failure

_WIDTH = 118


_LABELS = 10


def _field(label: str, text: str) -> str:
    wide = max(_LABELS, len(label) + 1)
    lines = textwrap.wrap(
        text, _WIDTH - wide - 2, break_long_words=False, break_on_hyphens=False
    ) or [""]
    return "\n".join(f"  {label if n == 0 else '':<{wide}}{line}" for n, line in enumerate(lines))


labelled = _field
"""A labelled line, wrapped: for other modules that make text."""


def violation(
    failure: Failure, implementation: str, case: Case, *, repeated: tuple[int, int], repeat: str
) -> str:
    """Return the text of a violation.

    Args:
        failure: The failure and its place.
        implementation: The implementation under test.
        case: The smallest case that shows it.
        repeated: (k, n): it was seen again in k of n runs in fresh processes.
        repeat: The command that repeats it.
    """
    fields = [
        f"{failure.rule} violated by {implementation}: {failure.fact}",
        _field("where", failure.where),
        _field("got", failure.got),
    ]
    if failure.perhaps:
        fields.append(_field("perhaps", failure.perhaps))
    if failure.first:
        fields.append(_field("read first", f"{failure.first}: of the same case, and explains this"))
    if failure.event:
        fields.append(_field("sent", failure.event))
    if isinstance(case, TrainingCase) and case.perturbation.words:
        fields.append(_field("only when", case.perturbation.words))
    k, n = repeated
    fields += [
        _field("case", describe(case)),
        _field("confirmed", f"in {k} of {n} runs in fresh processes"),
        f"  {'repeat':<{_LABELS}}{repeat}",
    ]
    if failure.notes:
        fields.append(textwrap.indent(failure.notes, "  | "))
    return "\n".join(fields)


def not_repeated(
    failure: Failure, implementation: str, case: Case, *, runs: int, repeat: str
) -> str:
    """Return the text of a failure that fresh processes do not repeat.

    It is no violation, but there is no certificate either.
    """
    fields = [
        f"{failure.rule} inconclusive for {implementation}: a breach was seen but not repeated",
        _field("seen", f"{failure.fact}; {failure.where}; {failure.got}"),
        _field("case", describe(case)),
        _field(
            "confirmed",
            f"in 0 of {runs} runs in fresh processes: it depends on chance, or on what earlier "
            "cases left in "
            "the process; with --isolation fresh each case has new ones",
        ),
        f"  {'repeat':<{_LABELS}}{repeat}",
    ]
    return "\n".join([*fields, textwrap.indent(failure.notes, "  | ")] if failure.notes else fields)


def without_life(
    rule: str, implementation: str, failure: Failure, case: Case, *, repeat: str
) -> str:
    """Explain that a rule lacks its evidence because training hangs or dies.

    That violation is reported in full elsewhere.
    """
    return "\n".join(
        [
            f"{rule} inconclusive for {implementation}: {failure.fact} (LIVE-1, reported above)",
            _field("case", describe(case)),
            f"  {'repeat':<{_LABELS}}{repeat}",
        ]
    )


def unproved(
    rule: str, implementation: str, judged: int, missing: Iterable[str], reasons: Iterable[str]
) -> str:
    """Explain why a rule cannot be certified though no failure was found."""
    lines = [
        f"{rule} inconclusive for {implementation}: it was judged on {judged} of its own cases"
    ]
    missing, reasons = list(missing), list(reasons)
    # A refusal is its own reason.
    if missing and not any(" raised " in reason for reason in reasons):
        lines.append(_field("never met", "; ".join(missing)))
        lines.append(
            _field(
                "perhaps",
                "too few cases, or too small a world size: raise --cases or --max-world-size",
            )
        )
    lines += [_field("unjudged", reason) for reason in reasons]
    return "\n".join(lines)
