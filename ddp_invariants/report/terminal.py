"""The text of verdicts: the only place that writes it."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ddp_invariants.cases.case import TrainingCase, describe
from ddp_invariants.discovery.probe import Discovery, Standing
from ddp_invariants.implementation.declarations import (
    CAPABILITIES,
    Declarations,
    SamplerDeclarations,
    to_toml,
)
from ddp_invariants.proof.catalogue import Planted, planted
from ddp_invariants.proof.detection import Detection, Totals, totals
from ddp_invariants.proof.detection import summary as summary_of
from ddp_invariants.records.verdict import Outcome, Replayed
from ddp_invariants.records.violation import StoredViolation
from ddp_invariants.search.ledger import Entry, Ledger
from ddp_invariants.search.messages import _WIDTH, _field, violation

if TYPE_CHECKING:
    from rich.table import Table

    from ddp_invariants.upgrades.baseline import Environment
    from ddp_invariants.upgrades.gate import Gated
    from ddp_invariants.upgrades.pace import Ratio


def replayed(result: Replayed, repeat: str) -> str:
    """Return the text of a replay.

    Args:
        result: The result.
        repeat: The command that repeats it.
    """
    about = result.rules[0] if len(result.rules) == 1 else f"{len(result.rules)} rules"
    times = f"{result.runs} run{'s' if result.runs > 1 else ''} in fresh processes"
    if result.outcome is Outcome.FIXED:
        how = (
            f"{about} {'holds' if len(result.rules) == 1 else 'hold'} for "
            f"{result.implementation} in all of {times}"
        )
        return "\n".join([f"FIXED: {how}", _field("case", describe(result.case))])
    if result.outcome is Outcome.INCONCLUSIVE:
        return "\n".join(
            [
                f"INCONCLUSIVE: {about} cannot be judged for {result.implementation}",
                _field("because", result.reason),
                _field("case", describe(result.case)),
            ]
        )
    first, *further = result.failures
    lines = [
        f"STILL VIOLATED in {result.seen} of {times}",
        violation(
            first,
            result.implementation,
            result.case,
            repeated=(result.seen, result.runs),
            repeat=repeat,
        ),
    ]
    lines += [
        _field("also", f"{failure.rule}: {failure.fact}; {failure.where}") for failure in further
    ]
    return "\n".join(lines)


def not_exported(stored: StoredViolation, reason: str) -> str:
    """Explain why a script is not handed out."""
    perturbed = isinstance(stored.case, TrainingCase) and stored.case.perturbation.kind != "none"
    reservation = (
        "; the case changes the timing of collectives, which a script does for Python calls at most"
        if perturbed
        else ""
    )
    return (
        f"a script of {stored.failure.rule} was written, but it does not show the violation: "
        f"{reason}{reservation}. --unchecked "
        "prints it all the same"
    )


def pinned(discovery: Discovery, path: object) -> str:
    """Explain the effect of a pin on capabilities that are silently wrong."""
    wrong = [
        probe.capability
        for probe in (*discovery.probed, *discovery.dealt)
        if probe.standing is Standing.WRONG
    ]
    lines = [f"pinned in {path}: a capability that changes will be told"]
    lines += [
        f"{name} is silently wrong, and declared unsupported there: it is printed, and no "
        "longer judged; take it out of "
        "the file to have it judged"
        for name in wrong
    ]
    return "\n".join(lines)


def passing_failures(stored: Iterable[StoredViolation]) -> str:
    """Explain why a session fails though none of its tests did; empty if nothing was seen.

    Args:
        stored: The failures that were seen and stored.
    """
    failures = list(stored)
    if not failures:
        return ""
    rules = [failure.failure.rule for failure in failures]
    keys = " or ".join(rule.replace("-", "").lower() for rule in rules)
    heading = (
        f"the session fails: breaches of {', '.join(rules)} were seen in cases drawn for other "
        "rules; run with "
        f'-k "{keys}" to have them judged and shrunk, or replay what was seen first:'
    )
    return "\n".join(
        [
            heading,
            *(
                f"  {failure.repeat}    {failure.failure.rule}: {describe(failure.case)}"
                for failure in failures
            ),
        ]
    )


def summary(ledger: Ledger, order: list[str]) -> str:
    """Return a table of the rules that were judged or tested, in the order of the specification."""
    # Imported here: it is needed once, at a session's end.
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for title in ("rule", "verdict"):
        table.add_column(title, no_wrap=True)
    for title in ("judged", "compared", "largest error"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("notes")
    for rule in order:
        entry = ledger[rule]
        if not ledger.concerned(rule):
            continue
        worst = f"{entry.worst:.2f} of bound" if entry.worst else "none" if entry.judged else ""
        table.add_row(
            rule,
            ledger.said(rule),
            f"{entry.judged:,}",
            f"{entry.compared:,}",
            worst,
            _notes(entry),
        )
    return "\n".join([f"{ledger.cases:,} cases judged", *printed(table)])


def printed(table: "Table") -> list[str]:
    """Return a table's lines, without colour."""
    from rich.console import Console

    console = Console(width=_WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().rstrip().splitlines()]


