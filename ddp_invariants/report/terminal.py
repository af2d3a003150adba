"""The text of a session and of a replay, for the terminal."""

import textwrap
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from ddp_invariants.cases.case import TrainingCase, describe
from ddp_invariants.discovery.result import Discovery, Standing
from ddp_invariants.implementation.declarations import (
    CAPABILITIES,
    Declarations,
    SamplerDeclarations,
    in_list,
    to_toml,
)
from ddp_invariants.records.verdict import Outcome, Replayed
from ddp_invariants.records.violation import StoredViolation
from ddp_invariants.report.card import LevelAccount, words
from ddp_invariants.report.certificate.certificate import left_out
from ddp_invariants.search.ledger import Entry, Ledger
from ddp_invariants.search.messages import _WIDTH, exhausted, explored, violation
from ddp_invariants.search.messages import labelled as _field
from ddp_invariants.search.places import REAL_WORLD_SIZE

if TYPE_CHECKING:
    from rich.table import Table


def replay(result: Replayed, repeat: str) -> str:
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
        "; the case changes the timing of collectives, and a script can delay only Python calls"
        if perturbed
        else ""
    )
    return (
        f"the script for {stored.failure.rule} does not show the violation: {reason}{reservation}. "
        "--unchecked prints the script anyway"
    )


def effect_of_pin(discovery: Discovery, path: object) -> str:
    """Explain the effect of a pin on capabilities that are wrong."""
    wrong = [
        probe.capability
        for probe in (*discovery.ddp_probes, *discovery.sampler_probes)
        if probe.standing is Standing.WRONG
    ]
    lines = [f"pinned in {path}: if a capability changes, a later session reports it"]
    lines += [
        f"{name} is wrong; the file declares it unsupported, so it is reported and no "
        "longer judged. Remove it from the file to have it judged"
        for name in wrong
    ]
    return "\n".join(lines)


