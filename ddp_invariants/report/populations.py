"""The text of a measurement on composed faults: how many were caught, by operator and trigger."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from string import ascii_lowercase

from ddp_invariants.faults.generated.choices import PARTS, Part
from ddp_invariants.proof.detection import Detection
from ddp_invariants.report.detections import remarks
from ddp_invariants.report.terminal import table_lines


def table(detections: Sequence[Detection]) -> str:
    """Return a matrix of operators and triggers for wrappers, one for samplers, and the totals.

    A cell holds how many faults were caught, of how many. The letters on top stand for operators,
    which the rows below a matrix explain.
    """
    lines: list[str] = []
    # All kinds of wrappers have the same operators and triggers.
    for part, is_sampler in ((PARTS["ddp"], False), (PARTS["sampler"], True)):
        faults = [
            detection
            for detection in detections
            if detection.planted.is_fault and detection.planted.is_sampler == is_sampler
        ]
        if faults:
            lines += [*_matrix(faults, part), "", *_operators(faults, part), ""]
    return "\n".join([*lines, *remarks(detections)])


def _letters(faults: Sequence[Detection], part: Part) -> dict[str, str]:
    """Return a letter for each operator that occurs."""
    present = {choice(fault, "operator") for fault in faults}
    return dict(zip(filter(present.__contains__, part.operators), ascii_lowercase, strict=False))


def _matrix(faults: Sequence[Detection], part: Part) -> list[str]:
    """Return the matrix of one part."""
    # Imported here: it is needed once, at a command's end.
    from rich.box import SIMPLE
    from rich.table import Table

    letters = _letters(faults, part)
    matrix = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    matrix.add_column("trigger", no_wrap=True)
    for title in (*letters.values(), "all"):
        matrix.add_column(title, justify="right", no_wrap=True)
    for trigger in part.triggers:
        here = [fault for fault in faults if choice(fault, "trigger") == trigger]
        if here:
            cells = [
                _share(fault for fault in here if choice(fault, "operator") == operator)
                for operator in letters
            ]
            matrix.add_row(trigger, *cells, _share(here))
    return table_lines(matrix)


def _operators(faults: Sequence[Detection], part: Part) -> list[str]:
    """Return a row for each operator: its share, the median cases, and the rules."""
    from rich.box import SIMPLE
    from rich.table import Table

    rows = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for title in ("operator", "caught", "cases", "named by"):
        rows.add_column(title, justify="right" if title in ("caught", "cases") else "left")
    for operator, letter in _letters(faults, part).items():
        here = [fault for fault in faults if choice(fault, "operator") == operator]
        rows.add_row(f"{letter}  {operator}", _share(here), _cases(here), named(here))
    return table_lines(rows)


def choice(detection: Detection, name: str) -> str:
    """Return the operator or the trigger of a composed fault; empty for a right implementation."""
    return dict(detection.planted.fault).get(name, "")


def _share(detections: Iterable[Detection]) -> str:
    """Return how many faults were caught, of how many; empty if there are none."""
    caught = [detection.is_caught for detection in detections]
    return f"{sum(caught)}/{len(caught)}" if caught else ""


def _cases(detections: Iterable[Detection]) -> str:
    """Return the median of the cases until faults were caught."""
    cases = [detection.cases for detection in detections if detection.is_caught]
    return f"{median(cases):.0f}" if cases else ""


def named(detections: Iterable[Detection]) -> str:
    """Return the rules that named faults, the most frequent first, with their numbers."""
    counts = Counter(detection.rule for detection in detections if detection.is_caught)
    return ", ".join(f"{rule} {count}×" for rule, count in counts.most_common(4))
