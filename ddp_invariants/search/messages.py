"""The texts of violations and of inconclusive rules, as they are raised and stored."""

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from ddp_invariants.cases.case import Case, TrainingCase, describe
from ddp_invariants.discovery.lacking import NEVER
from ddp_invariants.invariants import ALL_RULES, SHIPPED
from ddp_invariants.invariants.live import ENDS
from ddp_invariants.records.verdict import Failure, Violation
from ddp_invariants.records.violation import is_stored
from ddp_invariants.search.exhaustion import MOST_RANKS, MOST_SAMPLES

_WIDTH = 118
_LABELS = 10
"""Columns of a label."""


def labelled(label: str, text: str) -> str:
    """Return a text with its label in the first line, wrapped and indented."""
    wide = max(_LABELS, len(label) + 1)
    lines = textwrap.wrap(
        text, _WIDTH - wide - 2, break_long_words=False, break_on_hyphens=False
    ) or [""]
    return "\n".join(f"  {label if n == 0 else '':<{wide}}{line}" for n, line in enumerate(lines))


def violation(
    failure: Failure,
    implementation: str,
    case: Case,
    *,
    repeated: tuple[int, int],
    repeat: str,
    tested: str = "",
    unstored: str = "",
    unsupported: str = "",
    otherwise: Sequence[str] = (),
    declarable: Sequence[str] = (),
) -> str:
    """Return the report of a violation, as a user reads it.

    Args:
        failure: The failure.
        implementation: The name of the implementation.
        case: The smallest case that shows the failure.
        repeated: (k, n): k of n runs in fresh processes showed the failure again.
        repeat: The command that repeats the violation.
        tested: The rule whose property saw the failure; empty if no property did.
        unstored: Why the file could not be written that the command reads; empty if it was.
        unsupported: A capability that excludes the violation if it is declared as unsupported;
            empty for none.
        otherwise: The ways to drive the implementation, in words, in which the case holds.
        declarable: The declarations, in words, with which the case holds.
    """
    fields = [
        f"{failure.rule} violated by {implementation}{_seen(failure, tested)}: {failure.fact}",
        labelled("where", failure.where),
        labelled("got", failure.got),
    ]
    if perhaps := failure.probable_cause(repeated):
        fields.append(labelled("perhaps", perhaps))
    if failure.first:
        fields.append(labelled("root cause (same case)", failure.first))
    if failure.event:
        fields.append(labelled("sent", failure.event))
    perturbed = case.perturbation.words if isinstance(case, TrainingCase) else ""
    only = "; ".join(filter(None, (perturbed, failure.condition)))
    if only:
        fields.append(labelled("only when", only))
    k, n = repeated
    fields += [
        labelled("case", describe(case)),
        labelled("confirmed", f"in {k} of {n} runs in fresh processes"),
        f"  {'repeat':<{_LABELS}}{repeat}",
        *_unstored(unstored),
    ]
    if failure.notes:
        fields.append(textwrap.indent(failure.notes, "  | "))
    fields += [
        labelled("unless", f"the suite drives it wrongly: the case holds with {way}")
        for way in otherwise
    ]
    fields += [labelled("unless", f"you declare {promise}") for promise in declarable]
    if unsupported:
        fields.append(
            labelled(
                "unless",
                f'you declare unsupported = ["{unsupported}"] in a [ddp] table (docs/adapter.md): '
                f"users of the wrapper must then never {NEVER[unsupported]}",
            )
        )
    return "\n".join(fields)


def found(violation: Violation, path: Path) -> str:
    """Return the line that a session prints as soon as a violation is confirmed.

    Args:
        violation: The violation.
        path: The file that stores the violation, if it could be written.
    """
    failure = violation.failure
    replay = f" (ddp-invariants replay {path.stem})" if is_stored(path) else ""
    return f"{failure.rule} is violated{_seen(failure, violation.tested)}: {failure.fact}{replay}"


def _seen(failure: Failure, tested: str) -> str:
    """Return which other rule was tested when a failure was seen; empty if none was."""
    return f" (seen while {tested} was tested)" if tested not in ("", failure.rule) else ""