def passing_failures(stored: Iterable[StoredViolation], *, violated: bool) -> str:
    """List failures that no test of the session reports; empty if there is none.

    Args:
        stored: The failures that were seen and stored.
        violated: True if a test reports a violation; otherwise these failures fail the session.
    """
    failures = list(stored)
    if not failures:
        return ""
    rules = [failure.failure.rule for failure in failures]
    keys = " or ".join(rule.replace("-", "").lower() for rule in rules)
    if violated:
        replays = ", ".join(f"{each.failure.rule} (replay {each.id})" for each in failures)
        return _field(
            "also",
            f"{replays} failed in other cases, for the same reason or for another one; after a fix, "
            f'replay each, or run with -k "{keys}", which judges them first',
        )
    heading = (
        f"the session fails: probes, or cases drawn for other rules, failed {', '.join(rules)}; run "
        f'with -k "{keys}" to judge and shrink these failures, or replay the first failure of each rule:'
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


def report_card(levels: Iterable[LevelAccount]) -> str:
    """Return a line for each level with its verdict, before everything else."""
    return "\n".join(_field(level.level, words(level)) for level in levels)


def left_out_of(discovery: Discovery) -> str:
    """Return a line with the capabilities that no case contains; empty for none."""
    names = left_out(
        (
            probe.capability,
            "declared unsupported" if probe.declared else probe.standing.value,
            probe.words if probe.never_met else "",
        )
        for probe in discovery.probes_under_test
    )
    return _field("left out", names + discovery.why_unprobed) if names else ""


def summary(
    ledger: Ledger, order: list[str], notes: Mapping[str, str] = {}, *, verbose: bool = True
) -> str:
    """Return a table of the rules that were judged or tested, in the order of the specification.

    Args:
        ledger: The account of the session.
        order: The rules, in this order.
        notes: What the account does not say about a rule, by rule.
        verbose: False to give only the number of the rules whose own property did not run.
    """
    # Imported here: it is needed once, at a session's end.
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for title in ("rule", "verdict"):
        table.add_column(title, no_wrap=True)
    for title in ("judged", "compared", "largest error"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("notes")
    untested = 0
    for rule in order:
        entry, verdict = ledger[rule], ledger.verdict_of(rule)
        if verdict == "not tested" and not verbose:
            untested += 1
            continue
        if not ledger.concerned(rule):
            continue
        worst = f"{entry.worst:.2f} of bound" if entry.worst else "none" if entry.judged else ""
        table.add_row(
            rule,
            verdict,
            f"{entry.judged:,}",
            f"{entry.compared:,}",
            worst,
            "; ".join(
                filter(None, (_notes(entry, ended=rule in ledger.ended), notes.get(rule, "")))
            ),
        )
    hidden = (
        [f"not tested: {_counted(untested, 'other rule')}; -v lists those that other tests judged"]
        if untested
        else []
    )
    return "\n".join([*_cases(ledger), *table_lines(table), *hidden, _COLUMNS])


_COLUMNS = (
    "judged counts cases, compared values; errors are in units of the rounding allowed in their case: up to "
    "1.00 is right"
)


def _cases(ledger: Ledger) -> list[str]:
    """Return the number of cases and where they ran, and the cases that failed simulated alone."""
    simulated, runs = ledger.ran["simulated"], ledger.ran.total()
    lines = [
        f"{ledger.cases:,} cases judged"
        + (f", in {runs:,} runs, of which {simulated:,} were simulated" if simulated else "")
    ]
    if any(ledger.dealt):
        lines.append(exhausted(ledger.dealt))
    if ledger.schedules:
        lines.append(explored(ledger.schedules))
    if ledger.not_simulated:
        lines += _not_simulated(ledger.not_simulated, at_first=bool(simulated))
    if ledger.unreal:
        listed = "; ".join(f"{case} ({rules})" for case, rules in list(ledger.unreal.items())[:3])
        lines.append(
            f"{len(ledger.unreal)} cases failed only in the simulation, and do not count: " + listed
        )
    return lines


def _not_simulated(reason: str, *, at_first: bool) -> list[str]:
    """Return why cases ran on real ranks alone, and what follows for the user.

    Args:
        reason: The reason.
        at_first: True if cases were simulated at first.
    """
    head, which, unless = (
        ("no longer simulated", "all further cases", "")
        if at_first
        else ("not simulated", "all cases", " unless --max-world-size says otherwise")
    )
    text = (
        f"{head}: {reason}. So {which} ran on real ranks: they take longer, and have at most "
        f"{REAL_WORLD_SIZE} ranks{unless}"
    )
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def table_lines(table: "Table") -> list[str]:
    """Return a table's lines, without colour."""
    from rich.console import Console

    console = Console(width=_WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().rstrip().splitlines()]


def under_test(discovery: Discovery, *, verbose: bool) -> list[str]:
    """Return a line each for the DDP and the sampler, and their declarations.

    The reference stands beside an implementation of the other side. Verbose adds the calls that drive it.
    """
    lines = []
    for side, described, declared, driven in (
        ("ddp", discovery.ddp, discovery.declared, discovery.driven),
        ("sampler", discovery.sampler, discovery.declared_sampler, discovery.sampler["driven"]),
    ):
        name, target = described["name"], described["target"]
        what = name if name == target else f"{name} = {target}"
        role = "under test" if side in discovery.sides_under_test else "beside it"
        lines.append(f"{side} {role}: {what} ({described['version']})")
        lines += [f"  declared  {line}" for line in to_toml(side, declared).splitlines()[1:]]
        lines += [f"  driven    {line}" for line in driven] if verbose else []
    return lines


def declarations(ddp: Declarations, sampler: SamplerDeclarations) -> str:
    """Return a declaration file of both sides."""
    return f"{to_toml('ddp', ddp)}\n{to_toml('sampler', sampler)}"


def capabilities(discovery: Discovery) -> str:
    """Return the results of the probed capabilities, a paragraph each unless simply right."""
    return "\n".join(
        [
            "capabilities, each probed by one small case",
            *_plain(discovery),
            *_not_right(discovery),
            *_listed(discovery, (Standing.RIGHT, Standing.ABSENT, Standing.UNKNOWN)),
        ]
    )


def faulty(discovery: Discovery, levels: Iterable[LevelAccount], stored: Mapping[str, str]) -> str:
    """Return the capabilities of a session that are not right; empty if all are.

    Args:
        discovery: The capabilities, as probed.
        levels: The results of the session's levels: a property may violate a rule with a
            capability whose probe was right.
        stored: The ids of the probes' failures that are stored, by capability.
    """
    standings = {probe.capability: probe.standing for probe in discovery.probes_under_test}
    broken = [each for level in levels for each in level.broken]
    lines = [
        *_plain(discovery),
        *_not_right(discovery, stored),
        *(
            _field("violated", f"{name} ({CAPABILITIES[name]}): {', '.join(each.rules)}")
            for each in broken
            for name in each.names
            if standings.get(name) is Standing.RIGHT
        ),
    ]
    return (
        "\n".join(
            ["capabilities that are not simply right, each probed by one small case:", *lines]
        )
        if lines
        else ""
    )


def right(discovery: Discovery, levels: Iterable[LevelAccount]) -> str:
    """Return the capabilities of a session whose probes were right and that no violation needs."""
    needed = {name for level in levels for each in level.broken for name in each.names}
    return "\n".join(_listed(discovery, (Standing.RIGHT,), without=needed))


def _not_right(discovery: Discovery, stored: Mapping[str, str] = {}) -> list[str]:
    """Return the capabilities about which there is more to say than that they are right."""
    probed = discovery.probes_under_test
    lines = []
    for probe in probed:
        if probe.expected and probe.standing is Standing.WRONG:
            lines.append(
                _field(
                    "wrong, expected",
                    f"{probe.capability} ({CAPABILITIES[probe.capability]}) {probe.words}; "
                    f"{probe.expected}",
                )
            )
        elif probe.declared:
            label = (
                "right, though declared unsupported"
                if probe.standing is Standing.RIGHT
                else f"{probe.standing.value}, declared"
            )
            lines.append(
                _field(
                    label,
                    f"{probe.capability} ({CAPABILITIES[probe.capability]}) {probe.words}".rstrip(),
                )
            )
    for standing in (Standing.WRONG, Standing.CRASHED, Standing.REFUSED):
        lines += [
            _field(
                standing.value,
                f"{probe.capability} ({CAPABILITIES[probe.capability]}): {probe.words}"
                + (f" (replay {stored[probe.capability]})" if probe.capability in stored else ""),
            )
            for probe in probed
            if probe.standing is standing
            and not probe.declared
            and not (probe.expected and standing is Standing.WRONG)
        ]
    lines += [
        _field("now right", f"{probe.capability}: {probe.words}")
        for probe in probed
        if probe.standing is Standing.RIGHT and probe.words
    ]
    return lines


def _listed(
    discovery: Discovery, standings: Iterable[Standing], without: Collection[str] = ()
) -> list[str]:
    """Return the names of the capabilities with some standings, a paragraph for each standing."""
    lines = []
    for standing in standings:
        names = [
            in_list(probe.capability) + (f" ({probe.words})" if probe.never_met else "")
            for probe in discovery.probes_under_test
            if probe.standing is standing and not probe.declared and probe.capability not in without
        ]
        many = standing is Standing.UNKNOWN and discovery.nothing_probed
        listed = f"{len(names)} capabilities" if many else ", ".join(names)
        listed += discovery.why_unprobed if standing is Standing.UNKNOWN else ""
        lines += [_field(standing.value, listed)] if names else []
    return lines


def _plain(discovery: Discovery) -> list[str]:
    """Return what failed in the plain case, in lines; empty if nothing did."""
    failed = discovery.plain_failure
    if failed is None:
        return []
    lines = [
        _field("refused" if failed.refused else "wrong", f"the plain case: {failed.fact}"),
        _field("where", failed.where),
        _field("plain case", failed.case),
    ]
    lines += [_field("but holds", f"with {way}") for way in failed.otherwise]
    if failed.left_out:
        broken = ", ".join(failed.left_out)
        lines.append(_field("probes", f"not judged by {broken}, which the plain case breaks"))
    return [line for line in lines if line.strip()]


def _counted(count: int, noun: str = "case") -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _notes(entry: Entry, *, ended: bool) -> str:
    if entry.failures and not entry.confirmed:
        words = next(iter(entry.failures.values()))
        why = "not confirmed" if ended else "not confirmed, as its own test did not run to its end"
        return f"failed in {_counted(entry.seen)}, {why}; first: {words}"
    refused = sum(count for reason, count in entry.unjudged.items() if " raised " in reason)
    crashed = [reason for reason in entry.unjudged if "the rule itself crashed" in reason]
    notes = [text for text in (entry.not_claimed, entry.not_run) if text]
    if entry.observed:
        least, most = entry.observed
        notes.append(
            f"each rank sent {least:.2f} to {most:.2f} times what a ring all-reduce of its gradients "
            "sends: a measure, no verdict"
        )
    notes += crashed[:1]
    notes += [f"failed in {_counted(entry.seen)}"] if entry.seen else []
    notes += [f"refused in {_counted(refused)}"] if refused else []
    return "; ".join(notes)
