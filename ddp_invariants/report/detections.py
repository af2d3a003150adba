"""The text of measurements of the judge: searches for planted faults, and cases of controls."""

from collections.abc import Iterable, Sequence

from ddp_invariants.proof.catalogue import CatalogueEntry, all_entries
from ddp_invariants.proof.detection import Detection, Totals, summary, totals
from ddp_invariants.report.terminal import table_lines
from ddp_invariants.search.messages import labelled


def table(detections: Sequence[Detection]) -> str:
    """Return the table of faults, the faults that escaped, remarks on controls, and the totals.

    Each row sums up a fault's searches. It has the rule that must fail, and the rules named for the
    smallest case and for the first failing one. Then come three medians, the smallest case, and the
    share of right causes. The medians are of the cases drawn until the first failing one, of the
    cases among them drawn for the same rule, and of the seconds.
    """
    # Imported here: it is needed once, at a command's end.
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    rows = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for title in ("fault", "must", "named", "seen by"):
        rows.add_column(title, no_wrap=title in ("fault", "must"))
    for title in ("cases", "own", "seconds"):
        rows.add_column(title, justify="right", no_wrap=True)
    rows.add_column("smallest case")
    rows.add_column("cause")
    host = ""
    for fault, group in _grouped(
        detection for detection in detections if detection.planted.is_fault
    ):
        if fault.module != host:
            host = fault.module
            rows.add_row(f"{host}.py", style="italic")
        added = summary(group)
        rows.add_row(
            f"  {escape(fault.name)}",
            " or ".join(fault.rules),
            added.named,
            added.first_rule,
            added.cases,
            added.own,
            added.seconds,
            added.smallest.size,
            added.causes,
        )
    return "\n".join(
        [
            *(table_lines(rows) if rows.rows else []),
            "",
            *remarks(detections),
        ]
    )


def remarks(detections: Sequence[Detection]) -> list[str]:
    """Return the faults that escaped, the controls that did not simply hold, and the totals."""
    return [*_escapes(detections), *_of_controls(detections), *_sum(totals(detections))]


def line(detection: Detection) -> str:
    """Describe one search in a line."""
    result = (
        f"{detection.rule}, {detection.cause or detection.failure_words}"
        if detection.is_caught
        else detection.reason or "no violation found"
    )
    return (
        f"{detection.planted.module}: {detection.planted.name}, seed {detection.seed}: "
        f"{' '.join(result.split())}; {detection.cases} cases"
    )


def _grouped(detections: Iterable[Detection]) -> list[tuple[CatalogueEntry, list[Detection]]]:
    """Group searches by their fault or control, in the order of the catalogue."""
    groups: dict[CatalogueEntry, list[Detection]] = {}
    for detection in sorted(detections, key=lambda detection: detection.seed):
        groups.setdefault(detection.planted, []).append(detection)
    shipped = {entry: number for number, entry in enumerate(all_entries())}
    # The catalogue of another folder is in the order of its modules and names.
    return sorted(
        groups.items(),
        key=lambda group: (shipped.get(group[0], -1), group[0].module, group[0].name),
    )


def _escapes(detections: Iterable[Detection]) -> list[str]:
    """Return the faults that were not caught, each with its record."""
    return [
        labelled(
            "not judged" if escaped.reason else "escaped",
            f"{_place(escaped.planted)} (seed {escaped.seed}): "
            f"{' '.join(escaped.reason.split()) or f'no violation in {escaped.cases} cases'}; "
            f"its docstring: {escaped.planted.docstring}",
        )
        for escaped in detections
        if escaped.planted.is_fault and not escaped.is_caught
    ]


def _place(planted: CatalogueEntry) -> str:
    """Return where a fault stands, or of what it is composed."""
    return planted.name if planted.arguments else f"{planted.module}.py:{planted.name}"


def _control(detection: Detection) -> str:
    """Return a control by its name, with the arguments of a composed one."""
    planted = detection.planted
    given = "".join(f" {name}={value}" for name, value in planted.arguments)
    return f"{planted.target}{given} (seed {detection.seed})"


def _of_controls(detections: Iterable[Detection]) -> list[str]:
    """Return remarks on controls that did not simply hold."""
    lines = []
    for detection in detections:
        if not detection.planted.is_fault and detection.is_caught:
            lines.append(
                labelled(
                    "wrongly violated",
                    f"{_control(detection)}: {detection.rule}, "
                    f"{detection.cause or 'no cause'}; "
                    f"{detection.case}",
                )
            )
        if detection.reason and not detection.planted.is_fault:
            lines.append(
                labelled(
                    "inconclusive",
                    f"{_control(detection)}: {' '.join(detection.reason.split())}",
                )
            )
    return lines


def _sum(total: Totals) -> list[str]:
    def share(part: int, whole: int) -> str:
        return f"{part} ({100 * part / whole:.1f} %)" if whole else str(part)

    whole = total.searches
    of_faults = [
        f"{whole} searches for planted faults: {share(total.caught, whole)} caught, "
        f"{share(total.right_rule, whole)} by "
        f"the right rule, {share(total.right, whole)} with the right cause, {total.wrong} "
        "with a wrong one, "
        f"{total.unknown} with none"
        + (f", {total.unstated} whose record states none" if total.unstated else "")
        + f"; {share(total.explained, whole)} with a cause or a condition",
        (
            f"median until the first counterexample: {total.median_cases:.0f} cases, "
            f"{total.median_seconds:.2f} s"
        ),
    ]
    of_controls = (
        f"{total.control_cases:,} cases of {total.controls:,} "
        f"control{'' if total.controls == 1 else 's'} "
        f"({total.control_simulated:,} runs simulated, {total.control_real:,} on real ranks or of "
        f"samplers): {total.false_violations} false violations"
    )
    return [*(of_faults if whole else []), of_controls]
