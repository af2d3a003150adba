"""The one place that turns verdicts into text."""

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


def replayed(found: Replayed, repeat: str) -> str:
    """What became of a stored violation, or of a case that was handed in.

    Args:
        found: The outcome.
        repeat: The command that repeats it.
    """
    about = found.rules[0] if len(found.rules) == 1 else f"{len(found.rules)} rules"
    times = f"{found.runs} run{'s' if found.runs > 1 else ''} in fresh processes"
    if found.outcome is Outcome.FIXED:
        how = f"{about} {'holds' if len(found.rules) == 1 else 'hold'} for {found.implementation} in all of {times}"
        return "\n".join([f"FIXED: {how}", _field("case", describe(found.case))])
    if found.outcome is Outcome.INCONCLUSIVE:
        return "\n".join(
            [
                f"INCONCLUSIVE: {about} cannot be judged for {found.implementation}",
                _field("because", found.reason),
                _field("case", describe(found.case)),
            ]
        )
    first, *others = found.failures
    lines = [
        f"STILL VIOLATED in {found.seen} of {times}",
        violation(
            first,
            found.implementation,
            found.case,
            repeated=(found.seen, found.runs),
            repeat=repeat,
        ),
    ]
    lines += [_field("also", f"{one.rule}: {one.fact}; {one.where}") for one in others]
    return "\n".join(lines)


def not_exported(stored: StoredViolation, reason: str) -> str:
    """Why a script is not handed out."""
    perturbed = isinstance(stored.case, TrainingCase) and stored.case.perturbation.kind != "none"
    why = (
        "; the case changes the timing of collectives, which a script does for Python calls at most"
        if perturbed
        else ""
    )
    return (
        f"a script of {stored.failure.rule} was written, but it does not show the violation: {reason}{why}. --unchecked "
        "prints it all the same"
    )


def pinned(found: Discovery, path: object) -> str:
    """What a pin means for what was found silently wrong."""
    wrong = [
        one.capability for one in (*found.probed, *found.dealt) if one.standing is Standing.WRONG
    ]
    told = [f"pinned in {path}: a capability that changes will be told"]
    told += [
        f"{name} is silently wrong, and declared unsupported there: it is printed, and no longer judged; take it out of "
        "the file to have it judged"
        for name in wrong
    ]
    return "\n".join(told)


def seen_in_passing(kept: Iterable[StoredViolation]) -> str:
    """Why a session fails though no test of it did; empty where nothing was seen.

    Args:
        kept: What was seen, and is stored.
    """
    kept = list(kept)
    if not kept:
        return ""
    rules = [one.failure.rule for one in kept]
    keys = " or ".join(rule.replace("-", "").lower() for rule in rules)
    told = (
        f"the session fails: breaches of {', '.join(rules)} were seen in cases drawn for other rules; run with "
        f'-k "{keys}" to have them judged and shrunk, or replay what was seen first:'
    )
    return "\n".join(
        [told, *(f"  {one.repeat}    {one.failure.rule}: {describe(one.case)}" for one in kept)]
    )


def summary(ledger: Ledger, order: list[str]) -> str:
    """A table of the rules that were judged or tested, in the order of the specification."""
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
    """A table's lines, without colour."""
    from rich.console import Console

    console = Console(width=_WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().rstrip().splitlines()]