def detections(detections: Sequence[Detection]) -> str:
    """Return the table of planted faults, the remarks on controls, and the totals.

    Each row sums up a fault's searches. It has the rule that must fail, and the rules named for the
    smallest case and for the first failing one. Then come three medians, the smallest case, and the
    share of right causes. The medians are of the cases drawn until the first failing one, of the
    cases among them drawn for the same rule, and of the seconds.
    """
    # Imported here, as above.
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for title in ("fault", "must", "named", "seen by"):
        table.add_column(title, no_wrap=title in ("fault", "must"))
    for title in ("cases", "own", "seconds"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("smallest case")
    table.add_column("cause")
    host = ""
    for fault, group in _grouped(
        detection for detection in detections if detection.planted.is_fault
    ):
        if fault.host != host:
            host = fault.host
            table.add_row(f"{host}.py", style="italic")
        added = summary_of(group)
        table.add_row(
            f"  {escape(fault.name)}",
            fault.rule,
            added.named,
            added.sighted,
            added.cases,
            added.own,
            added.seconds,
            added.smallest.size,
            added.causes,
        )
    return "\n".join(
        [
            *(printed(table) if table.rows else []),
            "",
            *_of_controls(detections),
            *_sum(totals(detections)),
        ]
    )


def searched(detection: Detection) -> str:
    """Describe one search in a line."""
    result = (
        f"{detection.rule}, {detection.cause or detection.told}"
        if detection.is_caught
        else detection.reason or "nothing found"
    )
    return (
        f"{detection.planted.host}: {detection.planted.name}, seed {detection.seed}: "
        f"{' '.join(result.split())}; {detection.cases} cases"
    )


def _grouped(detections: Iterable[Detection]) -> list[tuple[Planted, list[Detection]]]:
    """Group searches by their fault or control, in the order of the catalogue."""
    groups: dict[Planted, list[Detection]] = {}
    for detection in sorted(detections, key=lambda detection: detection.seed):
        groups.setdefault(detection.planted, []).append(detection)
    order = planted()
    return sorted(groups.items(), key=lambda group: order.index(group[0]))


def _of_controls(detections: Iterable[Detection]) -> list[str]:
    """Return remarks on controls that did not simply hold."""
    lines = []
    for detection in detections:
        if not detection.planted.is_fault and detection.is_caught:
            lines.append(
                _field(
                    "accused",
                    f"{detection.planted.target} (seed {detection.seed}): {detection.rule}, "
                    f"{detection.cause or 'no cause'}; "
                    f"{detection.case}",
                )
            )
        if detection.reason:
            lines.append(
                _field(
                    "unproved",
                    f"{detection.planted.target} (seed {detection.seed}): "
                    f"{' '.join(detection.reason.split())}",
                )
            )
    return lines


def _sum(total: Totals) -> list[str]:
    def share(part: int, whole: int) -> str:
        return f"{part} ({100 * part / whole:.1f} %)" if whole else str(part)

    whole = total.searches
    return [
        (
            f"{whole} searches for planted faults: {share(total.caught, whole)} caught, "
            f"{share(total.right_rule, whole)} by "
            f"the right rule, {share(total.right, whole)} with the right cause, {total.wrong} "
            "with a wrong one, "
            f"{total.unknown} with none"
        ),
        (
            f"until the first counterexample, in the median: {total.median_cases:.0f} cases, "
            f"{total.median_seconds:.2f} s"
        ),
        f"{total.control_cases:,} cases of controls: {total.accused} accusations",
    ]


def on_trial(discovery: Discovery, *, verbose: bool) -> list[str]:
    """Return a line each for the implementation under test and its declarations.

    Verbose adds the calls that drive it.
    """
    lines = []
    for side, described, declared, driven in (
        ("ddp", discovery.ddp, discovery.declared, discovery.driven),
        ("sampler", discovery.sampler, discovery.declared_sampler, discovery.sampler["driven"]),
    ):
        lines.append(
            f"{side} on trial: {described['name']} = {described['target']} ({described['version']})"
        )
        lines += [f"  declared  {line}" for line in to_toml(side, declared).splitlines()[1:]]
        lines += [f"  driven    {line}" for line in driven] if verbose else []
    return lines


def declarations(ddp: Declarations, sampler: SamplerDeclarations) -> str:
    """Return a declaration file of both sides."""
    return f"{to_toml('ddp', ddp)}\n{to_toml('sampler', sampler)}"


def capabilities(discovery: Discovery) -> str:
    """Return the results of the probed capabilities, a paragraph each unless simply right."""
    probed = (*discovery.probed, *discovery.dealt)
    lines = []
    for probe in probed:
        if probe.expected and probe.standing is Standing.WRONG:
            lines.append(
                _field(
                    "silently wrong, expected",
                    f"{probe.capability} ({CAPABILITIES[probe.capability]}) {probe.words}; "
                    f"{probe.expected}",
                )
            )
        elif probe.declared:
            right = probe.standing is Standing.RIGHT
            label = (
                "right, though declared unsupported"
                if right
                else f"{probe.standing.value}, declared"
            )
            lines.append(
                _field(
                    label,
                    f"{probe.capability} ({CAPABILITIES[probe.capability]}) {probe.words}".rstrip(),
                )
            )
    for standing in (Standing.WRONG, Standing.REFUSED):
        lines += [
            _field(
                standing.value,
                f"{probe.capability} ({CAPABILITIES[probe.capability]}): {probe.words}",
            )
            for probe in probed
            if probe.standing is standing
            and not probe.declared
            and not (probe.expected and standing is Standing.WRONG)
        ]
    for standing in (Standing.RIGHT, Standing.ABSENT, Standing.UNKNOWN):
        names = [
            probe.capability
            for probe in probed
            if probe.standing is standing and not probe.declared
        ]
        lines += [_field(standing.value, ", ".join(names))] if names else []
    return "\n".join(["capabilities, probed before the properties", *lines])


def _notes(entry: Entry) -> str:
    if entry.failures and not entry.confirmed:
        identifier, words = next(iter(entry.failures.items()))
        return (
            f"seen in {entry.seen} cases while other rules were tested, first {identifier}: {words}"
        )
    refused = sum(count for reason, count in entry.unjudged.items() if " raised " in reason)
    crashed = [reason for reason in entry.unjudged if "the rule itself crashed" in reason]
    notes = [text for text in (entry.not_claimed, entry.not_run) if text]
    notes += (
        [f"{entry.observed[0]:.2f} to {entry.observed[1]:.2f} times a ring all-reduce"]
        if entry.observed
        else []
    )
    notes += crashed[:1]
    notes += [f"breached in {entry.seen} cases"] if entry.seen else []
    notes += [f"refused in {refused} cases"] if refused else []
    return "; ".join(notes)


_GATED = {
    "rule": "rules",
    "discrete": "what must match exactly",
    "number": "numbers beyond their bounds",
    "rounding": "numbers within their bounds",
}


def compared(sides: "tuple[Environment, Environment]", outcome: "Gated") -> str:
    """Return the text of the changes from one interpreter to the other."""
    lines = [
        f"old  {sides[0]} ({sides[0].python})",
        f"new  {sides[1]} ({sides[1].python})",
        f"{outcome.cases:,} cases on both, and those it took to make them smaller",
    ]
    for kind, title in _GATED.items():
        changes = [change for change in outcome.found if change.difference.kind == kind]
        lines += ["", f"{title}: {len(changes)} changed" if changes else f"{title}: the same"]
        for change in changes:
            lines.append(
                f"  {change.difference.name}{f' ({change.state})' if change.state else ''}"
            )
            lines += [
                _field(name, text)
                for name, text in (
                    ("where", change.difference.where),
                    ("old", change.difference.old),
                    ("new", change.difference.new),
                    ("case", describe(change.case) if change.case is not None else ""),
                    ("script", change.script),
                )
                if text
            ]
    lines += (
        ["", "speed and memory, new over old, never judged", *map(_paced, outcome.pace)]
        if outcome.pace
        else []
    )
    lines += [
        "",
        *(
            f"accepted, and not seen: {change.change!r}; take it out of the file"
            for change in outcome.stale
        ),
    ]
    lines.append(_GATE[outcome.status])
    return "\n".join(lines)


def _paced(ratio: "Ratio") -> str:
    spread = (
        ", half of {} cases from {:.2f} to {:.2f}".format(ratio.cases, *ratio.quartiles)
        if ratio.quartiles
        else ""
    )
    return (
        f"  {ratio.what:<29} {ratio.ratio:.2f}{spread} ({ratio.new:,.1f} {ratio.unit}, old "
        f"{ratio.old:,.1f})"
    )


_GATE = {
    0: "SAME: nothing changed that is judged",
    1: "CHANGED: beyond what is accepted",
    2: "INCONCLUSIVE: something differed once, and not again",
}