def not_repeated(
    failure: Failure,
    implementation: str,
    case: Case,
    *,
    runs: int,
    repeat: str,
    unstored: str = "",
    overload: str = "",
) -> str:
    """Return why a failure that fresh processes do not show is no violation, and no pass either.

    Args:
        failure: The failure.
        implementation: The name of the implementation.
        case: The smallest case that showed the failure.
        runs: The number of runs in fresh processes, none of which showed the failure.
        repeat: The command that repeats the case.
        unstored: Why the file could not be written that the command reads; empty if it was.
        overload: The overload of the machine in words; empty for none.
    """
    overload = failure.overload or overload
    cause = (
        f"{overload}. Repeat it on a quiet machine, or with fewer workers (-n 1)"
        if overload and failure.rule == ENDS  # No overload makes a value wrong.
        else "the failure depends on chance, or on state that earlier cases left in the process; "
        "--isolation fresh gives each case new processes"
    )
    fields = [
        f"{failure.rule} inconclusive for {implementation}: a failure was seen but not repeated",
        labelled("seen", f"{failure.fact}; {failure.where}; {failure.got}"),
        labelled("case", describe(case)),
        labelled("repeated", f"in 0 of {runs} runs in fresh processes: {cause}"),
        f"  {'repeat':<{_LABELS}}{repeat}",
        *_unstored(unstored),
    ]
    return "\n".join([*fields, textwrap.indent(failure.notes, "  | ")] if failure.notes else fields)


def _unstored(reason: str) -> list[str]:
    """Return the line that says why a violation was not stored; none if it was."""
    return [labelled("not stored", reason)] if reason else []


def without_life(rule: str, implementation: str, failure: Failure) -> str:
    """Return why a rule lacks its evidence after a hang or death.

    The report of the hang has its case. That case was drawn for another rule, so it is not shown as
    a case of this rule.
    """
    return (
        f"{rule} inconclusive for {implementation}: a case that was drawn for it gave no evidence, "
        f"because {failure.fact}. The report of {failure.rule} above has such a case"
    )


def how_to_repeat(command: str, failed: str, tested: str, path: Path) -> str:
    """Return the command that repeats a violation.

    Args:
        command: The command that the user started; empty if the user called `certify`.
        failed: The rule that failed.
        tested: The rule that was tested.
        path: The file that the violation is stored in.
    """
    rule = failed if failed in ALL_RULES and failed != ENDS else tested
    if command:
        return f"{command} --replay {path} -k {rule.replace('-', '').lower()}"
    if failed in SHIPPED:
        return f"ddp-invariants replay {path}"
    return f"certify(…, {rule!r}, replay={str(path)!r})"


def unproved(
    rule: str, implementation: str, judged: int, missing: Iterable[str], reasons: Iterable[str]
) -> str:
    """Return why a rule cannot be certified though it never failed."""
    lines = [
        f"{rule} inconclusive for {implementation}: it was judged on {judged} of its own cases"
    ]
    missing, reasons = list(missing), list(reasons)
    # A refusal already explains why a condition was never met.
    if missing and not any(" raised " in reason for reason in reasons):
        lines.append(labelled("never met", "; ".join(missing)))
        lines.append(
            labelled(
                "try",
                "more cases (--cases), or larger worlds (--max-world-size)",
            )
        )
    lines += [labelled("unjudged", reason) for reason in reasons]
    return "\n".join(lines)


def explored(schedules: Sequence[int]) -> str:
    """Return in words how many schedules were run of the cases of which all were."""
    return (
        f"all {sum(schedules):,} schedules of {len(schedules)} small cases "
        "(the moments at which results of collectives arrive)"
    )


def exhausted(dealt: Sequence[int]) -> str:
    """Return in words how many of a sampler's small cases looked right."""
    right, cases = dealt
    number = f"all {cases:,}" if right == cases else f"{right:,} of {cases:,}"
    return (
        f"{number} small sampler cases (samples <= {MOST_SAMPLES}, "
        f"ranks <= {MOST_RANKS}, shuffle, drop_last, two epochs)"
    )