def detections(found: Sequence[Detection]) -> str:
    """The table of planted faults, what is to be said of controls, and the totals.

    Per fault, over its searches: the rule that must notice, those that were named for the smallest
    case and for the first one seen; medians of the cases drawn until then, of those among them
    drawn for the rule that drew the telling one, and of the seconds; the smallest case; and how
    often the cause named was right.
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
    for fault, group in _grouped(one for one in found if one.planted.is_fault):
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
        [*(printed(table) if table.rows else []), "", *_of_controls(found), *_sum(totals(found))]
    )


def searched(one: Detection) -> str:
    """One search in a line."""
    came = (
        f"{one.rule}, {one.cause or one.told}" if one.is_caught else one.reason or "nothing found"
    )
    return f"{one.planted.host}: {one.planted.name}, seed {one.seed}: {' '.join(came.split())}; {one.cases} cases"


def _grouped(found: Iterable[Detection]) -> list[tuple[Planted, list[Detection]]]:
    """Searches by what was on trial, in the order of the catalogue."""
    groups: dict[Planted, list[Detection]] = {}
    for one in sorted(found, key=lambda one: one.seed):
        groups.setdefault(one.planted, []).append(one)
    order = planted()
    return sorted(groups.items(), key=lambda group: order.index(group[0]))


def _of_controls(found: Iterable[Detection]) -> list[str]:
    """What there is to say of controls that did not simply hold."""
    told = []
    for one in found:
        if not one.planted.is_fault and one.is_caught:
            told.append(
                _field(
                    "accused",
                    f"{one.planted.target} (seed {one.seed}): {one.rule}, {one.cause or 'no cause'}; "
                    f"{one.case}",
                )
            )
        if one.reason:
            told.append(
                _field(
                    "unproved",
                    f"{one.planted.target} (seed {one.seed}): {' '.join(one.reason.split())}",
                )
            )
    return told


def _sum(total: Totals) -> list[str]:
    def share(part: int, whole: int) -> str:
        return f"{part} ({100 * part / whole:.1f} %)" if whole else str(part)

    whole = total.searches
    return [
        (
            f"{whole} searches for planted faults: {share(total.caught, whole)} caught, {share(total.right_rule, whole)} by "
            f"the right rule, {share(total.right, whole)} with the right cause, {total.wrong} with a wrong one, "
            f"{total.unknown} with none"
        ),
        f"until the first counterexample, in the median: {total.median_cases:.0f} cases, {total.median_seconds:.2f} s",
        f"{total.control_cases:,} cases of controls: {total.accused} accusations",
    ]


def on_trial(found: Discovery, *, verbose: bool) -> list[str]:
    """Who is on trial and what is declared, a line each; verbose: how they are driven."""
    lines = []
    for side, described, declared, driven in (
        ("ddp", found.ddp, found.declared, found.driven),
        ("sampler", found.sampler, found.declared_sampler, found.sampler["driven"]),
    ):
        lines.append(
            f"{side} on trial: {described['name']} = {described['target']} ({described['version']})"
        )
        lines += [f"  declared  {line}" for line in to_toml(side, declared).splitlines()[1:]]
        lines += [f"  driven    {line}" for line in driven] if verbose else []
    return lines


def declarations(ddp: Declarations, sampler: SamplerDeclarations) -> str:
    """A declaration file of both sides."""
    return f"{to_toml('ddp', ddp)}\n{to_toml('sampler', sampler)}"


def capabilities(found: Discovery) -> str:
    """What was found out about capabilities, as far as it is not simply right: a paragraph a finding."""
    probed = (*found.probed, *found.dealt)
    lines = []
    for one in probed:
        if one.expected and one.standing is Standing.WRONG:
            lines.append(
                _field(
                    "silently wrong, expected",
                    f"{one.capability} ({CAPABILITIES[one.capability]}) {one.words}; "
                    f"{one.expected}",
                )
            )
        elif one.declared:
            right = one.standing is Standing.RIGHT
            said = (
                "right, though declared unsupported" if right else f"{one.standing.value}, declared"
            )
            lines.append(
                _field(
                    said, f"{one.capability} ({CAPABILITIES[one.capability]}) {one.words}".rstrip()
                )
            )
    for standing in (Standing.WRONG, Standing.REFUSED):
        lines += [
            _field(
                standing.value, f"{one.capability} ({CAPABILITIES[one.capability]}): {one.words}"
            )
            for one in probed
            if one.standing is standing
            and not one.declared
            and not (one.expected and standing is Standing.WRONG)
        ]
    for standing in (Standing.RIGHT, Standing.ABSENT, Standing.UNKNOWN):
        names = [one.capability for one in probed if one.standing is standing and not one.declared]
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
    notes = [why for why in (entry.not_claimed, entry.not_run) if why]
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
    """What changed from one interpreter to the other."""
    lines = [
        f"old  {sides[0]} ({sides[0].python})",
        f"new  {sides[1]} ({sides[1].python})",
        f"{outcome.cases:,} cases on both, and those it took to make them smaller",
    ]
    for kind, title in _GATED.items():
        found = [one for one in outcome.found if one.difference.kind == kind]
        lines += ["", f"{title}: {len(found)} changed" if found else f"{title}: the same"]
        for one in found:
            lines.append(f"  {one.difference.name}{f' ({one.state})' if one.state else ''}")
            lines += [
                _field(name, text)
                for name, text in (
                    ("where", one.difference.where),
                    ("old", one.difference.old),
                    ("new", one.difference.new),
                    ("case", describe(one.case) if one.case is not None else ""),
                    ("script", one.script),
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
            f"accepted, and not seen: {one.change!r}; take it out of the file"
            for one in outcome.stale
        ),
    ]
    lines.append(_GATE[outcome.status])
    return "\n".join(lines)


def _paced(one: "Ratio") -> str:
    spread = (
        ", half of {} cases from {:.2f} to {:.2f}".format(one.cases, *one.quartiles)
        if one.quartiles
        else ""
    )
    return (
        f"  {one.what:<29} {one.ratio:.2f}{spread} ({one.new:,.1f} {one.unit}, old {one.old:,.1f})"
    )


_GATE = {
    0: "SAME: nothing changed that is judged",
    1: "CHANGED: beyond what is accepted",
    2: "INCONCLUSIVE: something differed once, and not again",
}
